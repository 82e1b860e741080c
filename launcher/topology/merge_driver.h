// The driver's own list of GPUs against the topology: a cross-check, never the source of places.
#ifndef DGXRUN_LAUNCHER_TOPOLOGY_MERGE_DRIVER_H_
#define DGXRUN_LAUNCHER_TOPOLOGY_MERGE_DRIVER_H_

#include <string>
#include <vector>

#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// As NVML tells it.
struct DriverDevice {
  std::string pci;  // "0000:1b:00.0"
  std::string uuid;
  std::string model;
  std::vector<v1::GpuPartition> partitions;  // MIG instances
};

// Afterwards the GPUs of the topology are those of the driver, numbered anew in PCI order, with its UUIDs:
// one on the bus that the driver does not show cannot be used, and one that only the driver shows has no
// known place. Each difference is a note. Links follow the GPUs that stay.
void MergeDriver(const std::vector<DriverDevice>& devices, v1::NodeTopology* topology);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_TOPOLOGY_MERGE_DRIVER_H_
