#include "agent/inventory.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/driver_files.h"

namespace dgxrun::agent {
namespace {

constexpr char kNvidiaVendor[] = "0x10de";
constexpr char kDisplayClass[] = "0x03";    // display controllers: VGA (0x0300) and 3D (0x0302)
constexpr int kMaxCpus = 1 << 16;           // the kernel's NR_CPUS stays below
constexpr long kCgroup2Magic = 0x63677270;  // linux/magic.h, CGROUP2_SUPER_MAGIC

std::string ReadLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

bool IsGlobal(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const uint32_t ip = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    return (ip >> 24) != 127 && (ip >> 16) != 0xa9fe && (ip >> 28) < 0xe && ip != 0;
  }
  if (address->sa_family == AF_INET6) {
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return !IN6_IS_ADDR_LOOPBACK(&ip) && !IN6_IS_ADDR_LINKLOCAL(&ip) && !IN6_IS_ADDR_MULTICAST(&ip) &&
           !IN6_IS_ADDR_UNSPECIFIED(&ip) && !IN6_IS_ADDR_V4MAPPED(&ip);
  }
  return false;
}

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* ip = address->sa_family == AF_INET
                       ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                       : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  inet_ntop(address->sa_family, ip, text.data(), text.size());
  return text.data();
}

absl::StatusOr<std::vector<DriverGpu>> AskDriver(const std::vector<std::string>& pci, bool quick) {
  // Without a device on the bus it has nothing to say, and NVML would cost its start-up time.
  if (pci.empty()) return std::vector<DriverGpu>();
  if (quick) {
    if (auto gpus = ReadDriverFiles(pci, DriverFiles()); gpus.ok()) return gpus;
  }
  return ReadNvml();
}

std::string CgroupKind(const std::string& parent) {
  struct statfs fs;
  if (parent.empty() || statfs(parent.c_str(), &fs) != 0) return "none";
  return fs.f_type == kCgroup2Magic ? "v2" : "v1";
}

}  // namespace

std::vector<std::string> NvidiaPciDevices(const std::string& sysfs) {
  std::vector<std::string> devices;
  std::error_code error;
  std::filesystem::directory_iterator it(sysfs + "/bus/pci/devices", error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    if (ReadLine(it->path() / "vendor") != kNvidiaVendor) continue;
    if (absl::StartsWith(ReadLine(it->path() / "class"), kDisplayClass))
      devices.push_back(it->path().filename());
  }
  std::sort(devices.begin(), devices.end());  // fixed-width hex: text order is PCI order
  return devices;
}

void FillGpus(const std::vector<std::string>& pci, const absl::StatusOr<std::vector<DriverGpu>>& driver,
              int declared, v1::Inventory* inventory) {
  inventory->set_pci_gpus(static_cast<uint32_t>(pci.size()));
  std::vector<DriverGpu> usable;
  if (!pci.empty() && !driver.ok()) {
    inventory->set_gpu_error(
        absl::StrCat(pci.size(), " NVIDIA device(s) on the PCI bus, but ", driver.status().message()));
  } else if (driver.ok()) {
    usable = *driver;
    std::sort(usable.begin(), usable.end(), [](const auto& a, const auto& b) { return a.pci < b.pci; });
    std::vector<std::string> hidden;
    for (const std::string& device : pci) {
      const bool seen =
          std::any_of(usable.begin(), usable.end(), [&](const DriverGpu& g) { return g.pci == device; });
      if (!seen) hidden.push_back(device);
    }
    if (!hidden.empty()) {
      inventory->set_gpu_error(absl::StrCat(pci.size(),
                                            " NVIDIA device(s) on the PCI bus, but the driver shows ",
                                            usable.size(), "; not ", absl::StrJoin(hidden, ", ")));
    }
  }
  if (declared >= 0) {
    inventory->set_declared(true);
    if (usable.size() > static_cast<size_t>(declared)) usable.resize(static_cast<size_t>(declared));
    // Slots without a device only where the machine has none at all: a broken driver must not be papered
    // over.
    if (pci.empty()) usable.resize(static_cast<size_t>(declared));
  }
  for (size_t i = 0; i < usable.size(); ++i) {
    v1::Gpu* gpu = inventory->add_gpus();
    gpu->set_index(static_cast<uint32_t>(i));
    gpu->set_pci(usable[i].pci);
    gpu->set_uuid(usable[i].uuid);
    gpu->set_model(usable[i].model);
    gpu->set_memory_bytes(usable[i].memory_bytes);
  }
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  for (int size = 1024; size <= kMaxCpus; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(size),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(size);
    if (sched_getaffinity(0, bytes, set.get()) != 0) continue;  // EINVAL: the kernel's set is larger
    for (int cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    }
    break;
  }
  return cpus;
}

uint32_t PhysicalCores(const std::string& sysfs, const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (int cpu : cpus) {
    const std::string topology = absl::StrCat(sysfs, "/devices/system/cpu/cpu", cpu, "/topology/");
    // All hardware threads of a core name the same set of siblings.
    std::string core = ReadLine(topology + "core_cpus_list");
    if (core.empty()) core = ReadLine(topology + "thread_siblings_list");  // before 5.3
    cores.insert(core.empty() ? absl::StrCat("cpu", cpu) : core);
  }
  return std::max<uint32_t>(1, static_cast<uint32_t>(cores.size()));
}

std::vector<std::string> GlobalAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::map<std::pair<unsigned int, int>, std::vector<std::string>> by_interface;  // (index, v4 before v6)
  for (const ifaddrs* it = list; it != nullptr; it = it->ifa_next) {
    constexpr unsigned int kUsable = IFF_UP | IFF_RUNNING;
    if (it->ifa_addr == nullptr || (it->ifa_flags & kUsable) != kUsable ||
        (it->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    if (!IsGlobal(it->ifa_addr)) continue;
    const int family = it->ifa_addr->sa_family == AF_INET ? 0 : 1;
    by_interface[{if_nametoindex(it->ifa_name), family}].push_back(AddressText(it->ifa_addr));
  }
  std::vector<std::string> addresses;
  for (auto& [where, texts] : by_interface) addresses.insert(addresses.end(), texts.begin(), texts.end());
  return addresses;
}

v1::Inventory ReadInventory(const InventoryOptions& options) {
  v1::Inventory inventory;
  std::string sysfs = options.sysfs;
  if (sysfs.empty()) {
    const char* from_env = getenv("DGXRUN_SYSFS");
    sysfs = from_env == nullptr || *from_env == '\0' ? "/sys" : from_env;
  }
  const std::vector<std::string> pci = NvidiaPciDevices(sysfs);
  FillGpus(pci, AskDriver(pci, options.quick), options.declared_gpus, &inventory);
  const std::vector<int> cpus = AllowedCpus();
  inventory.set_allowed_cpus(std::max<uint32_t>(1, static_cast<uint32_t>(cpus.size())));
  inventory.set_allowed_cores(PhysicalCores(sysfs, cpus));
  if (!options.address.empty()) inventory.add_addresses(options.address);
  for (const std::string& address : GlobalAddresses()) {
    if (address != options.address) inventory.add_addresses(address);
  }
  struct sysinfo memory;
  if (sysinfo(&memory) == 0) inventory.set_memory_bytes(uint64_t{memory.totalram} * memory.mem_unit);
  struct utsname system;
  if (uname(&system) == 0) inventory.set_kernel(system.release);
  inventory.set_cgroup(CgroupKind(options.cgroup_parent));
  return inventory;
}

}  // namespace dgxrun::agent
