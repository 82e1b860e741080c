// NCCL_SOCKET_IFNAME, or what NCCL picks without it, on one node.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/nccl/choose_network.h"
#include "launcher/nccl/lint_rules.h"

namespace dgxrun::nccl {
namespace {

std::string InterfacesOf(const NodeNetwork& node) {
  std::vector<std::string> parts;
  for (const NetInterface& one : node.interfaces) {
    if (CarriesJobs(one)) parts.push_back(absl::StrCat(one.name, " (", one.addresses.front().address, ")"));
  }
  return parts.empty() ? "none that can carry a job" : absl::StrJoin(parts, ", ");
}

std::string UseExact(const NodeNetwork& node) { return absl::StrCat("the node has ", InterfacesOf(node)); }

// What is wrong with the interface itself; `rule` and text. Empty: nothing.
void LintOne(const NodeNetwork& node, const NetInterface& one, const std::string& how, bool many_nodes,
             Severity severity, Findings* findings) {
  if (one.state == LinkState::kDown) {
    findings->Add(severity, "ifname-down", node.node,
                  absl::StrCat(how, " takes ", one.name, ", which is down"), UseExact(node));
    return;
  }
  if (!many_nodes) return;
  const bool loopback =
      !one.addresses.empty() && std::all_of(one.addresses.begin(), one.addresses.end(), IsLoopback);
  const bool link_local = !one.addresses.empty() && std::all_of(one.addresses.begin(), one.addresses.end(),
                                                                [](const InterfaceAddress& a) {
                                                                  return IsLinkLocal(a) || IsLoopback(a);
                                                                });
  if (loopback) {
    findings->Add(severity, "ifname-loopback", node.node,
                  absl::StrCat(how, " takes ", one.name, ", which reaches no other node"), UseExact(node));
  } else if (link_local) {
    findings->Add(severity, "ifname-link-local", node.node,
                  absl::StrCat(how, " takes ", one.name, ", whose only addresses are link-local (",
                               one.addresses.front().address, ")"),
                  UseExact(node));
  } else if (!CarriesJobs(one)) {
    findings->Add(severity, "ifname-virtual", node.node,
                  absl::StrCat(how, " takes ", one.name, ", an interface of containers or a tunnel"),
                  UseExact(node));
  }
}

void LintPrefixes(const NodeNetwork& node, const NameList& list, const std::string& value,
                  Findings* findings) {
  if (list.exact || list.exclude) return;
  for (const NameToken& token : list.tokens) {
    std::vector<std::string> taken;
    bool exact = false;
    for (const NetInterface& one : node.interfaces) {
      if (!list.TokenMatches(token, one.name, -1)) continue;
      taken.push_back(one.name);
      exact = exact || one.name == token.name;
    }
    if (taken.size() < 2 || !exact) continue;
    findings->Add(
        Severity::kWarning, "ifname-prefix", node.node,
        absl::StrCat("NCCL_SOCKET_IFNAME=", value, ": ", token.name, " is a prefix and takes ",
                     absl::StrJoin(taken, ", ")),
        absl::StrCat("write NCCL_SOCKET_IFNAME==", token.name, " (socket_ifname = \"=", token.name, "\")"));
  }
}

// A list of HCAs' names for interfaces, the other way round.
void LintDeviceNames(const NodeNetwork& node, const NameList& list, Findings* findings) {
  for (const NameToken& token : list.tokens) {
    const RdmaDevice* device = FindDevice(node, token.name);
    if (device == nullptr || FindInterface(node, token.name) != nullptr) continue;
    findings->Add(Severity::kError, "ifname-hca", node.node,
                  absl::StrCat("NCCL_SOCKET_IFNAME names the RDMA device ", token.name, ", not an interface"),
                  device->netdevs.empty() ? "" : absl::StrCat("its interface is ", device->netdevs.front()));
  }
}

}  // namespace

void LintInterfaces(const LintInput& input, const NodeNetwork& node, Findings* findings) {
  const Environment env = EffectiveEnvironment(node, input.set);
  const std::string value = ValueOf(env, "NCCL_SOCKET_IFNAME");
  const bool many = input.nodes.size() > 1;
  if (value.size() > 1) {
    const NameList list = ParseNameList(value);
    LintDeviceNames(node, list, findings);
    LintPrefixes(node, list, value, findings);
    // With those that are down: to name them is better than "nothing".
    std::vector<const NetInterface*> taken = NcclInterfaces(node, env, 1);
    if (taken.empty()) {
      const std::string family = ValueOf(env, "NCCL_SOCKET_FAMILY");
      Environment any_family = env;
      any_family.erase("NCCL_SOCKET_FAMILY");
      if (!family.empty() && !NcclInterfaces(node, any_family, 1).empty()) {
        findings->Add(Severity::kError, "ifname-family", node.node,
                      absl::StrCat("what NCCL_SOCKET_IFNAME=", value, " takes has no address of ", family),
                      UseExact(node));
        return;
      }
      findings->Add(
          Severity::kError, "ifname-nothing", node.node,
          absl::StrCat("NCCL_SOCKET_IFNAME=", value,
                       " matches no interface with an address; NCCL says `no socket interface found` (2.27: "
                       "`neither AF_INET nor AF_INET6`)"),
          UseExact(node));
      return;
    }
    LintOne(node, *taken.front(), absl::StrCat("NCCL_SOCKET_IFNAME=", value), many, Severity::kError,
            findings);
    return;
  }
  if (!many) return;
  const std::vector<const NetInterface*> picked = NcclInterfaces(node, env, input.nccl_version);
  if (picked.empty()) {
    findings->Add(Severity::kError, "pick-nothing", node.node, "NCCL finds no interface with an address", "");
    return;
  }
  // The launcher writes an exact list, so NCCL's own pick only matters where that could not be done.
  const std::string how = input.nccl_version != 0 && input.nccl_version < kDownIsSkippedSince
                              ? "NCCL by itself (older than 2.28.3)"
                              : "NCCL by itself";
  LintOne(node, *picked.front(), how, many, Severity::kWarning, findings);
}

}  // namespace dgxrun::nccl
