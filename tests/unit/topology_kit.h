// Machines made up for tests: as a NodeTopology, and as hwloc XML of our own.
#ifndef DGXRUN_TESTS_UNIT_TOPOLOGY_KIT_H_
#define DGXRUN_TESTS_UNIT_TOPOLOGY_KIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dgxrun/v1/topology.pb.h"
#include "launcher/binding/cpu_list.h"

namespace dgxrun {

// `packages` x `per_package` NUMA nodes of `cores` cores; core c has threads c and c + all cores. Distances
// 10 to itself, 12 in the package, 32 beyond.
inline v1::NodeTopology MakeMachine(uint32_t packages, uint32_t per_package, uint32_t cores) {
  v1::NodeTopology topology;
  const uint32_t nodes = packages * per_package;
  for (uint32_t n = 0; n < nodes; ++n) {
    v1::NumaNode* numa = topology.add_numa();
    numa->set_id(n);
    numa->set_package(n / per_package);
    numa->set_kind(v1::NUMA_KIND_CPU);
    for (uint32_t c = n * cores; c < (n + 1) * cores; ++c) {
      v1::Core* core = numa->add_cores();
      core->add_cpus(c);
      core->add_cpus(c + nodes * cores);
    }
    for (uint32_t m = 0; m < nodes; ++m) {
      numa->add_distances(m == n ? 10 : m / per_package == n / per_package ? 12 : 32);
    }
  }
  topology.set_packages(packages);
  topology.set_allowed_cpus(absl::StrCat("0-", 2 * nodes * cores - 1));
  topology.set_allowed_mems(absl::StrCat("0-", nodes - 1));
  return topology;
}

// On a switch of its own: bridges {root port, upstream port `sw`, its own downstream port}.
inline void PlaceAt(const v1::NodeTopology& topology, uint32_t numa, uint64_t sw, uint64_t own,
                    v1::Locality* locality, v1::PciPath* path) {
  locality->set_numa(numa);
  locality->set_package(topology.numa(static_cast<int>(numa)).package());
  path->set_host_bridge(static_cast<uint32_t>(sw));
  path->add_bridges(sw << 8);
  path->add_bridges((sw + 100) << 8);
  path->add_bridges((own + 1000) << 8);
}

inline v1::GpuPlace* AddGpu(uint32_t numa, uint64_t sw, v1::NodeTopology* topology) {
  v1::GpuPlace* gpu = topology->add_gpus();
  const uint32_t index = static_cast<uint32_t>(topology->gpus_size() - 1);
  gpu->set_index(index);
  gpu->set_pci(absl::StrFormat("0000:%02x:00.0", index + 16));
  gpu->set_uuid(absl::StrFormat("GPU-%08x-0000", (index + 1) * 0x1111));
  PlaceAt(*topology, numa, sw, index, gpu->mutable_locality(), gpu->mutable_path());
  return gpu;
}

inline v1::NicPlace* AddNic(uint32_t numa, uint64_t sw, v1::NodeTopology* topology) {
  v1::NicPlace* nic = topology->add_nics();
  const int index = topology->nics_size() - 1;
  nic->set_name(absl::StrCat("mlx5_", index));
  nic->set_netdev(absl::StrCat("ib", index));
  nic->set_pci(absl::StrFormat("0000:%02x:00.0", index + 128));
  PlaceAt(*topology, numa, sw, static_cast<uint64_t>(index) + 500, nic->mutable_locality(),
          nic->mutable_path());
  v1::NicPort* port = nic->add_ports();
  port->set_number(1);
  port->set_state(v1::PORT_STATE_ACTIVE);
  port->set_rate_mbps(400000);
  port->set_link_layer(v1::LINK_LAYER_INFINIBAND);
  return nic;
}

// Links between each pair of `gpus`.
inline void Link(const std::vector<int>& gpus, uint32_t links, v1::NodeTopology* topology) {
  for (v1::GpuPlace& gpu : *topology->mutable_gpus()) {
    while (gpu.nvlinks_size() < topology->gpus_size()) gpu.add_nvlinks(0);
  }
  for (int a : gpus) {
    for (int b : gpus) {
      if (a != b) topology->mutable_gpus(a)->set_nvlinks(b, links);
    }
  }
}

}  // namespace dgxrun

#endif  // DGXRUN_TESTS_UNIT_TOPOLOGY_KIT_H_
