// NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_NET and the GIDs on one node; and the node's limits.
#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/nccl/lint_rules.h"

namespace dgxrun::nccl {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kShmPerRank = 64 * kMiB;  // channels' buffers of 9.6 MB each; what the issues saw needed
constexpr uint64_t kShmPerNode = 1024 * kMiB;

std::string DevicesOf(const NodeNetwork& node) {
  std::vector<std::string> parts;
  for (const PortRef& ref : UsablePorts(node, "")) {
    parts.push_back(absl::StrCat(PortName(ref), " (", Word(ref.port->link_layer), ", ",
                                 RateText(ref.port->rate_mbps), ")"));
  }
  return parts.empty() ? "no ACTIVE RDMA port" : absl::StrJoin(parts, ", ");
}

// The list with each netdev's name put into that of the device which owns it; empty: none was a netdev.
std::string Translated(const NodeNetwork& node, const NameList& list) {
  bool any = false;
  std::vector<std::string> names;
  for (const NameToken& token : list.tokens) {
    const RdmaDevice* owner =
        FindDevice(node, token.name) == nullptr ? DeviceOfNetdev(node, token.name) : nullptr;
    any = any || owner != nullptr;
    names.push_back(absl::StrCat(owner != nullptr ? owner->name : token.name,
                                 token.port < 0 ? "" : absl::StrCat(":", token.port)));
  }
  return any ? absl::StrCat(list.exclude ? "^" : "", "=", absl::StrJoin(names, ",")) : "";
}

void LintTokens(const NodeNetwork& node, const std::string& value, Findings* findings) {
  const NameList list = ParseNameList(value);
  const std::string translated = Translated(node, list);
  for (const NameToken& token : list.tokens) {
    std::vector<std::string> taken;
    bool exact = false, active = false;
    for (const RdmaDevice& device : node.rdma) {
      for (const RdmaPort& port : device.ports) {
        if (!list.TokenMatches(token, device.name, static_cast<int>(port.number))) continue;
        if (taken.empty() || taken.back() != device.name) taken.push_back(device.name);
        exact = exact || device.name == token.name;
        active = active || IsActive(port);
      }
    }
    const RdmaDevice* owner = DeviceOfNetdev(node, token.name);
    if (taken.empty() && owner != nullptr) {
      findings->Add(Severity::kError, "hca-netdev", node.node,
                    absl::StrCat("NCCL_IB_HCA names the interface ", token.name,
                                 ", not an RDMA device: ", token.name, " -> ", owner->name),
                    absl::StrCat("write NCCL_IB_HCA=", translated));
    } else if (taken.empty()) {
      findings->Add(list.exclude ? Severity::kNote : Severity::kError, "hca-name", node.node,
                    absl::StrCat("NCCL_IB_HCA names ", token.name, ", which matches no port"),
                    absl::StrCat("the node has ", DevicesOf(node)));
    } else if (!active && !list.exclude) {
      findings->Add(Severity::kError, "hca-down", node.node,
                    absl::StrCat("NCCL_IB_HCA names ", token.name, ", which has no ACTIVE port"),
                    absl::StrCat("the node has ", DevicesOf(node)));
    }
    if (!list.exact && exact && taken.size() > 1) {
      findings->Add(
          Severity::kWarning, "hca-prefix", node.node,
          absl::StrCat("NCCL_IB_HCA=", value, ": ", token.name, " is a prefix and takes ",
                       absl::StrJoin(taken, ", ")),
          absl::StrCat("write NCCL_IB_HCA=", list.exclude ? "^=" : "=", value.substr(list.exclude ? 1 : 0)));
    }
  }
}

void LintGid(const LintInput& input, const NodeNetwork& node, const PortRef& ref, const Environment& env,
             Findings* findings) {
  const std::string text = ValueOf(env, "NCCL_IB_GID_INDEX");
  bool clean = false;
  int64_t index = text.empty() ? -1 : NcclNumber(text, &clean);
  const bool old = input.nccl_version != 0 && input.nccl_version < kDynamicGidSince;
  if (text.empty() && old) index = 0;
  if (ref.port->link_layer == LinkLayer::kInfiniBand || ref.port->gids.empty()) return;
  const Gid* gid = EffectiveGid(*ref.port, index);
  if (gid != nullptr && IsGoodGid(*gid)) return;
  std::vector<std::string> table;
  const Gid* good = nullptr;
  for (const Gid& one : ref.port->gids) {
    table.push_back(
        absl::StrCat(one.index, ": ", one.gid, " ", one.type.empty() ? "unknown type" : one.type));
    if (good == nullptr && IsGoodGid(one)) good = &one;
  }
  const std::string which = index < 0 ? "the GID that NCCL finds" : absl::StrCat("GID index ", index);
  const std::string what = gid == nullptr             ? "is empty"
                           : IsLinkLocalGid(gid->gid) ? "is link-local"
                           : gid->type != "RoCE v2"   ? "is not RoCE v2"
                                                      : "is no IPv4 address";
  findings->Add(
      Severity::kError, "gid", node.node,
      absl::StrCat(PortName(ref), ": ", which, " ", what, " (table: ", absl::StrJoin(table, ", "), ")"),
      good == nullptr ? "give its interface an IPv4 address"
                      : (old ? absl::StrCat("set NCCL_IB_GID_INDEX=", good->index)
                             : std::string("unset NCCL_IB_GID_INDEX; NCCL since 2.21 finds the right one")));
}

void LintKinds(const NodeNetwork& node, const std::vector<PortRef>& ports, Findings* findings) {
  std::set<uint32_t> rates;
  std::set<LinkLayer> layers;
  std::vector<std::string> parts;
  for (const PortRef& ref : ports) {
    rates.insert(ref.port->rate_mbps);
    layers.insert(ref.port->link_layer);
    parts.push_back(
        absl::StrCat(PortName(ref), " ", Word(ref.port->link_layer), " ", RateText(ref.port->rate_mbps)));
  }
  if (layers.size() > 1) {
    findings->Add(Severity::kError, "hca-link-layer", node.node,
                  absl::StrCat("NCCL would use ports of two kinds (", absl::StrJoin(parts, ", "),
                               "): it may end in `Attempted to connect incompatible devices`"),
                  "name those of one kind in NCCL_IB_HCA");
  } else if (rates.size() > 1) {
    findings->Add(Severity::kWarning, "hca-rate", node.node,
                  absl::StrCat("NCCL would use ports of unequal rate (", absl::StrJoin(parts, ", "), ")"),
                  "leave the slow ones (management, storage) out of NCCL_IB_HCA");
  }
}

void LintDisabled(const LintInput& input, const NodeNetwork& node, const Environment& env,
                  Findings* findings) {
  bool clean = false;
  const std::string text = ValueOf(env, "NCCL_IB_DISABLE");
  const bool active = !UsablePorts(node, "").empty();
  if (NcclNumber(text, &clean) != 0 && active && input.nodes.size() > 1) {
    findings->Add(
        Severity::kWarning, "ib-disable", node.node,
        absl::StrCat("NCCL_IB_DISABLE=", text, " though the node has ", DevicesOf(node), ": NCCL uses TCP"),
        "unset it");
  }
  if (absl::EqualsIgnoreCase(ValueOf(env, "NCCL_NET"), "IB") && !active && input.nodes.size() > 1) {
    findings->Add(Severity::kError, "net-ib", node.node,
                  "NCCL_NET=IB, but the node has no ACTIVE RDMA port: NCCL will not start", "");
  }
}

}  // namespace

void LintPorts(const LintInput& input, const NodeNetwork& node, Findings* findings) {
  const Environment env = EffectiveEnvironment(node, input.set);
  const std::string value = ValueOf(env, "NCCL_IB_HCA");
  LintDisabled(input, node, env, findings);
  if (input.nodes.size() < 2) return;
  if (!value.empty()) LintTokens(node, value, findings);
  const std::vector<PortRef> ports = UsablePorts(node, value);
  if (!value.empty() && ports.empty()) {
    findings->Add(
        Severity::kError, "hca-nothing", node.node,
        absl::StrCat("NCCL_IB_HCA=", value, " takes no ACTIVE port: NCCL falls back to TCP without a word"),
        absl::StrCat("the node has ", DevicesOf(node)));
  }
  // Without a list the launcher writes one of one kind (choose_network.h).
  if (!value.empty()) {
    LintKinds(node, ports, findings);
    for (const PortRef& ref : ports) LintGid(input, node, ref, env, findings);
  }
  const bool ipoib = std::any_of(node.interfaces.begin(), node.interfaces.end(), [](const NetInterface& one) {
    return absl::StartsWith(one.name, "ib") && one.state == LinkState::kUp;
  });
  if (node.uverbs.has_value() && !*node.uverbs && (ipoib || !UsablePorts(node, "").empty())) {
    findings->Add(
        Severity::kError, "no-verbs", node.node,
        "there are RDMA ports, but no /dev/infiniband/uverbs*: NCCL says `NET/IB : No device found.` and "
        "uses TCP",
        "give the container its RDMA devices (--device /dev/infiniband) and libibverbs");
  }
}

void LintLimits(const LintInput& input, const NodeNetwork& node, Findings* findings) {
  const uint64_t wanted = std::max(kShmPerNode, node.ranks * kShmPerRank);
  if (input.gpus && node.ranks > 1 && node.shm_free_bytes && *node.shm_free_bytes < wanted) {
    findings->Add(Severity::kWarning, "shm", node.node,
                  absl::StrCat("/dev/shm has ", *node.shm_free_bytes / kMiB, " MiB free; NCCL may need ",
                               wanted / kMiB, " MiB for ", node.ranks, " ranks"),
                  "give the container --shm-size=1g or more; remove /dev/shm/nccl-* that nobody uses");
  }
  if (input.nodes.size() < 2 || UsablePorts(node, "").empty()) return;
  if (node.memlock_unlimited && !*node.memlock_unlimited) {
    findings->Add(Severity::kError, "memlock", node.node,
                  "locked memory is limited for ranks: registration fails with `Cannot allocate memory`",
                  "LimitMEMLOCK=infinity in the agent's unit, ulimit -l unlimited in a shell");
  }
  if (input.gpus && node.peer_memory && !*node.peer_memory) {
    findings->Add(
        Severity::kNote, "peer-memory", node.node,
        "nvidia-peermem is not loaded: GPUDirect RDMA needs it or an open kernel module with dma-buf",
        "modprobe nvidia-peermem");
  }
}

}  // namespace dgxrun::nccl
