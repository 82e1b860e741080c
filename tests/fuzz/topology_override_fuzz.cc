// Override files: any text either changes a topology so that ranks can still be planned on it, or is one
// error that says where, and changes nothing.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/plan_binding.h"
#include "launcher/topology/overrides.h"
#include "tests/fuzz/require.h"
#include "tests/unit/topology_kit.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  dgxrun::v1::NodeTopology before = dgxrun::MakeMachine(2, 1, 2);
  for (uint32_t numa : {0u, 1u}) {
    dgxrun::AddGpu(numa, numa, &before);
    dgxrun::AddNic(numa, numa, &before);
  }
  dgxrun::v1::NodeTopology topology = before;
  const absl::Status status = dgxrun::ApplyOverrides(text, "/etc/fuzz.toml", &topology);
  if (!status.ok()) {
    dgxrun::Require(absl::StartsWith(status.message(), "/etc/fuzz.toml:"), "an error without its place");
    dgxrun::Require(topology.SerializeAsString() == before.SerializeAsString(),
                    "an error that changes something");
    return 0;
  }
  dgxrun::BindingRequest request;
  request.gpus.count = static_cast<uint32_t>(topology.gpus_size());
  const absl::StatusOr<dgxrun::v1::NodeBinding> binding = dgxrun::PlanBinding(topology, request);
  dgxrun::Require(binding.ok(), "no plan: " + binding.status().ToString());
  dgxrun::Require(!dgxrun::ListOf(binding->ranks(0).cpus()).empty(), "a rank without a CPU");
  return 0;
}
