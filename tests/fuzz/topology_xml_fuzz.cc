// hwloc XML: any text is either a topology that keeps its promises, and can be planned on, or one error that
// names the file.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/plan_binding.h"
#include "launcher/binding/render.h"
#include "launcher/topology/read_topology.h"
#include "tests/fuzz/require.h"

namespace {

void CheckTopology(const dgxrun::v1::NodeTopology& topology) {
  using dgxrun::CpuList;
  CpuList all;
  for (int i = 0; i < topology.numa_size(); ++i) {
    const dgxrun::v1::NumaNode& numa = topology.numa(i);
    dgxrun::Require(i == 0 || numa.id() > topology.numa(i - 1).id(), "NUMA nodes do not ascend");
    dgxrun::Require(numa.kind() == dgxrun::v1::NUMA_KIND_CPU || numa.cores().empty(),
                    "cores without a CPU node");
    for (const dgxrun::v1::Core& core : numa.cores())
      all.insert(all.end(), core.cpus().begin(), core.cpus().end());
  }
  const CpuList allowed = dgxrun::ListOf(topology.allowed_cpus());
  dgxrun::Require(!allowed.empty(), "no CPU is allowed");
  dgxrun::Require(dgxrun::Intersection(allowed, dgxrun::Normalized(all)) == allowed,
                  "allowed CPUs that are nowhere");
  for (int i = 1; i < topology.gpus_size(); ++i) {
    dgxrun::Require(topology.gpus(i).pci() != topology.gpus(i - 1).pci(), "a GPU twice");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<dgxrun::v1::NodeTopology> topology = dgxrun::ParseTopology(text, "/fuzz.xml");
  if (!topology.ok()) {
    dgxrun::Require(absl::StartsWith(topology.status().message(), "/fuzz.xml: "),
                    "an error without its file");
    return 0;
  }
  CheckTopology(*topology);
  dgxrun::Require(!dgxrun::TopologyText(*topology).empty(), "nothing to see");
  dgxrun::BindingRequest request;
  request.ranks = 3;
  request.gpus.count = static_cast<uint32_t>(dgxrun::UnitsOf(*topology).size());
  const absl::StatusOr<dgxrun::v1::NodeBinding> binding = dgxrun::PlanBinding(*topology, request);
  dgxrun::Require(binding.ok(), "no plan: " + binding.status().ToString());
  for (const dgxrun::v1::RankBinding& rank : binding->ranks()) {
    const dgxrun::CpuList cpus = dgxrun::ListOf(rank.cpus());
    dgxrun::Require(!cpus.empty(), "a rank without a CPU");
    dgxrun::Require(dgxrun::Intersection(cpus, dgxrun::ListOf(topology->allowed_cpus())) == cpus,
                    "a rank with a CPU that is not allowed");
  }
  return 0;
}
