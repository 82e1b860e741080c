// What one node has for the network of a job: RDMA devices with their ports, network interfaces with their
// addresses, and the few facts of the node that decide whether NCCL can use them. Plain values: the agent
// reads them (read_network.h) and sends them with its inventory, the controller chooses from those of all
// nodes of a job (choose_network.h) and checks what was set by hand (lint.h).
//
// "Not known" has a value of its own everywhere; it is never taken for zero, down or healthy.
#ifndef DGXRUN_LAUNCHER_NCCL_NETWORK_H_
#define DGXRUN_LAUNCHER_NCCL_NETWORK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dgxrun::nccl {

enum class LinkLayer { kUnknown, kInfiniBand, kEthernet };
enum class LinkState { kUnknown, kDown, kUp };

// One entry of a port's GID table that is not empty.
struct Gid {
  uint32_t index = 0;
  std::string gid;   // as sysfs writes it: eight groups of four hex digits
  std::string type;  // "RoCE v2", "IB/RoCE v1"; empty: not known
};

struct RdmaPort {
  uint32_t number = 1;
  LinkState state = LinkState::kUnknown;  // kUp: ACTIVE
  LinkLayer link_layer = LinkLayer::kUnknown;
  uint32_t rate_mbps = 0;  // 0: not known
  std::vector<Gid> gids;   // ascending by index
};

struct RdmaDevice {
  std::string name;  // "mlx5_0", as NCCL_IB_HCA takes it
  std::string pci;   // "0000:18:00.0"; empty: not known
  int numa = -1;     // -1: not known
  std::vector<std::string> netdevs;
  std::vector<RdmaPort> ports;  // ascending by number
};

struct InterfaceAddress {
  std::string interface;
  std::string address;  // "10.0.0.1", "fd00::1", without a zone
  uint32_t prefix = 0;  // bits of the subnet
  bool ipv6 = false;
};

struct NetInterface {
  std::string name;
  LinkState state =
      LinkState::kUnknown;  // operstate; kUp also where it is "unknown" and the carrier is there
  uint32_t speed_mbps = 0;  // 0: not known (virtual ones say nothing)
  bool physical = false;    // has a device behind it
  std::vector<InterfaceAddress> addresses;
};

struct NodeNetwork {
  std::string node;
  std::vector<RdmaDevice> rdma;            // natural order of names: mlx5_9 before mlx5_10
  std::vector<NetInterface> interfaces;    // in the order of getifaddrs(), which is NCCL's
  std::optional<bool> uverbs;              // /dev/infiniband has a uverbs device: a container may lack it
  std::optional<bool> peer_memory;         // nvidia-peermem or nv_peer_mem is loaded
  std::optional<bool> memlock_unlimited;   // of the rank process
  std::optional<uint64_t> shm_free_bytes;  // of /dev/shm
  std::string nccl_conf;                   // text of /etc/nccl.conf; empty: none
  std::string contact_address;             // by which the agent reached the controller; empty: not known
  uint32_t ranks = 0;                      // of the job on this node; 0: not known
};

// Link-local (fe80::/10, 169.254/16) addresses reach nobody beyond one link, loopback nobody at all.
bool IsLinkLocal(const InterfaceAddress& address);
bool IsLoopback(const InterfaceAddress& address);
// "10.0.0.0/24", "fd00:0:0:0::/64": equal for two addresses of one subnet. Empty: no such address.
std::string SubnetOf(const InterfaceAddress& address);

// Of a GID: an IPv4 address in an IPv6 one (::ffff:a.b.c.d), fe80::, all zero.
bool IsIpv4Gid(absl::string_view gid);
bool IsLinkLocalGid(absl::string_view gid);
bool IsEmptyGid(absl::string_view gid);

// The GID that a RoCE port uses: `index` (NCCL_IB_GID_INDEX) where it is not negative, else what NCCL picks
// by itself since 2.21: RoCE v2 and IPv4-mapped first, never a link-local one while another is there.
// nullptr: no such entry.
const Gid* EffectiveGid(const RdmaPort& port, int64_t index);
// RoCE v2, IPv4-mapped, not link-local: what works through routers and with every NCCL.
bool IsGoodGid(const Gid& gid);

bool IsActive(const RdmaPort& port);
const NetInterface* FindInterface(const NodeNetwork& node, absl::string_view name);
const RdmaDevice* FindDevice(const NodeNetwork& node, absl::string_view name);
// The device that owns this network interface; nullptr: none.
const RdmaDevice* DeviceOfNetdev(const NodeNetwork& node, absl::string_view netdev);

const char* Word(LinkLayer layer);                           // "InfiniBand", "Ethernet (RoCE)", "unknown"
std::string RateText(uint32_t rate_mbps);                    // "400 Gb/s"
bool NaturalLess(absl::string_view a, absl::string_view b);  // mlx5_9 < mlx5_10

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_NETWORK_H_
