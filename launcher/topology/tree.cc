#include "launcher/topology/tree.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "launcher/binding/cpu_list.h"

namespace dgxrun {
namespace {

// From the kernel's include/linux/pci_ids.h.
constexpr unsigned kVendorNvidia = 0x10de;
constexpr unsigned kVendorAmd = 0x1002;
constexpr unsigned kVendorCray = 0x17db;  // Slingshot
constexpr unsigned kClassVga = 0x0300;
constexpr unsigned kClass3d = 0x0302;
constexpr unsigned kClassDisplay = 0x0380;
constexpr unsigned kClassAccelerator = 0x1200;
constexpr unsigned kClassInfiniband = 0x0207;
constexpr unsigned kClassEthernet = 0x0200;

// MB/s that hwloc says of one NVLink (hwloc/nvml: 2nd generation and later 25000, 1st 20000).
constexpr uint64_t kNvLinkMbytes = 25000;
constexpr uint64_t kFirstNvLinkMbytes = 20000;

CpuList Bits(hwloc_const_bitmap_t set) {
  CpuList list;
  // An infinite set (a damaged file) has no end; more than any kernel's number is not a CPU.
  for (int i = set == nullptr ? -1 : hwloc_bitmap_first(set); i >= 0 && i <= static_cast<int>(kMaxCpu);
       i = hwloc_bitmap_next(set, i)) {
    list.push_back(static_cast<uint32_t>(i));
  }
  return list;
}

std::string Info(hwloc_obj_t object, const char* name) {
  const char* value = hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? "" : value;
}

std::string Subtype(hwloc_obj_t object) { return object->subtype == nullptr ? "" : object->subtype; }
std::string Name(hwloc_obj_t object) { return object->name == nullptr ? "" : object->name; }

struct Bdf {
  unsigned domain, bus, device, function;
  uint64_t Number() const {
    return uint64_t{domain} << 16 | uint64_t{bus} << 8 | uint64_t{device} << 3 | function;
  }
  std::string Text() const { return absl::StrFormat("%04x:%02x:%02x.%x", domain, bus, device, function); }
};

using PciAttributes = decltype(hwloc_obj_attr_u::pcidev);

Bdf BdfOf(const PciAttributes& pci) { return {pci.domain, pci.bus, pci.dev, pci.func}; }

class TreeReader {
 public:
  explicit TreeReader(hwloc_topology_t tree) : tree_(tree) {}

  absl::StatusOr<v1::NodeTopology> Read() {
    ReadNuma();
    ReadCores();
    ReadDistances();
    const CpuList allowed = Intersection(all_cpus_, Bits(hwloc_topology_get_allowed_cpuset(tree_)));
    if (allowed.empty())
      return absl::InvalidArgumentError("no CPU of this machine may be used (the set is empty)");
    topology_.set_allowed_cpus(FormatCpuList(allowed));
    const CpuList mems = Intersection(numa_ids_, Bits(hwloc_topology_get_allowed_nodeset(tree_)));
    topology_.set_allowed_mems(FormatCpuList(mems));
    topology_.set_packages(static_cast<uint32_t>(std::max<size_t>(1, packages_.size())));
    ReadDevices();
    ReadLinks();
    DropUselessUuids();
    return std::move(topology_);
  }

 private:
  // ---- memory and cores

  uint32_t PackageOf(hwloc_obj_t object) {
    hwloc_obj_t package = object;
    while (package != nullptr && package->type != HWLOC_OBJ_PACKAGE) package = package->parent;
    if (package == nullptr && object->cpuset != nullptr) {
      // hwloc 1 put a NUMA node above its package.
      package = hwloc_get_next_obj_covering_cpuset_by_type(tree_, object->cpuset, HWLOC_OBJ_PACKAGE, nullptr);
    }
    return package == nullptr ? 0 : package->logical_index;
  }

  // Of the memory that hangs on one object the first is the CPUs' own; more of it (HBM, CXL), and any that
  // says what it is, has the CPUs of its parent only by name.
  static v1::NumaKind KindOf(hwloc_obj_t numa) {
    if (Subtype(numa) == "GPUMemory") return v1::NUMA_KIND_GPU_MEMORY;
    if (numa->cpuset == nullptr || hwloc_bitmap_iszero(numa->cpuset)) return v1::NUMA_KIND_MEMORY;
    const bool first = numa->parent == nullptr || numa->parent->memory_first_child == numa;
    return first && Subtype(numa).empty() ? v1::NUMA_KIND_CPU : v1::NUMA_KIND_MEMORY;
  }

  void ReadNuma() {
    for (hwloc_obj_t package = nullptr;
         (package = hwloc_get_next_obj_by_type(tree_, HWLOC_OBJ_PACKAGE, package)) != nullptr;) {
      packages_.insert(package->logical_index);
    }
    std::map<uint32_t, hwloc_obj_t> by_id;
    for (hwloc_obj_t numa = nullptr;
         (numa = hwloc_get_next_obj_by_type(tree_, HWLOC_OBJ_NUMANODE, numa)) != nullptr;) {
      if (numa->os_index <= kMaxCpu) by_id.emplace(numa->os_index, numa);
    }
    for (const auto& [id, numa] : by_id) {
      v1::NumaNode* node = topology_.add_numa();
      node->set_id(id);
      node->set_package(PackageOf(numa));
      node->set_kind(KindOf(numa));
      if (numa->attr != nullptr) node->set_memory_bytes(numa->attr->numanode.local_memory);
      numa_ids_.push_back(id);
      if (node->kind() == v1::NUMA_KIND_GPU_MEMORY) gpu_memory_[Info(numa, "PCIBusID")] = id;
      if (node->kind() != v1::NUMA_KIND_CPU) continue;
      for (uint32_t cpu : Bits(numa->cpuset)) node_of_cpu_.emplace(cpu, topology_.numa_size() - 1);
    }
  }

  // By core, or hardware thread where the machine shows no cores.
  void ReadCores() {
    std::map<uint32_t, CpuList> cores;  // first thread -> threads
    for (hwloc_obj_t pu = nullptr; (pu = hwloc_get_next_obj_by_type(tree_, HWLOC_OBJ_PU, pu)) != nullptr;) {
      if (pu->os_index > kMaxCpu) continue;
      hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(tree_, HWLOC_OBJ_CORE, pu);
      const CpuList threads = core == nullptr ? CpuList{pu->os_index} : Bits(core->cpuset);
      if (!threads.empty()) cores.emplace(threads.front(), threads);
    }
    CpuList homeless;
    for (const auto& [first, threads] : cores) {
      const auto node = node_of_cpu_.find(first);
      int position = node == node_of_cpu_.end() ? -1 : node->second;
      if (position < 0) {
        // Its memory is not shown (a cpuset without it): with the CPUs of its package, else with the first.
        position = AnyCpuNode(PackageOfCpu(first));
        homeless.insert(homeless.end(), threads.begin(), threads.end());
      }
      if (position < 0) continue;
      v1::Core* core = topology_.mutable_numa(position)->add_cores();
      for (uint32_t cpu : threads) core->add_cpus(cpu);
      all_cpus_.insert(all_cpus_.end(), threads.begin(), threads.end());
    }
    all_cpus_ = Normalized(std::move(all_cpus_));
    if (!homeless.empty()) {
      topology_.add_notes(absl::StrCat("CPUs ", FormatCpuList(Normalized(homeless)),
                                       " have no NUMA node of their own; they go with another one"));
    }
  }

  std::optional<uint32_t> PackageOfCpu(uint32_t cpu) {
    hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(tree_, cpu);
    hwloc_obj_t package =
        pu == nullptr ? nullptr : hwloc_get_ancestor_obj_by_type(tree_, HWLOC_OBJ_PACKAGE, pu);
    if (package == nullptr) return std::nullopt;
    return package->logical_index;
  }

  // Position of a NUMA node with CPUs, in that package if there is one; -1: there is none.
  int AnyCpuNode(std::optional<uint32_t> package) const {
    int found = -1;
    for (int i = topology_.numa_size() - 1; i >= 0; --i) {
      if (topology_.numa(i).kind() != v1::NUMA_KIND_CPU) continue;
      const bool better = package.has_value() && topology_.numa(i).package() == *package;
      const bool have = found >= 0 && package.has_value() && topology_.numa(found).package() == *package;
      if (better || !have) found = i;
    }
    return found;
  }

  void ReadDistances() {
    unsigned count = 1;
    hwloc_distances_s* matrix = nullptr;
    const unsigned long latency = HWLOC_DISTANCES_KIND_MEANS_LATENCY;
    if (hwloc_distances_get_by_type(tree_, HWLOC_OBJ_NUMANODE, &count, &matrix, latency, 0) != 0 ||
        count == 0)
      return;
    std::map<uint32_t, unsigned> column;
    for (unsigned i = 0; i < matrix->nbobjs; ++i) {
      if (matrix->objs[i] != nullptr) column[matrix->objs[i]->os_index] = i;
    }
    const bool whole =
        std::all_of(numa_ids_.begin(), numa_ids_.end(), [&](uint32_t id) { return column.count(id) != 0; });
    for (int from = 0; whole && from < topology_.numa_size(); ++from) {
      for (uint32_t to : numa_ids_) {
        const uint64_t value =
            matrix->values[column[topology_.numa(from).id()] * matrix->nbobjs + column[to]];
        topology_.mutable_numa(from)->add_distances(
            static_cast<uint32_t>(std::min<uint64_t>(value, kMaxCpu)));
      }
    }
    hwloc_distances_release(tree_, matrix);
  }

  // ---- devices

  const v1::NumaNode* FindNuma(uint32_t id) const {
    for (const v1::NumaNode& numa : topology_.numa()) {
      if (numa.id() == id) return &numa;
    }
    return nullptr;
  }

  v1::Locality LocalityOf(hwloc_obj_t device) {
    v1::Locality locality;
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(tree_, device);
    if (near == nullptr) return locality;
    std::vector<const v1::NumaNode*>
        nodes;  // without GPUs' memory and, where one has CPUs, without the others
    bool with_cpus = false;
    for (uint32_t id : Bits(near->nodeset)) {
      const v1::NumaNode* numa = FindNuma(id);
      if (numa == nullptr || numa->kind() == v1::NUMA_KIND_GPU_MEMORY) continue;
      nodes.push_back(numa);
      with_cpus |= numa->kind() == v1::NUMA_KIND_CPU;
    }
    if (with_cpus) {
      nodes.erase(std::remove_if(nodes.begin(), nodes.end(),
                                 [](const v1::NumaNode* numa) { return numa->kind() != v1::NUMA_KIND_CPU; }),
                  nodes.end());
    }
    if (nodes.empty()) return locality;
    std::set<uint32_t> packages;
    for (const v1::NumaNode* numa : nodes) packages.insert(numa->package());
    if (packages.size() == 1) locality.set_package(*packages.begin());
    if (nodes.size() != 1) return locality;
    locality.set_numa(nodes.front()->id());
    locality.set_package(nodes.front()->package());
    CpuList of_node;
    for (const v1::Core& core : nodes.front()->cores()) {
      of_node.insert(of_node.end(), core.cpus().begin(), core.cpus().end());
    }
    const CpuList cpus = Intersection(Bits(near->cpuset), Normalized(std::move(of_node)));
    if (with_cpus && !cpus.empty() && near->type != HWLOC_OBJ_NUMANODE && IsPartOf(near, cpus)) {
      locality.set_cpus(FormatCpuList(cpus));
    }
    return locality;
  }

  // The object is smaller than the NUMA node that it is in.
  bool IsPartOf(hwloc_obj_t near, const CpuList& cpus) const {
    size_t size = 0;
    const auto node = node_of_cpu_.find(cpus.front());
    if (node == node_of_cpu_.end()) return false;
    for (const v1::Core& core : topology_.numa(node->second).cores())
      size += static_cast<size_t>(core.cpus_size());
    return near->cpuset != nullptr && cpus.size() < size;
  }

  v1::PciPath PathOf(hwloc_obj_t device) {
    v1::PciPath path;
    std::vector<uint64_t> up;
    hwloc_obj_t bridge = device->parent;
    for (; bridge != nullptr && bridge->type == HWLOC_OBJ_BRIDGE; bridge = bridge->parent) {
      if (bridge->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) break;
      up.push_back(BdfOf(bridge->attr->bridge.upstream.pci).Number());
    }
    // A device below no host bridge is its own.
    hwloc_obj_t root = bridge != nullptr && bridge->type == HWLOC_OBJ_BRIDGE ? bridge : device;
    const auto [it, added] = host_bridges_.emplace(root, host_bridges_.size());
    path.set_host_bridge(static_cast<uint32_t>(it->second));
    path.mutable_bridges()->Add(up.rbegin(), up.rend());
    return path;
  }

  static std::vector<hwloc_obj_t> OsDevices(hwloc_obj_t pci) {
    std::vector<hwloc_obj_t> devices;
    for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
      if (child->type == HWLOC_OBJ_OS_DEVICE) devices.push_back(child);
    }
    return devices;
  }

  // A vendor's runtime, or the kernel's compute node, drives it: what a BMC's screen does not have.
  static bool Computes(const std::vector<hwloc_obj_t>& devices) {
    return std::any_of(devices.begin(), devices.end(), [](hwloc_obj_t device) {
      const std::string kind = Backend(device);
      return kind == "NVML" || kind == "CUDA" || kind == "RSMI" || absl::StartsWith(Name(device), "renderD");
    });
  }

  static std::string Backend(hwloc_obj_t device) {
    const std::string backend = Info(device, "Backend");  // hwloc 1 and some exports have no subtype
    return backend.empty() ? Subtype(device) : backend;
  }

  bool IsGpu(hwloc_obj_t pci, const std::vector<hwloc_obj_t>& devices) const {
    const PciAttributes& attr = pci->attr->pcidev;
    if (gpu_memory_.count(BdfOf(attr).Text()) != 0) return true;  // its memory is a NUMA node
    if (attr.vendor_id != kVendorNvidia && attr.vendor_id != kVendorAmd) return false;
    if (attr.class_id == kClassVga) return Computes(devices);
    return attr.class_id == kClass3d || attr.class_id == kClassDisplay || attr.class_id == kClassAccelerator;
  }

  // In order of PCI address, which is not the order of the tree.
  void ReadDevices() {
    std::map<uint64_t, hwloc_obj_t> by_address;
    for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(tree_, pci)) != nullptr;) {
      by_address.emplace(BdfOf(pci->attr->pcidev).Number(), pci);
    }
    for (const auto& [number, pci] : by_address) {
      const std::vector<hwloc_obj_t> devices = OsDevices(pci);
      if (IsGpu(pci, devices)) {
        AddGpu(pci, devices);
      } else {
        AddNics(pci, devices);
      }
    }
    std::stable_sort(topology_.mutable_nics()->begin(), topology_.mutable_nics()->end(),
                     [](const v1::NicPlace& a, const v1::NicPlace& b) {
                       // mlx5_9 before mlx5_10.
                       return std::tuple(a.pci(), a.name().size(), a.name()) <
                              std::tuple(b.pci(), b.name().size(), b.name());
                     });
    std::sort(topology_.mutable_netdevs()->begin(), topology_.mutable_netdevs()->end());
  }

  void AddGpu(hwloc_obj_t pci, const std::vector<hwloc_obj_t>& devices) {
    v1::GpuPlace* gpu = topology_.add_gpus();
    gpu->set_index(static_cast<uint32_t>(topology_.gpus_size() - 1));
    gpu->set_pci(BdfOf(pci->attr->pcidev).Text());
    *gpu->mutable_locality() = LocalityOf(pci);
    *gpu->mutable_path() = PathOf(pci);
    const auto memory = gpu_memory_.find(gpu->pci());
    if (memory != gpu_memory_.end()) gpu->set_memory_node(memory->second);
    std::vector<std::string> parts;
    for (hwloc_obj_t device : devices) {
      gpu_of_device_.emplace(device, topology_.gpus_size() - 1);
      if (gpu->model().empty()) gpu->set_model(Info(device, "GPUModel"));
      if (gpu->uuid().empty()) gpu->set_uuid(Info(device, "NVIDIAUUID"));
      if (gpu->uuid().empty()) gpu->set_uuid(Info(device, "AMDUUID"));
      if (Backend(device) == "RSMI") parts.push_back(Name(device));
    }
    if (parts.size() < 2) return;  // one device: the GPU itself
    for (const std::string& part : parts) gpu->add_partitions()->set_profile(part);
  }

  void AddNics(hwloc_obj_t pci, const std::vector<hwloc_obj_t>& devices) {
    std::vector<std::string> netdevs;
    std::vector<hwloc_obj_t> cards;
    for (hwloc_obj_t device : devices) {
      const hwloc_obj_osdev_type_t type = device->attr->osdev.type;
      const bool slingshot = pci->attr->pcidev.vendor_id == kVendorCray || Subtype(device) == "Slingshot";
      if (type == HWLOC_OBJ_OSDEV_NETWORK) netdevs.push_back(Name(device));
      if (type == HWLOC_OBJ_OSDEV_OPENFABRICS || (type == HWLOC_OBJ_OSDEV_NETWORK && slingshot)) {
        cards.push_back(device);
      }
    }
    for (hwloc_obj_t card : cards) {
      v1::NicPlace* nic = topology_.add_nics();
      nic->set_name(Name(card));
      nic->set_pci(BdfOf(pci->attr->pcidev).Text());
      if (!netdevs.empty()) nic->set_netdev(netdevs.front());
      *nic->mutable_locality() = LocalityOf(pci);
      *nic->mutable_path() = PathOf(pci);
      const double speed = pci->attr->pcidev.linkspeed * 8000;  // GB/s
      if (speed > 0 && speed < 1e9) nic->set_pci_mbps(static_cast<uint32_t>(std::lround(speed)));
      AddPorts(card, pci->attr->pcidev.class_id, nic);
    }
    if (cards.empty()) {
      for (std::string& netdev : netdevs) topology_.add_netdevs(std::move(netdev));
    }
  }

  // "Port1State" is the number of the verbs: 4 is active, 1 to 3 are on the way there.
  static void AddPorts(hwloc_obj_t card, unsigned class_id, v1::NicPlace* nic) {
    constexpr int kMaxPorts = 8;  // of one device; cards have two
    for (uint32_t number = 1; number <= kMaxPorts; ++number) {
      const std::string state = Info(card, absl::StrCat("Port", number, "State").c_str());
      int value = 0;
      if (!absl::SimpleAtoi(state, &value)) continue;
      v1::NicPort* port = nic->add_ports();
      port->set_number(number);
      port->set_state(value == 4 ? v1::PORT_STATE_ACTIVE : v1::PORT_STATE_DOWN);
      if (class_id == kClassInfiniband) port->set_link_layer(v1::LINK_LAYER_INFINIBAND);
      if (class_id == kClassEthernet) port->set_link_layer(v1::LINK_LAYER_ETHERNET);
    }
  }

  // ---- links between GPUs

  void ReadLinks() {
    constexpr unsigned kMaxMatrices = 64;
    std::vector<hwloc_distances_s*> matrices(kMaxMatrices, nullptr);
    unsigned count = kMaxMatrices;
    if (hwloc_distances_get(tree_, &count, matrices.data(), HWLOC_DISTANCES_KIND_MEANS_BANDWIDTH, 0) != 0)
      return;
    for (unsigned i = 0; i < std::min(count, kMaxMatrices); ++i) {
      const char* name = hwloc_distances_get_name(tree_, matrices[i]);
      if (name != nullptr && absl::string_view(name) == "NVLinkBandwidth") AddLinks(*matrices[i]);
      hwloc_distances_release(tree_, matrices[i]);
    }
  }

  static uint32_t LinksOf(uint64_t mbytes) {
    const uint64_t each =
        mbytes % kNvLinkMbytes != 0 && mbytes % kFirstNvLinkMbytes == 0 ? kFirstNvLinkMbytes : kNvLinkMbytes;
    return static_cast<uint32_t>(std::min<uint64_t>((mbytes + each / 2) / each, kMaxCpu));
  }

  // Direct links; or, through NVSwitches, as many as the GPU with fewer has to them.
  void AddLinks(const hwloc_distances_s& matrix) {
    const unsigned n = matrix.nbobjs;
    std::vector<std::optional<int>> gpu(n);
    std::vector<char> is_switch(n, 0);
    for (unsigned i = 0; i < n; ++i) {
      hwloc_obj_t object = matrix.objs[i];
      if (object == nullptr) continue;
      const auto found = gpu_of_device_.find(object);
      if (found != gpu_of_device_.end()) gpu[i] = found->second;
      is_switch[i] = Subtype(object) == "NVSwitch" ? 1 : 0;
    }
    const int gpus = topology_.gpus_size();
    std::vector<uint32_t> to_switches(static_cast<size_t>(gpus), 0);
    std::map<std::pair<int, int>, uint32_t> direct;
    for (unsigned i = 0; i < n; ++i) {
      if (!gpu[i].has_value()) continue;
      for (unsigned j = 0; j < n; ++j) {
        const uint32_t links = LinksOf(matrix.values[i * n + j]);
        if (is_switch[j] != 0) to_switches[static_cast<size_t>(*gpu[i])] += links;
        if (gpu[j].has_value() && i != j) direct[{*gpu[i], *gpu[j]}] = links;
      }
    }
    for (int i = 0; i < gpus; ++i) {
      v1::GpuPlace* place = topology_.mutable_gpus(i);
      place->clear_nvlinks();
      for (int j = 0; j < gpus; ++j) {
        uint32_t links = std::min(to_switches[static_cast<size_t>(i)], to_switches[static_cast<size_t>(j)]);
        if (const auto found = direct.find({i, j}); found != direct.end())
          links = std::max(links, found->second);
        place->add_nvlinks(i == j ? 0 : links);
      }
    }
  }

  // One that several GPUs have (made anonymous, or zeros) would hide all but one of them from a rank.
  void DropUselessUuids() {
    std::map<std::string, int> count;
    for (const v1::GpuPlace& gpu : topology_.gpus()) ++count[gpu.uuid()];
    bool dropped = false;
    for (v1::GpuPlace& gpu : *topology_.mutable_gpus()) {
      const bool zeros = gpu.uuid().find_first_not_of('0') == std::string::npos;
      if (gpu.uuid().empty() || (count[gpu.uuid()] == 1 && !zeros)) continue;
      gpu.clear_uuid();
      dropped = true;
    }
    if (dropped) topology_.add_notes("GPUs have the same UUID, or zeros; they go by their index");
  }

  hwloc_topology_t tree_;
  v1::NodeTopology topology_;
  std::set<uint32_t> packages_;
  CpuList numa_ids_, all_cpus_;
  std::map<uint32_t, int> node_of_cpu_;         // position in numa
  std::map<std::string, uint32_t> gpu_memory_;  // PCI address -> NUMA node
  std::map<hwloc_obj_t, size_t> host_bridges_;  // numbered as they are met
  std::map<hwloc_obj_t, int> gpu_of_device_;    // position in gpus
};

}  // namespace

absl::StatusOr<v1::NodeTopology> FromTree(hwloc_topology_t loaded) { return TreeReader(loaded).Read(); }

}  // namespace dgxrun
