// Where the ranks of one node go: GPUs, cores, memory, network cards. A pure function of what the node is and
// what the job asks; the same input gives the same plan, in whatever order the topology lists its parts.
//
// Who calls what: the agent reads a NodeTopology (launcher/topology) and sends it with its inventory; the
// controller calls PlanBinding when it places an attempt, records the result and puts it into the node's
// plan; the shim's child applies it between fork and exec, by system call, and reports what could not be
// held. `dgxrun topo` and
// `--dry-run` call it with a topology from a file and print the same plan.
//
// Promises, tested as properties: a rank that is bound has at least one CPU, all of them allowed; no core
// goes to two ranks while another is free (BIND_CORE); memory comes from nodes with CPUs only; each rail is
// used where there are as many as GPUs; a GPU's cores and rail do not depend on which other GPUs the job has.
#ifndef DGXRUN_LAUNCHER_BINDING_PLAN_BINDING_H_
#define DGXRUN_LAUNCHER_BINDING_PLAN_BINDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dgxrun/v1/topology.pb.h"
#include "launcher/binding/choose_gpus.h"

namespace dgxrun {

// To what a rank is bound: its own share of the cores near its GPU; all cores of that NUMA node; all of that
// package; nothing (then there is no memory policy either).
enum class Bind { kCore, kNuma, kSocket, kNone };

// Between whom the cores of a NUMA node are split: all GPUs there, used by this job or not; the GPUs of this
// job; all GPUs, and the cores of nodes without GPUs go to the GPUs of their package (memory stays near the
// GPU).
enum class CpuShare { kNode, kJob, kPackage };

// Memory from the nodes of the cores: preferred, or nothing else (the rank is killed when they are full).
enum class Membind { kPrefer, kStrict, kNone };

struct BindingRequest {
  uint32_t ranks = 1;
  // Which GPUs; with count 0 and nothing named, ranks without GPUs. Fewer GPUs than ranks: rank r uses GPU
  // r mod GPUs and part of its cores. More: consecutive ones each.
  GpuRequest gpus;
  Bind bind = Bind::kCore;
  CpuShare cpu_share = CpuShare::kNode;
  Membind membind = Membind::kPrefer;
  bool strict = false;            // a rank whose cores are not beside its GPU is an error
  std::vector<std::string> nics;  // rails by name; empty: found out
};

// Errors: those of ChooseUnits and DealNics; FailedPrecondition when no CPU is allowed, or with `strict`;
// InvalidArgument for 0 ranks.
absl::StatusOr<v1::NodeBinding> PlanBinding(const v1::NodeTopology& topology, const BindingRequest& request);

// The words of the options, for the command line: "core", ...
absl::StatusOr<Bind> ParseBind(absl::string_view word);
absl::StatusOr<CpuShare> ParseCpuShare(absl::string_view word);
absl::StatusOr<Membind> ParseMembind(absl::string_view word);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_PLAN_BINDING_H_
