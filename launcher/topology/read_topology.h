// Reads what a node is: of this machine, or of another one from the XML that `lstopo` (hwloc 2) writes there.
//
// A NodeTopology that comes out keeps these promises: NUMA nodes ascend by id and have at most one entry
// each; every core is in exactly one NUMA node with CPUs; allowed_cpus is not empty and within the cores;
// GPUs and network cards ascend by PCI address; decoys (the BMC's screen, NVSwitches, accelerators that are
// no GPUs) are not among them. What was odd is in `notes`.
//
// A device's place is its nearest ancestor with CPUs, by sets of CPUs and NUMA nodes, not by the kind of
// object. Memory of a GPU and memory without CPUs are told from memory nodes with CPUs: hwloc gives them the
// CPUs of their parent.
#ifndef DGXRUN_LAUNCHER_TOPOLOGY_READ_TOPOLOGY_H_
#define DGXRUN_LAUNCHER_TOPOLOGY_READ_TOPOLOGY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// NotFound where the file is not; InvalidArgument, which names the file and what it is instead, for what
// hwloc 2 cannot read (hwloc 3, NCCL's own XML, a text cut short) and for a machine without a CPU.
absl::StatusOr<v1::NodeTopology> ReadTopologyFile(const std::string& path);
absl::StatusOr<v1::NodeTopology> ParseTopology(const std::string& xml, const std::string& path);

// This machine. Allowed CPUs are those of the cgroup that are in this thread's affinity too. States and rates
// of RDMA ports come from `sysfs` ("/sys").
absl::StatusOr<v1::NodeTopology> ReadTopologyLive(const std::string& sysfs);

// As if only these CPUs ("0-15,56-71") were allowed; what else was stays forbidden. InvalidArgument when none
// is left.
absl::Status RestrictCpus(absl::string_view cpus, v1::NodeTopology* topology);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_TOPOLOGY_READ_TOPOLOGY_H_
