#include "launcher/nccl/read_network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun::nccl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEntries = 1024;       // of a folder of sysfs; a node has some tens of devices
constexpr size_t kMaxGids = 256;           // of a port; mlx5 has 256 places, most of them empty
constexpr size_t kMaxConfBytes = 1 << 16;  // of /etc/nccl.conf

std::string ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

std::string ReadText(const fs::path& path, size_t limit) {
  std::ifstream file(path);
  std::string text(limit, '\0');
  file.read(text.data(), static_cast<std::streamsize>(limit));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

std::vector<std::string> Entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator() && names.size() < kMaxEntries; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  std::sort(names.begin(), names.end(), NaturalLess);
  return names;
}

// "400 Gb/sec (4X NDR)" and "2.5 Gb/sec (1X SDR)".
uint32_t RateOf(const std::string& text) {
  double gigabits = 0;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words.size() < 2 || words[1] != "Gb/sec" || !absl::SimpleAtod(words[0], &gigabits)) return 0;
  return gigabits > 0 && gigabits < 1e6 ? static_cast<uint32_t>(gigabits * 1000) : 0;
}

LinkState PortStateOf(const std::string& text) {
  if (text.empty()) return LinkState::kUnknown;
  return absl::EndsWith(text, "ACTIVE") ? LinkState::kUp : LinkState::kDown;  // "4: ACTIVE", "1: DOWN"
}

LinkLayer LinkLayerOf(const std::string& text) {
  if (text == "InfiniBand") return LinkLayer::kInfiniBand;
  if (text == "Ethernet") return LinkLayer::kEthernet;
  return LinkLayer::kUnknown;
}

RdmaPort ReadPort(const fs::path& folder, uint32_t number) {
  RdmaPort port;
  port.number = number;
  port.state = PortStateOf(ReadLine(folder / "state"));
  port.rate_mbps = RateOf(ReadLine(folder / "rate"));
  port.link_layer = LinkLayerOf(ReadLine(folder / "link_layer"));
  for (const std::string& entry : Entries(folder / "gids")) {
    Gid gid;
    if (port.gids.size() == kMaxGids || !absl::SimpleAtoi(entry, &gid.index)) continue;
    gid.gid = ReadLine(folder / "gids" / entry);
    if (IsEmptyGid(gid.gid)) continue;
    gid.type = ReadLine(folder / "gid_attrs/types" / entry);  // an empty place answers EINVAL
    port.gids.push_back(std::move(gid));
  }
  return port;
}

RdmaDevice ReadDevice(const fs::path& folder, const std::string& name) {
  RdmaDevice device;
  device.name = name;
  std::error_code error;
  const fs::path target = fs::read_symlink(folder / "device", error);
  if (!error) device.pci = target.filename();
  if (!absl::SimpleAtoi(ReadLine(folder / "device/numa_node"), &device.numa)) device.numa = -1;
  device.netdevs = Entries(folder / "device/net");
  for (const std::string& entry : Entries(folder / "ports")) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(entry, &number)) device.ports.push_back(ReadPort(folder / "ports" / entry, number));
  }
  return device;
}

LinkState InterfaceState(const fs::path& folder) {
  const std::string state = ReadLine(folder / "operstate");
  if (state == "up") return LinkState::kUp;
  // Loopback, tun and some IPoIB drivers never say more than "unknown"; the carrier tells.
  if (state == "unknown") return ReadLine(folder / "carrier") == "1" ? LinkState::kUp : LinkState::kUnknown;
  return state.empty() ? LinkState::kUnknown : LinkState::kDown;
}

NetInterface ReadInterface(const fs::path& folder, const std::string& name) {
  NetInterface interface;
  interface.name = name;
  interface.state = InterfaceState(folder);
  int64_t speed = 0;  // -1 where the driver does not know
  if (absl::SimpleAtoi(ReadLine(folder / "speed"), &speed) && speed > 0 && speed < 10'000'000) {
    interface.speed_mbps = static_cast<uint32_t>(speed);
  }
  std::error_code error;
  interface.physical = fs::exists(folder / "device", error);
  return interface;
}

uint32_t PrefixOf(const sockaddr* mask, int family) {
  if (mask == nullptr) return family == AF_INET ? 32 : 128;
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  if (family == AF_INET) {
    bytes = reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr);
    size = 4;
  } else {
    bytes = reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr);
    size = 16;
  }
  uint32_t bits = 0;
  for (size_t i = 0; i < size; ++i) bits += static_cast<uint32_t>(__builtin_popcount(bytes[i]));
  return bits;
}

}  // namespace

absl::StatusOr<std::vector<InterfaceAddress>> LocalAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const void* bytes =
        family == AF_INET ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr)
                          : &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    char text[INET6_ADDRSTRLEN];
    if (inet_ntop(family, bytes, text, sizeof(text)) == nullptr) continue;
    found.push_back({one->ifa_name, text, PrefixOf(one->ifa_netmask, family), family == AF_INET6});
  }
  return found;
}

NodeNetwork ReadNodeNetwork(const NetworkRoots& roots, const std::vector<InterfaceAddress>& addresses) {
  NodeNetwork node;
  const fs::path sysfs(roots.sysfs);
  for (const std::string& name : Entries(sysfs / "class/infiniband")) {
    node.rdma.push_back(ReadDevice(sysfs / "class/infiniband" / name, name));
  }
  // NCCL's order first (that of the addresses), then those without an address.
  std::vector<std::string> names;
  for (const InterfaceAddress& address : addresses) names.push_back(address.interface);
  for (const std::string& name : Entries(sysfs / "class/net")) names.push_back(name);
  for (const std::string& name : names) {
    if (FindInterface(node, name) != nullptr) continue;
    NetInterface interface = ReadInterface(sysfs / "class/net" / name, name);
    for (const InterfaceAddress& address : addresses) {
      if (address.interface == name) interface.addresses.push_back(address);
    }
    node.interfaces.push_back(std::move(interface));
  }
  const std::vector<std::string> verbs = Entries(fs::path(roots.dev) / "infiniband");
  node.uverbs = std::any_of(verbs.begin(), verbs.end(),
                            [](const std::string& name) { return absl::StartsWith(name, "uverbs"); });
  std::error_code error;
  node.peer_memory = fs::exists(sysfs / "module/nvidia_peermem/version", error) ||
                     fs::exists(sysfs / "kernel/mm/memory_peers/nv_mem/version", error);
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) node.memlock_unlimited = limit.rlim_cur == RLIM_INFINITY;
  struct statvfs shm {};
  if (statvfs((fs::path(roots.dev) / "shm").c_str(), &shm) == 0) {
    node.shm_free_bytes = static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize;
  }
  node.nccl_conf = ReadText(fs::path(roots.etc) / "nccl.conf", kMaxConfBytes);
  return node;
}

}  // namespace dgxrun::nccl
