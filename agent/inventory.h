// What this machine holds: NVIDIA devices on the PCI bus and what the driver says of them, the cores that
// this process may use, its addresses. Read once, at the start of an agent; nothing here is assumed: a device
// on the bus that the driver does not show is an error text in the inventory, not a CPU node.
#ifndef DGXRUN_AGENT_INVENTORY_H_
#define DGXRUN_AGENT_INVENTORY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/nvml.h"
#include "dgxrun/v1/node.pb.h"

namespace dgxrun::agent {

struct InventoryOptions {
  std::string sysfs;          // root of sysfs; empty: $DGXRUN_SYSFS (tests), else /sys
  int declared_gpus = -1;     // from the cluster file; -1: what the machine has
  std::string address;        // from the cluster file; goes first
  std::string cgroup_parent;  // what FindCgroupParent() gave; empty: none
  // For a process that launches at once: the driver's own files where they settle it (driver_files.h),
  // without the memory of GPUs. An agent that stays asks NVML.
  bool quick = false;
};

// The driver is asked only where the PCI bus has a device. NVML may take a second where it was not loaded.
v1::Inventory ReadInventory(const InventoryOptions& options);

// ---- Parts, for tests ----

// PCI addresses ("0000:1b:00.0", ascending) of display and 3D controllers (class 0x03xxxx) of vendor 0x10de.
std::vector<std::string> NvidiaPciDevices(const std::string& sysfs);
// Fills gpus, pci_gpus, gpu_error, declared. gpu_error is set whenever a device on the bus is not usable;
// with gpus not empty it only explains why there are no more (a container that was given some).
void FillGpus(const std::vector<std::string>& pci, const absl::StatusOr<std::vector<DriverGpu>>& driver,
              int declared, v1::Inventory* inventory);
// Physical cores among `cpus`; a cpu without topology files counts as a core.
uint32_t PhysicalCores(const std::string& sysfs, const std::vector<int>& cpus);
std::vector<int> AllowedCpus();
// Global unicast addresses of interfaces that are up, in interface order, IPv4 first within each.
std::vector<std::string> GlobalAddresses();

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_INVENTORY_H_
