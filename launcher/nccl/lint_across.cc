// What differs between the nodes of a job.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/nccl/lint_rules.h"

namespace dgxrun::nccl {
namespace {

constexpr size_t kShown = 8;  // names in one line

std::string Names(const std::vector<std::string>& names) {
  if (names.size() <= kShown) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kShown, ", "), " and ",
                      names.size() - kShown, " more");
}

using Groups = std::map<std::string, std::vector<std::string>>;  // what a node has -> the nodes

std::string Differences(const Groups& groups) {
  std::vector<std::string> parts;
  for (const auto& [what, nodes] : groups) {
    parts.push_back(absl::StrCat(Names(nodes), ": ", what.empty() ? "none" : what));
  }
  return absl::StrJoin(parts, "; ");
}

void LintDevices(const LintInput& input, Findings* findings) {
  Groups names, counts, rails;
  bool by_hand = false;
  for (const NodeNetwork& node : input.nodes) {
    const Environment env = EffectiveEnvironment(node, input.set);
    std::vector<std::string> ports, positions;
    by_hand = by_hand || env.contains("NCCL_IB_HCA");
    for (const PortRef& ref : UsablePorts(node, ValueOf(env, "NCCL_IB_HCA"))) {
      ports.push_back(PortName(ref));
      positions.push_back(absl::StrCat(RateText(ref.port->rate_mbps), " on NUMA node ", ref.device->numa));
    }
    names[absl::StrJoin(ports, ",")].push_back(node.node);
    counts[absl::StrCat(ports.size(), ports.size() == 1 ? " port" : " ports")].push_back(node.node);
    rails[absl::StrJoin(positions, ", ")].push_back(node.node);
  }
  if (counts.contains("0 ports") && counts.size() > 1) {
    findings->Add(
        Severity::kError, "some-without-rdma", "",
        absl::StrCat("nodes without a usable RDMA port beside nodes with one: NCCL hangs at its start (",
                     Differences(counts), ")"),
        "repair the node, leave it out, or set NCCL_NET=Socket for all");
  } else if (counts.size() > 1) {
    // Without a list the launcher's own choice is one; it warns of its own counts.
    findings->Add(by_hand ? Severity::kError : Severity::kWarning, "hca-count", "",
                  absl::StrCat("the number of RDMA ports differs (", Differences(counts),
                               "): NCCL may hang, or run for ever at full load"),
                  "name in NCCL_IB_HCA ports that every node has; repair the node that lacks one");
  } else if (names.size() > 1) {
    findings->Add(by_hand ? Severity::kWarning : Severity::kNote, "hca-names", "",
                  absl::StrCat("the names of the RDMA ports differ (", Differences(names),
                               "): position i of each list must be the same rail"),
                  "check the cabling, or that the order is that of the PCI bus");
  } else if (rails.size() > 1) {
    findings->Add(Severity::kWarning, "rails", "",
                  absl::StrCat("the RDMA ports have the same names, but not the same place or rate (",
                               Differences(rails), "): same-rail traffic would cross switches"),
                  "");
  }
}

void LintConf(const LintInput& input, Findings* findings) {
  Groups texts;
  for (const NodeNetwork& node : input.nodes) {
    std::vector<std::string> lines;
    for (const auto& [name, value] : ParseNcclConf(node.nccl_conf))
      lines.push_back(absl::StrCat(name, "=", value));
    texts[absl::StrJoin(lines, " ")].push_back(node.node);
  }
  if (texts.size() < 2) return;
  findings->Add(Severity::kWarning, "nccl-conf", "",
                absl::StrCat("/etc/nccl.conf differs between nodes (", Differences(texts), ")"),
                "make them the same; the environment wins over them");
}

// NCCL's own picks, or what NCCL_SOCKET_IFNAME gives: the first address of each node against the others'
// subnets.
void LintReach(const LintInput& input, Findings* findings) {
  std::string first_name, first_node;
  std::set<std::string> first;
  for (const NodeNetwork& node : input.nodes) {
    const Environment env = EffectiveEnvironment(node, input.set);
    const std::vector<const NetInterface*> picked = NcclInterfaces(node, env, input.nccl_version);
    if (picked.empty()) continue;
    std::set<std::string> subnets;
    for (const InterfaceAddress& one : picked.front()->addresses) {
      if (!IsLinkLocal(one) && !IsLoopback(one)) subnets.insert(SubnetOf(one));
    }
    if (first_node.empty()) {
      first = subnets;
      first_node = node.node;
      first_name = picked.front()->name;
      continue;
    }
    const bool shared =
        std::any_of(subnets.begin(), subnets.end(), [&](const std::string& s) { return first.contains(s); });
    if (shared) continue;
    const bool ipoib = absl::StartsWith(first_name, "ib") || absl::StartsWith(picked.front()->name, "ib");
    findings->Add(Severity::kWarning, "no-common-subnet", "",
                  absl::StrCat("NCCL's bootstrap would use ", first_name, " on ", first_node, " and ",
                               picked.front()->name, " on ", node.node, ", which share no subnet"),
                  ipoib ? "name the management interface in NCCL_SOCKET_IFNAME: it carries the bootstrap only"
                        : "name an interface that all nodes have in one subnet in NCCL_SOCKET_IFNAME");
    return;
  }
}

// RoCE addresses of one rail in one subnet; InfiniBand ports of one fabric (the upper half of GID 0).
void LintFabric(const LintInput& input, Findings* findings) {
  Groups prefixes;
  for (const NodeNetwork& node : input.nodes) {
    const Environment env = EffectiveEnvironment(node, input.set);
    std::set<std::string> mine;
    for (const PortRef& ref : UsablePorts(node, ValueOf(env, "NCCL_IB_HCA"))) {
      if (ref.port->link_layer != LinkLayer::kInfiniBand || ref.port->gids.empty()) continue;
      mine.insert(ref.port->gids.front().gid.substr(0, 19));  // four groups of four digits
    }
    if (!mine.empty()) prefixes[absl::StrJoin(mine, ",")].push_back(node.node);
  }
  if (prefixes.size() < 2) return;
  findings->Add(Severity::kWarning, "ib-subnet", "",
                absl::StrCat("the InfiniBand subnet prefix differs between nodes (", Differences(prefixes),
                             "): they are in different fabrics"),
                "name ports of one fabric in NCCL_IB_HCA");
}

}  // namespace

void LintAcross(const LintInput& input, Findings* findings) {
  LintDevices(input, findings);
  LintConf(input, findings);
  LintReach(input, findings);
  LintFabric(input, findings);
}

}  // namespace dgxrun::nccl
