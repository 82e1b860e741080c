// A file for a machine whose firmware lies about itself. TOML; every entry is a note of the topology:
//
//   [gpu."0000:1b:00.0"]   # by PCI address
//   numa = 3               # where it really is
//   use = false            # a decoy, or broken: as if it were not there
//
//   [nic.mlx5_4]           # by the name of the RDMA device
//   numa = 0
//   rail = false           # storage or management: never dealt to a rank
//
//   [numa.8]
//   memory_only = true     # its CPUs are another node's: never for host memory
//
// Errors are "file:line:col: message". What the file names must be there: a line that does nothing is an
// error too.
#ifndef DGXRUN_LAUNCHER_TOPOLOGY_OVERRIDES_H_
#define DGXRUN_LAUNCHER_TOPOLOGY_OVERRIDES_H_

#include <string>

#include "absl/status/status.h"
#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// On an error the topology is as before.
absl::Status ApplyOverrideFile(const std::string& path, v1::NodeTopology* topology);
absl::Status ApplyOverrides(const std::string& text, const std::string& path, v1::NodeTopology* topology);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_TOPOLOGY_OVERRIDES_H_
