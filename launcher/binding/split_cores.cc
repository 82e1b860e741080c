#include "launcher/binding/split_cores.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace dgxrun {
namespace {

constexpr uint32_t kFar = 1 << 16;  // beyond any distance of a SLIT (they are bytes)

std::optional<size_t> PositionOfNuma(const v1::NodeTopology& topology, uint32_t id) {
  for (int i = 0; i < topology.numa_size(); ++i) {
    if (topology.numa(i).id() == id) return static_cast<size_t>(i);
  }
  return std::nullopt;
}

// How good `node` is for a unit there; smaller is better.
struct Rung {
  v1::Nearness nearness = v1::NEARNESS_UNKNOWN;
  uint32_t distance = kFar;
};

Rung RungOf(const v1::NodeTopology& topology, const CpuNode& node, const v1::Locality& place,
            bool only_node) {
  if (place.has_numa() && place.numa() == node.id) return {v1::NEARNESS_LOCAL, 0};
  Rung rung;
  if (place.has_numa()) {
    const std::optional<size_t> from = PositionOfNuma(topology, place.numa());
    if (from.has_value()) rung.distance = Distance(topology, *from, node.position).value_or(kFar);
  }
  if (place.has_package() && place.package() == node.package) {
    rung.nearness = v1::NEARNESS_PACKAGE;
  } else if (place.has_package()) {
    rung.nearness = rung.distance < kFar ? v1::NEARNESS_NEAREST : v1::NEARNESS_ANY;
  } else if (only_node) {
    rung.nearness = v1::NEARNESS_LOCAL;  // there is no other place to be
  }
  return rung;
}

class HomeFinder {
 public:
  HomeFinder(const v1::NodeTopology& topology, const std::vector<CpuNode>& nodes)
      : topology_(topology),
        nodes_(nodes),
        members_(nodes.size(), 0),
        one_node_(std::count_if(topology.numa().begin(), topology.numa().end(), [](const v1::NumaNode& numa) {
                    return numa.kind() == v1::NUMA_KIND_CPU;
                  }) == 1) {}

  std::vector<Home> Find(const std::vector<const v1::Locality*>& places) {
    std::vector<Home> homes(places.size());
    std::vector<size_t> displaced;
    for (size_t i = 0; i < places.size(); ++i) {
      if (!StaysHome(*places[i], &homes[i])) displaced.push_back(i);
    }
    for (size_t i : displaced) homes[i] = Displaced(*places[i]);
    return homes;
  }

 private:
  bool Full(size_t n) const { return members_[n] >= nodes_[n].cores.size(); }

  bool StaysHome(const v1::Locality& place, Home* home) {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const Rung rung = RungOf(topology_, nodes_[n], place, one_node_);
      if (rung.nearness != v1::NEARNESS_LOCAL || Full(n)) continue;
      ++members_[n];
      *home = {n, rung.nearness};
      return true;
    }
    return false;
  }

  Home Displaced(const v1::Locality& place) {
    // (no core to spare, step of the ladder, distance, units per core, position); the load in 1/65536.
    using Key = std::tuple<bool, int, uint32_t, uint64_t, size_t>;
    std::optional<Key> best;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const Rung rung = RungOf(topology_, nodes_[n], place, one_node_);
      const uint64_t load = ((uint64_t{members_[n]} + 1) << 16) / nodes_[n].cores.size();
      const Key key{Full(n), rung.nearness, rung.distance, load, n};
      if (!best.has_value() || key < *best) best = key;
    }
    const size_t node = std::get<4>(*best);
    ++members_[node];
    return {node, static_cast<v1::Nearness>(std::get<1>(*best))};
  }

  const v1::NodeTopology& topology_;
  const std::vector<CpuNode>& nodes_;
  std::vector<size_t> members_;
  const bool one_node_;
};

}  // namespace

std::vector<CpuNode> CpuNodes(const v1::NodeTopology& topology) {
  const CpuList allowed = ListOf(topology.allowed_cpus());
  std::vector<CpuNode> nodes;
  for (int i = 0; i < topology.numa_size(); ++i) {
    const v1::NumaNode& numa = topology.numa(i);
    if (numa.kind() != v1::NUMA_KIND_CPU) continue;
    CpuNode node{numa.id(), numa.package(), static_cast<size_t>(i), {}};
    for (const v1::Core& core : numa.cores()) {
      CpuList cpus = Intersection(Normalized({core.cpus().begin(), core.cpus().end()}), allowed);
      const bool in_part = cpus.size() < static_cast<size_t>(core.cpus_size());
      if (!cpus.empty()) node.cores.push_back({std::move(cpus), in_part});
    }
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

std::optional<uint32_t> Distance(const v1::NodeTopology& topology, size_t from, size_t to) {
  const auto& distances = topology.numa(static_cast<int>(from)).distances();
  if (static_cast<size_t>(distances.size()) <= to) return std::nullopt;
  return distances[static_cast<int>(to)];
}

std::vector<Home> FindHomes(const v1::NodeTopology& topology, const std::vector<CpuNode>& nodes,
                            const std::vector<const v1::Locality*>& places) {
  return HomeFinder(topology, nodes).Find(places);
}

Block BlockOf(size_t size, size_t parts, size_t part) {
  if (size < parts) {
    const size_t element = part * size / parts;
    return {element, element + 1};
  }
  const size_t length = size / parts;
  const size_t longer = size % parts;
  const size_t begin = part * length + std::min(part, longer);
  return {begin, begin + length + (part < longer ? 1 : 0)};
}

std::vector<Share> SplitNodes(const std::vector<CpuNode>& nodes,
                              const std::vector<const v1::Locality*>& places,
                              const std::vector<Home>& homes) {
  std::vector<Share> shares(homes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::vector<size_t> members;
    for (size_t i = 0; i < homes.size(); ++i) {
      if (homes[i].node == n) members.push_back(i);
    }
    // A GPU that hangs on one L3 of the node gets the block that is nearest to it; those from elsewhere come
    // last.
    const auto first_near = [&](size_t i) {
      if (homes[i].nearness != v1::NEARNESS_LOCAL) return kMaxCpu + 1;
      const CpuList near = ListOf(places[i]->cpus());
      return near.empty() ? 0 : near.front();
    };
    std::stable_sort(members.begin(), members.end(),
                     [&](size_t a, size_t b) { return first_near(a) < first_near(b); });
    for (size_t m = 0; m < members.size(); ++m) {
      const Block block = BlockOf(nodes[n].cores.size(), members.size(), m);
      for (size_t core = block.begin; core < block.end; ++core) shares[members[m]].push_back({n, core});
    }
  }
  return shares;
}

void AddIdleNodes(const v1::NodeTopology& topology, const std::vector<CpuNode>& nodes,
                  const std::vector<Home>& homes, std::vector<Share>* shares) {
  std::map<uint32_t, std::vector<size_t>> units_of;  // package -> units at home there
  std::vector<char> idle(nodes.size(), 1);
  for (size_t i = 0; i < homes.size(); ++i) {
    idle[homes[i].node] = 0;
    units_of[nodes[homes[i].node].package].push_back(i);
  }
  std::vector<size_t> taken(nodes.size(), 0);  // of an idle node
  for (const auto& [package, units] : units_of) {
    size_t cores = 0;
    std::vector<size_t> sources;
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (idle[n] == 0 || nodes[n].package != package) continue;
      sources.push_back(n);
      cores += nodes[n].cores.size();
    }
    for (size_t u = 0; u < units.size(); ++u) {
      // Fewer cores than units: the first ones get one each.
      size_t wanted = cores / units.size() + (u < cores % units.size() ? 1 : 0);
      const size_t home = nodes[homes[units[u]].node].position;
      std::stable_sort(sources.begin(), sources.end(), [&](size_t a, size_t b) {
        const auto key = [&](size_t n) {
          return std::pair(Distance(topology, home, nodes[n].position).value_or(kFar), n);
        };
        return key(a) < key(b);
      });
      for (size_t n : sources) {
        for (; wanted > 0 && taken[n] < nodes[n].cores.size(); --wanted) {
          (*shares)[units[u]].push_back({n, taken[n]++});
        }
      }
    }
  }
}

std::vector<size_t> Apportion(const std::vector<CpuNode>& nodes, size_t ranks) {
  size_t cores = 0;
  for (const CpuNode& node : nodes) cores += node.cores.size();
  std::vector<size_t> counts;
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  size_t given = 0;
  for (const CpuNode& node : nodes) {
    counts.push_back(ranks * node.cores.size() / cores);
    given += counts.back();
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return ranks * nodes[a].cores.size() % cores > ranks * nodes[b].cores.size() % cores;
  });
  for (size_t i = 0; given < ranks; ++i, ++given) ++counts[order[i]];
  return counts;
}

}  // namespace dgxrun
