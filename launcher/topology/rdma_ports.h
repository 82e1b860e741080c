// States, rates and link layers of RDMA ports from sysfs, which hwloc does not know.
#ifndef DGXRUN_LAUNCHER_TOPOLOGY_RDMA_PORTS_H_
#define DGXRUN_LAUNCHER_TOPOLOGY_RDMA_PORTS_H_

#include <string>

#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// Replaces the ports of each device of the topology that <sysfs>/class/infiniband has; the others stay. A
// device of sysfs that hwloc has not (a container without its PCI tree) is added, its place not known. What
// cannot be read stays not known.
void ReadRdmaPorts(const std::string& sysfs, v1::NodeTopology* topology);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_TOPOLOGY_RDMA_PORTS_H_
