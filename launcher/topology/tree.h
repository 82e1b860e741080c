// From hwloc's tree to a NodeTopology. Only this folder includes it.
#ifndef DGXRUN_LAUNCHER_TOPOLOGY_TREE_H_
#define DGXRUN_LAUNCHER_TOPOLOGY_TREE_H_

#include <hwloc.h>

#include "absl/status/statusor.h"
#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// `loaded` was loaded with bridges, PCI and OS devices and with HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED.
// Errors carry no file name.
absl::StatusOr<v1::NodeTopology> FromTree(hwloc_topology_t loaded);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_TOPOLOGY_TREE_H_
