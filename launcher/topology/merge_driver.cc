#include "launcher/topology/merge_driver.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dgxrun {

void MergeDriver(const std::vector<DriverDevice>& devices, v1::NodeTopology* topology) {
  std::map<std::string, const DriverDevice*> shown;  // fixed-width hex: the order of text is that of PCI
  for (const DriverDevice& device : devices) shown.emplace(device.pci, &device);
  std::map<std::string, int> known;  // position before
  for (int i = 0; i < topology->gpus_size(); ++i) {
    const std::string& pci = topology->gpus(i).pci();
    known.emplace(pci, i);
    if (shown.count(pci) == 0) {
      topology->add_notes(absl::StrCat("GPU ", pci, " is on the bus, and the driver does not show it"));
    }
  }
  std::vector<int> before;  // of each GPU that stays; -1: new
  std::vector<v1::GpuPlace> merged;
  for (const auto& [pci, device] : shown) {
    const auto found = known.find(pci);
    v1::GpuPlace gpu;
    if (found != known.end()) {
      gpu = topology->gpus(found->second);
    } else {
      gpu.set_pci(pci);
      gpu.mutable_path()->set_host_bridge(
          static_cast<uint32_t>(merged.size() + (1 << 17)));  // near to nothing
      topology->add_notes(absl::StrCat("GPU ", pci, " is not in the PCI tree; where it is, is not known"));
    }
    gpu.set_index(static_cast<uint32_t>(merged.size()));
    if (!device->uuid.empty()) gpu.set_uuid(device->uuid);
    if (!device->model.empty()) gpu.set_model(device->model);
    if (!device->partitions.empty()) {
      gpu.mutable_partitions()->Assign(device->partitions.begin(), device->partitions.end());
    }
    before.push_back(found == known.end() ? -1 : found->second);
    merged.push_back(std::move(gpu));
  }
  for (size_t i = 0; i < merged.size(); ++i) {
    const std::vector<uint32_t> links(merged[i].nvlinks().begin(), merged[i].nvlinks().end());
    merged[i].clear_nvlinks();
    for (size_t j = 0; !links.empty() && j < merged.size(); ++j) {
      const bool has = before[j] >= 0 && static_cast<size_t>(before[j]) < links.size();
      merged[i].add_nvlinks(has ? links[static_cast<size_t>(before[j])] : 0);
    }
  }
  topology->mutable_gpus()->Assign(merged.begin(), merged.end());
}

}  // namespace dgxrun
