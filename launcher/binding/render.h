// A topology and a plan as text for people; drawn so that a reviewer can check them by eye. Pure;
// golden-tested.
#ifndef DGXRUN_LAUNCHER_BINDING_RENDER_H_
#define DGXRUN_LAUNCHER_BINDING_RENDER_H_

#include <string>

#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// NUMA nodes, then the matrix of `nvidia-smi topo -m`: GPUs and network cards against each other, with the
// CPUs and the NUMA node of each GPU. A path between packages is marked with "*". Ends with the names and the
// legend.
std::string TopologyText(const v1::NodeTopology& topology);

// One line a rank, then notes and warnings.
std::string BindingText(const v1::NodeTopology& topology, const v1::NodeBinding& binding);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_RENDER_H_
