#include "launcher/nccl/choose_network.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dgxrun::nccl {
namespace {

// Software interfaces that connect nothing beyond their host.
constexpr const char* kHostOnly[] = {"docker", "veth", "br-",  "cni",   "flannel", "virbr", "cali",
                                     "cilium", "tunl", "kube", "lxc",   "podman",  "wg",    "tailscale",
                                     "tun",    "tap",  "ifb",  "dummy", "lo"};

bool UsableAddress(const InterfaceAddress& address) { return !IsLinkLocal(address) && !IsLoopback(address); }

struct Candidate {
  const NetInterface* interface = nullptr;
  const InterfaceAddress* address = nullptr;
};

std::vector<Candidate> Candidates(const NodeNetwork& node, const Environment& set) {
  const std::string family = ValueOf(set, "NCCL_SOCKET_FAMILY");
  const std::string ifname = ValueOf(set, "NCCL_SOCKET_IFNAME");
  const NameList list = ParseNameList(ifname);
  std::vector<Candidate> found;
  for (const NetInterface& interface : node.interfaces) {
    if (ifname.size() > 1 ? !list.Takes(interface.name, -1) : !CarriesJobs(interface)) continue;
    for (const InterfaceAddress& address : interface.addresses) {
      if (!UsableAddress(address)) continue;
      if ((family == "AF_INET" && address.ipv6) || (family == "AF_INET6" && !address.ipv6)) continue;
      found.push_back({&interface, &address});
    }
  }
  return found;
}

// One subnet, and each node's way into it.
struct Common {
  std::string subnet;
  std::vector<Candidate> nodes;
  size_t contacts = 0;   // nodes whose contact address is in it
  uint32_t slowest = 0;  // of the nodes' interfaces; 0: not known
  bool ipv6 = false;
  bool ipoib = false;
};

std::vector<Common> CommonSubnets(const std::vector<NodeNetwork>& nodes, const Environment& set) {
  std::vector<Common> all;
  for (const Candidate& first : Candidates(nodes[0], set)) {
    Common common{SubnetOf(*first.address), {}, 0, UINT32_MAX, first.address->ipv6, false};
    const bool seen =
        std::any_of(all.begin(), all.end(), [&](const Common& one) { return one.subnet == common.subnet; });
    if (common.subnet.empty() || seen) continue;
    for (const NodeNetwork& node : nodes) {
      std::optional<Candidate> mine;
      for (const Candidate& one : Candidates(node, set)) {
        if (SubnetOf(*one.address) != common.subnet) continue;
        const bool contact = !node.contact_address.empty() && one.address->address == node.contact_address;
        if (!mine || contact) mine = one;
        if (contact) ++common.contacts;
      }
      if (!mine) break;
      common.nodes.push_back(*mine);
      common.slowest = std::min(common.slowest, mine->interface->speed_mbps);
      common.ipoib = common.ipoib || absl::StartsWith(mine->interface->name, "ib");
    }
    if (common.nodes.size() == nodes.size()) all.push_back(std::move(common));
  }
  return all;
}

// Whether `a` is to be preferred. For sockets the speed counts; for a bootstrap, that it is known to work.
bool Better(const Common& a, const Common& b, bool for_sockets) {
  if (for_sockets && a.slowest != b.slowest) return a.slowest > b.slowest;
  if (a.contacts != b.contacts) return a.contacts > b.contacts;
  if (a.ipv6 != b.ipv6) return !a.ipv6;
  if (a.ipoib != b.ipoib) return !a.ipoib;
  return a.slowest > b.slowest;
}

std::optional<Candidate> ByContact(const NodeNetwork& node, const Environment& set) {
  for (const Candidate& one : Candidates(node, set)) {
    if (!node.contact_address.empty() && one.address->address == node.contact_address) return one;
  }
  return std::nullopt;
}

void ChooseInterface(const std::vector<NodeNetwork>& nodes, const NetworkRequest& request,
                     NetworkChoice* choice) {
  std::vector<Common> common = CommonSubnets(nodes, request.set);
  const bool for_sockets = choice->transport == Transport::kSocket;
  std::vector<Candidate> picked;
  if (!common.empty()) {
    const auto best = std::min_element(common.begin(), common.end(), [&](const Common& a, const Common& b) {
      return Better(a, b, for_sockets);
    });
    picked = best->nodes;
    choice->notes.push_back(absl::StrCat("interface: ", picked[0].interface->name, ", in ", best->subnet,
                                         ", which every node is in"));
  } else {
    for (const NodeNetwork& node : nodes) {
      const std::optional<Candidate> one = ByContact(node, request.set);
      if (!one) {
        choice->warnings.push_back(absl::StrCat("no subnet that all nodes are in, and node ", node.node,
                                                " has no interface that reached the controller: NCCL picks "
                                                "by itself. Set socket_ifname in [nccl]"));
        return;
      }
      picked.push_back(*one);
    }
    choice->notes.push_back("interface: no subnet that all nodes are in; each node's way to the controller");
  }
  const bool ipv6 =
      std::all_of(picked.begin(), picked.end(), [](const Candidate& one) { return one.address->ipv6; });
  for (size_t i = 0; i < picked.size(); ++i) {
    NodeChoice& node = choice->nodes[i];
    node.interface = picked[i].interface->name;
    node.address = picked[i].address->address;
    node.env["NCCL_SOCKET_IFNAME"] = absl::StrCat("=", node.interface);
    node.env["GLOO_SOCKET_IFNAME"] = node.interface;  // whole names, no `=`
    if (ipv6) node.env["NCCL_SOCKET_FAMILY"] = "AF_INET6";
  }
}

// The ports of one node, and why some were left.
std::vector<PortRef> PortsOf(const NodeNetwork& node, LinkLayer layer, const NetworkRequest& request,
                             NetworkChoice* choice) {
  std::vector<PortRef> ports;
  const auto rails = request.rails.find(node.node);
  const bool by_hand = request.set.contains("NCCL_IB_HCA");
  for (const PortRef& ref : UsablePorts(node, ValueOf(request.set, "NCCL_IB_HCA"))) {
    if (ref.port->link_layer != layer) continue;
    if (layer == LinkLayer::kEthernet && !by_hand) {
      const Gid* gid = EffectiveGid(*ref.port, -1);
      if (gid == nullptr || !IsGoodGid(*gid)) {
        choice->warnings.push_back(absl::StrCat("node ", node.node, ": ", PortName(ref),
                                                " has no RoCE v2 address of IPv4; it is not used"));
        continue;
      }
    }
    ports.push_back(ref);
  }
  if (by_hand) return ports;
  // The plan's cards where it is known; its ranks are bound to them.
  if (rails != request.rails.end() && !rails->second.empty()) {
    std::vector<PortRef> planned;
    for (const PortRef& ref : ports) {
      if (std::find(rails->second.begin(), rails->second.end(), ref.device->name) != rails->second.end()) {
        planned.push_back(ref);
      }
    }
    if (!planned.empty()) return planned;
    choice->warnings.push_back(absl::StrCat("node ", node.node, ": none of the cards of the plan (",
                                            absl::StrJoin(rails->second, ", "), ") has an ACTIVE ",
                                            Word(layer), " port"));
  }
  uint32_t fastest = 0;
  for (const PortRef& ref : ports) fastest = std::max(fastest, ref.port->rate_mbps);
  std::vector<PortRef> fast;
  for (const PortRef& ref : ports) {
    if (ref.port->rate_mbps == fastest) {
      fast.push_back(ref);
    } else {
      choice->notes.push_back(absl::StrCat("node ", node.node, ": ", PortName(ref), " (",
                                           RateText(ref.port->rate_mbps), ") is slower than the others (",
                                           RateText(fastest), "); it is not used"));
    }
  }
  return fast;
}

bool OffByHand(const Environment& set) {
  bool clean = false;
  if (NcclNumber(ValueOf(set, "NCCL_IB_DISABLE"), &clean) != 0) return true;
  const std::string net = ValueOf(set, "NCCL_NET");
  return !net.empty() && !absl::EqualsIgnoreCase(net, "IB");
}

// Nodes that have an ACTIVE port of the layer which a rank can open.
std::vector<bool> Having(const std::vector<NodeNetwork>& nodes, LinkLayer layer, const Environment& set) {
  std::vector<bool> having;
  for (const NodeNetwork& node : nodes) {
    const std::vector<PortRef> ports = UsablePorts(node, ValueOf(set, "NCCL_IB_HCA"));
    having.push_back(node.uverbs.value_or(true) &&
                     std::any_of(ports.begin(), ports.end(),
                                 [&](const PortRef& ref) { return ref.port->link_layer == layer; }));
  }
  return having;
}

std::string NamesWhere(const std::vector<NodeNetwork>& nodes, const std::vector<bool>& which, bool value) {
  std::vector<std::string> names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (which[i] == value) names.push_back(nodes[i].node);
  }
  constexpr size_t kShown = 8;  // a line of a report
  const size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(std::min(names.size(), kShown));
  return absl::StrCat(absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// One index that is a good GID on every port of the node, for an NCCL that does not look for it.
std::optional<uint32_t> OneGidIndex(const std::vector<PortRef>& ports) {
  std::optional<uint32_t> index;
  for (const PortRef& ref : ports) {
    const Gid* gid = EffectiveGid(*ref.port, -1);
    if (gid == nullptr || !IsGoodGid(*gid) || (index && *index != gid->index)) return std::nullopt;
    index = gid->index;
  }
  return index;
}

void SetRdma(const std::vector<NodeNetwork>& nodes, LinkLayer layer, const NetworkRequest& request,
             NetworkChoice* choice) {
  std::set<size_t> counts;
  std::vector<std::vector<PortRef>> ports;
  for (const NodeNetwork& node : nodes) {
    ports.push_back(PortsOf(node, layer, request, choice));
    counts.insert(ports.back().size());
  }
  if (*counts.begin() == 0) {
    choice->transport = Transport::kSocket;
    choice->warnings.push_back("RDMA is not used: a node has no port that is fit for it (see above)");
    return;
  }
  choice->transport = layer == LinkLayer::kInfiniBand ? Transport::kInfiniBand : Transport::kRoce;
  if (counts.size() > 1) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < nodes.size() && i < 8; ++i) {
      parts.push_back(absl::StrCat(nodes[i].node, " has ", ports[i].size()));
    }
    choice->warnings.push_back(absl::StrCat("the number of RDMA ports differs between nodes (",
                                            absl::StrJoin(parts, ", "),
                                            "): NCCL may hang or run at the least"));
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    NodeChoice& node = choice->nodes[i];
    for (const PortRef& ref : ports[i]) node.ports.push_back(PortName(ref));
    node.env["NCCL_IB_HCA"] = absl::StrCat("=", absl::StrJoin(node.ports, ","));
    // A plugin of another maker has a name of its own.
    if (!request.set.contains("NCCL_NET_PLUGIN")) node.env["NCCL_NET"] = "IB";
    const std::optional<uint32_t> index = OneGidIndex(ports[i]);
    if (layer == LinkLayer::kEthernet && index && request.nccl_version != 0 &&
        request.nccl_version < kDynamicGidSince) {
      node.env["NCCL_IB_GID_INDEX"] = absl::StrCat(*index);
    }
  }
  choice->notes.push_back(absl::StrCat("RDMA: ", Word(layer), ", ", ports[0].size(), " ports on ",
                                       nodes[0].node, " of ", RateText(ports[0][0].port->rate_mbps)));
}

void ChooseTransport(const std::vector<NodeNetwork>& nodes, const NetworkRequest& request,
                     NetworkChoice* choice) {
  choice->transport = Transport::kSocket;
  if (OffByHand(request.set)) {
    choice->notes.push_back("RDMA is turned off by NCCL_IB_DISABLE or NCCL_NET");
    return;
  }
  for (LinkLayer layer : {LinkLayer::kInfiniBand, LinkLayer::kEthernet}) {
    const std::vector<bool> having = Having(nodes, layer, request.set);
    if (std::find(having.begin(), having.end(), false) == having.end()) {
      SetRdma(nodes, layer, request, choice);
      return;
    }
    if (std::find(having.begin(), having.end(), true) != having.end()) {
      choice->warnings.push_back(absl::StrCat(
          "nodes without an ACTIVE ", Word(layer),
          " port that a rank can open: ", NamesWhere(nodes, having, false), "; the others have one"));
    }
  }
  if (request.require_rdma || absl::EqualsIgnoreCase(ValueOf(request.set, "NCCL_NET"), "IB")) {
    choice->warnings.push_back("RDMA is asked for, but not every node has it: NCCL will refuse to start");
    return;
  }
  choice->notes.push_back("no RDMA that all nodes have: NCCL uses TCP sockets");
}

}  // namespace

const char* Word(Transport transport) {
  switch (transport) {
    case Transport::kLocal:
      return "local";
    case Transport::kInfiniBand:
      return "InfiniBand";
    case Transport::kRoce:
      return "RoCE";
    case Transport::kSocket:
      return "sockets";
  }
  return "";
}

bool CarriesJobs(const NetInterface& interface) {
  if (interface.state == LinkState::kDown) return false;
  if (!interface.physical) {
    for (const char* prefix : kHostOnly) {
      if (absl::StartsWith(interface.name, prefix)) return false;
    }
  }
  return std::any_of(interface.addresses.begin(), interface.addresses.end(), UsableAddress);
}

NetworkChoice ChooseNetwork(const std::vector<NodeNetwork>& nodes, const NetworkRequest& request) {
  NetworkChoice choice;
  for (const NodeNetwork& node : nodes) choice.nodes.push_back({node.node, {}, "", node.contact_address, {}});
  if (nodes.size() < 2) return choice;
  ChooseTransport(nodes, request, &choice);
  if (request.require_rdma) {
    for (NodeChoice& node : choice.nodes) node.env["NCCL_NET"] = "IB";
  }
  ChooseInterface(nodes, request, &choice);
  for (NodeChoice& node : choice.nodes) {
    for (const auto& [name, value] : request.set) node.env.erase(name);
  }
  return choice;
}

}  // namespace dgxrun::nccl
