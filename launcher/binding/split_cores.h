// Cores to units: the pure heart of placement.
//
//   1. Each unit has a *home*: the NUMA node of its GPU, if it has an allowed core to give; else the ladder:
//   another
//      node of the package, the nearest by the distance table, any. Among equals the one with the fewest
//      units per core. No node takes more units than it has cores while another node has cores to spare.
//   2. The allowed cores of a node are dealt in blocks, ascending, to the units at home there; the first ones
//   get
//      the remainder. All units of the node count, used or not: two jobs on one node never meet, and a GPU's
//      cores do not depend on who uses the others.
//
// A core counts when any of its hardware threads is allowed, and is never split between units while there are
// as many cores as units.
#ifndef DGXRUN_LAUNCHER_BINDING_SPLIT_CORES_H_
#define DGXRUN_LAUNCHER_BINDING_SPLIT_CORES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "dgxrun/v1/topology.pb.h"
#include "launcher/binding/cpu_list.h"

namespace dgxrun {

// A NUMA node with CPUs, and those of its cores that may be used.
struct CpuNode {
  uint32_t id = 0;
  uint32_t package = 0;
  size_t position = 0;  // in topology.numa
  struct UsableCore {
    CpuList cpus;          // the allowed threads; never empty
    bool in_part = false;  // it has others
  };
  std::vector<UsableCore> cores;  // ascending
};

// Those with a usable core, ascending by id.
std::vector<CpuNode> CpuNodes(const v1::NodeTopology& topology);

struct Home {
  size_t node = 0;  // position in CpuNodes()
  v1::Nearness nearness = v1::NEARNESS_UNSPECIFIED;
};

// One home for each place; `nodes` must not be empty.
std::vector<Home> FindHomes(const v1::NodeTopology& topology, const std::vector<CpuNode>& nodes,
                            const std::vector<const v1::Locality*>& places);

// Cores of one unit: (position in CpuNodes(), position in its cores).
struct CoreRef {
  size_t node = 0;
  size_t core = 0;
};
using Share = std::vector<CoreRef>;

// Rule 2. Never an empty share.
std::vector<Share> SplitNodes(const std::vector<CpuNode>& nodes,
                              const std::vector<const v1::Locality*>& places, const std::vector<Home>& homes);

// Adds the cores of nodes that are nobody's home to the units of their package, evenly, nearest node first.
void AddIdleNodes(const v1::NodeTopology& topology, const std::vector<CpuNode>& nodes,
                  const std::vector<Home>& homes, std::vector<Share>* shares);

// `parts` blocks of 0..size-1: the first ones one longer; with more parts than elements, elements are shared.
struct Block {
  size_t begin = 0;
  size_t end = 0;  // > begin
};
Block BlockOf(size_t size, size_t parts, size_t part);

// Ranks without GPUs: how many on each node, in proportion to its cores; largest remainder first.
std::vector<size_t> Apportion(const std::vector<CpuNode>& nodes, size_t ranks);

// Of the SLIT; nullopt when it is not known.
std::optional<uint32_t> Distance(const v1::NodeTopology& topology, size_t from, size_t to);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_SPLIT_CORES_H_
