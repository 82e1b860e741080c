#include "launcher/nccl/log_judge.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dgxrun::nccl {
namespace {

constexpr size_t kMaxFindings = 64;  // of NCCL's own warnings; they repeat each other
constexpr int kNvlinkNeeds = 21200;  // the first that knows NVLink 4 (H100)

using Logs = std::vector<std::pair<int, RankLog>>;

uint32_t Channels(const RankLog& log, HopKind kind) {
  const auto found = log.hops.find(kind);
  return found == log.hops.end() ? 0 : found->second.channels;
}

bool IsRdma(Transport transport) {
  return transport == Transport::kInfiniBand || transport == Transport::kRoce;
}

// The words of NCCL's graph for a way through PCIe or the CPU.
bool IsPcie(const std::string& path) {
  return path == "PIX" || path == "PXB" || path == "PHB" || path == "SYS";
}

template <typename Predicate>
std::vector<int> RanksWhere(const Logs& logs, Predicate predicate) {
  std::vector<int> ranks;
  for (const auto& [rank, log] : logs) {
    if (predicate(log)) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

const RankLog& LogOf(const Logs& logs, int rank) {
  return std::find_if(logs.begin(), logs.end(), [&](const auto& one) { return one.first == rank; })->second;
}

void JudgeSocket(const Logs& logs, const LogExpectation& expected, std::vector<LogFinding>* out) {
  const std::vector<int> ranks = RanksWhere(logs, [](const RankLog& log) { return log.network == "Socket"; });
  if (IsRdma(expected.transport) && !ranks.empty()) {
    const RankLog& log = LogOf(logs, ranks[0]);
    const bool no_verbs = std::any_of(log.warnings.begin(), log.warnings.end(),
                                      [](const LogWarning& one) { return one.cause == LogCause::kNoVerbs; });
    out->push_back({"socket", ranks,
                    absl::StrCat("NCCL uses TCP sockets although ", Word(expected.transport), " was expected",
                                 log.no_ib_device ? " (`NET/IB : No device found.`)" : ""),
                    no_verbs ? "libibverbs is missing: install rdma-core in the image"
                    : log.no_ib_device
                        ? "give the container its RDMA devices (--device /dev/infiniband); check NCCL_IB_HCA"
                        : "check NCCL_IB_HCA and NCCL_IB_DISABLE; NCCL_NET=IB makes it fail in place of it"});
  }
  if (expected.interfaces.empty()) return;
  const auto wrong = [&](const RankLog& log) {
    return log.network == "Socket" && std::any_of(log.nics.begin(), log.nics.end(), [&](const auto& nic) {
             return std::find(expected.interfaces.begin(), expected.interfaces.end(), nic.first) ==
                    expected.interfaces.end();
           });
  };
  const std::vector<int> others = RanksWhere(logs, wrong);
  if (others.empty()) return;
  std::vector<std::string> names;
  for (const auto& [name, use] : LogOf(logs, others[0]).nics) names.push_back(name);
  out->push_back({"interface", others,
                  absl::StrCat("NCCL's data goes over ", absl::StrJoin(names, ", "), ", not over ",
                               absl::StrJoin(expected.interfaces, ", "), ": the management port?"),
                  absl::StrCat("set NCCL_SOCKET_IFNAME==", expected.interfaces[0])});
}

void JudgeGdr(const Logs& logs, const LogExpectation& expected, std::vector<LogFinding>* out) {
  if (!IsRdma(expected.transport) || !expected.gdr) return;
  const std::vector<int> ranks = RanksWhere(logs, [](const RankLog& log) {
    const auto net = log.hops.find(HopKind::kNet);
    return log.network != "Socket" && net != log.hops.end() && net->second.channels > 0 &&
           net->second.gdr == 0;
  });
  if (ranks.empty()) return;
  out->push_back(
      {"no-gdr", ranks, "no GPUDirect RDMA: data between nodes goes through host memory",
       "load nvidia-peermem (or an open kernel module with dma-buf); check that GPU and card share a PCIe "
       "switch, and ACS"});
}

void JudgeNvlink(const Logs& logs, const LogExpectation& expected, std::vector<LogFinding>* out) {
  if (!expected.nvlink) return;
  const auto say = [&](const std::vector<int>& ranks, const std::string& what) {
    if (ranks.empty()) return;
    const int version = NcclVersionNumber(LogOf(logs, ranks[0]).version);
    out->push_back(
        {"no-nvlink", ranks, absl::StrCat("NCCL uses ", what, " between GPUs that have NVLink"),
         version != 0 && version < kNvlinkNeeds
             ? "this NCCL may be too old for these GPUs: update it"
             : "check nvidia-fabricmanager, NCCL_P2P_DISABLE, and that every rank sees all GPUs of the job"});
  };
  say(RanksWhere(logs, [](const RankLog& log) { return Channels(log, HopKind::kShm) > 0; }),
      "host memory (SHM)");
  say(RanksWhere(
          logs,
          [](const RankLog& log) { return Channels(log, HopKind::kP2p) > 0 && IsPcie(log.path_inside); }),
      "PCIe");
}

// What all ranks should have in common.
void JudgeDisagreement(const Logs& logs, std::vector<LogFinding>* out) {
  std::map<std::string, std::vector<int>> networks, versions, sizes;
  for (const auto& [rank, log] : logs) {
    if (!log.network.empty()) networks[log.network].push_back(rank);
    if (!log.version.empty()) versions[log.version].push_back(rank);
    if (!log.ib_ports.empty()) sizes[absl::StrCat(log.ib_ports.size(), " RDMA ports")].push_back(rank);
  }
  const auto say = [&](const std::map<std::string, std::vector<int>>& groups, const char* rule,
                       const char* what, const char* fix) {
    if (groups.size() < 2) return;
    // The smaller groups are the odd ones.
    const auto most = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    std::vector<int> odd;
    std::vector<std::string> parts;
    for (const auto& [value, ranks] : groups) {
      if (value != most->first) odd.insert(odd.end(), ranks.begin(), ranks.end());
      parts.push_back(absl::StrCat(value, " on ", ranks.size(), ranks.size() == 1 ? " rank" : " ranks"));
    }
    std::sort(odd.begin(), odd.end());
    out->push_back(
        {rule, odd, absl::StrCat("ranks disagree on ", what, ": ", absl::StrJoin(parts, ", ")), fix});
  };
  say(networks, "disagree", "the network",
      "the job will hang: make the RDMA devices or NCCL_NET the same on all nodes");
  say(versions, "version", "the version of NCCL", "use the same environment on all nodes");
  say(sizes, "ports", "the number of RDMA ports", "name in NCCL_IB_HCA ports that every node has");
}

void JudgeWarnings(const Logs& logs, std::vector<LogFinding>* out) {
  // By cause, or by text where it is not known.
  std::map<std::string, LogFinding> found;
  for (const auto& [rank, log] : logs) {
    for (const LogWarning& warning : log.warnings) {
      const std::string advice = Advice(warning.cause);
      const std::string key = advice.empty() ? warning.text : advice;
      if (!found.contains(key) && found.size() >= kMaxFindings) continue;
      LogFinding& finding = found[key];
      if (finding.rule.empty()) finding = {"warning", {}, warning.text, advice};
      if (finding.ranks.empty() || finding.ranks.back() != rank) finding.ranks.push_back(rank);
    }
  }
  for (auto& [key, finding] : found) {
    std::sort(finding.ranks.begin(), finding.ranks.end());
    finding.ranks.erase(std::unique(finding.ranks.begin(), finding.ranks.end()), finding.ranks.end());
    out->push_back(std::move(finding));
  }
}

}  // namespace

std::vector<LogFinding> JudgeLogs(const Logs& logs, const LogExpectation& expected) {
  std::vector<LogFinding> out;
  JudgeSocket(logs, expected, &out);
  JudgeGdr(logs, expected, &out);
  JudgeNvlink(logs, expected, &out);
  JudgeDisagreement(logs, &out);
  JudgeWarnings(logs, &out);
  std::stable_sort(out.begin(), out.end(),
                   [](const LogFinding& a, const LogFinding& b) { return a.rule < b.rule; });
  return out;
}

std::string TransportText(const RankLog& log) {
  std::vector<std::string> parts;
  if (!log.nics.empty()) {
    std::vector<std::string> names;
    uint32_t gdr = 0, channels = 0;
    for (const auto& [name, use] : log.nics) {
      names.push_back(name);
      gdr += use.gdr;
      channels += use.channels;
    }
    parts.push_back(absl::StrCat(log.network, ": ", absl::StrJoin(names, ", "),
                                 gdr == 0 ? "" : (gdr == channels ? " (GDR)" : " (GDR in part)")));
  } else if (!log.network.empty()) {
    parts.push_back(log.network);
  }
  for (const auto& [kind, channels] : log.p2p_kinds) parts.push_back(absl::StrCat("P2P/", kind));
  for (HopKind kind : {HopKind::kShm, HopKind::kNvls, HopKind::kCollNet}) {
    if (Channels(log, kind) > 0) parts.push_back(Word(kind));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace dgxrun::nccl
