#include "controller/core/verdict.h"

#include <signal.h>

#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "proto/signal_names.h"

namespace dgxrun::core {
namespace {

// kLateNode: the word that a node failed came after we had said stop. Peers that died of it may well have
// been heard first, so it explains victims; but not a rank that failed on its own.
enum class Whose { kOwn, kLateNode, kVictim, kAfterStop };

struct Pattern {
  absl::string_view text;
  absl::string_view source;
};

// What a rank prints when the other side of a collective went away. Each pattern is a victim's mark only in
// comparison: where every rank shows one, the earliest is the cause.
constexpr Pattern kVictimPatterns[] = {
    {"Connection closed by peer", "gloo/transport/tcp/pair.cc: read of 0 bytes"},
    {"Connection reset by peer", "strerror(ECONNRESET): gloo, TCPStore, NCCL sockets"},
    {"Broken pipe", "strerror(EPIPE): gloo and TCPStore writes"},
    {"Application timeout caused pair closure", "gloo/transport/tcp/unbound_buffer.cc"},
    {"Timed out waiting", "gloo/transport/tcp/unbound_buffer.cc: send or recv operation"},
    {"Gloo connectFullMesh failed", "gloo/rendezvous/context.cc: a peer left during set-up"},
    {"remote process exited or there was a network error", "nccl.h: text of ncclRemoteError"},
    {"ncclRemoteError", "torch/csrc/distributed/c10d/NCCLUtils.cpp"},
    {"ncclSystemError", "torch/csrc/distributed/c10d/NCCLUtils.cpp"},
    {"NCCL communicator was aborted", "torch/csrc/distributed/c10d/NCCLUtils.cpp"},
    {"Watchdog caught collective operation timeout", "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"},
    {"DistBackendError", "torch/distributed: error of a process group backend"},
    {"DistNetworkError", "torch/distributed: error of the store's sockets"},
    {"DistStoreError", "torch/distributed: wait on the store timed out"},
    {"failed to recv, got 0 bytes", "torch/csrc/distributed/c10d/socket.h: rank 0's store went away"},
    {"Did the remote server shutdown or crash", "torch/csrc/distributed/c10d/TCPStore.cpp"},
};

// Devices that fail, whatever the program did.
constexpr Pattern kGpuFaultPatterns[] = {
    {"uncorrectable ECC error", "cudaGetErrorString(cudaErrorECCUncorrectable)"},
    {"GPU has fallen off the bus", "NVIDIA driver, Xid 79"},
    {"uncorrectable NVLink error", "cudaGetErrorString(cudaErrorNvlinkUncorrectable)"},
};

template <size_t N>
bool Says(const v1::RankReport& report, const Pattern (&patterns)[N]) {
  for (const Pattern& pattern : patterns) {
    if (absl::StrContains(report.error_message(), pattern.text)) return true;
    for (const std::string& line : report.stderr_tail()) {
      if (absl::StrContains(line, pattern.text)) return true;
    }
  }
  return false;
}

bool Failed(const v1::RankReport& report) {
  return report.state() == v1::RANK_STATE_EXITED &&
         (report.exit().code() != 0 || report.exit().signal() != 0 || report.oom_killed());
}

v1::Cause CauseOf(const v1::RankReport& report) {
  if (report.oom_killed()) return v1::CAUSE_OOM_KILL;
  if (Says(report, kGpuFaultPatterns)) return v1::CAUSE_GPU_FAULT;
  if (report.exit().signal() != 0) return v1::CAUSE_SIGNAL;
  return v1::CAUSE_EXIT_CODE;
}

int WeightOf(v1::Cause cause, int signal) {
  switch (cause) {
    case v1::CAUSE_NODE_LOST:
      return 0;
    case v1::CAUSE_FENCED:
      return 1;
    case v1::CAUSE_SUPERVISOR_LOST:
      return 2;
    case v1::CAUSE_LAUNCH_REFUSED:
      return 3;
    case v1::CAUSE_SPAWN_FAILED:
      return 4;
    case v1::CAUSE_GPU_FAULT:
      return 5;
    case v1::CAUSE_OOM_KILL:
      return 6;
    case v1::CAUSE_SIGNAL:
      return signal == SIGABRT ? 8 : 7;
    case v1::CAUSE_EXIT_CODE:
      return 8;
    case v1::CAUSE_HANG:
      return 9;
    case v1::CAUSE_PREEMPTED:
      return 10;
    case v1::CAUSE_CLIENT_LOST:
      return 11;
    case v1::CAUSE_STOPPED:
      return 12;
    case v1::CAUSE_UNSPECIFIED:
    case v1::Cause_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Cause_INT_MAX_SENTINEL_DO_NOT_USE_:
      return 13;
  }
  return 13;  // a value of a newer version
}

using Key = std::tuple<Whose, int, uint64_t>;

Whose WhoseExit(const AttemptNode& share, const RankInfo& info) {
  // Where the node's supervision failed, ranks died of that, and their exits came with the word of it.
  if (info.told_by_gone && share.gone_cause != v1::CAUSE_UNSPECIFIED) return Whose::kAfterStop;
  if (info.report.after_stop()) return Whose::kAfterStop;
  return LooksLikeVictim(info.report) ? Whose::kVictim : Whose::kOwn;
}

v1::Why WhyOf(const AttemptNode& share, const RankInfo& info) {
  v1::Why why;
  why.set_cause(CauseOf(info.report));
  why.set_rank(static_cast<int32_t>(info.report.rank()));
  why.set_node(share.name);
  why.set_detail(DescribeExit(info.report));
  *why.mutable_stderr_tail() = info.report.stderr_tail();
  *why.mutable_exit() = info.report.exit();
  return why;
}

v1::Why WhyOf(const Attempt& attempt, const Fault& fault) {
  v1::Why why;
  why.set_cause(fault.cause);
  why.set_rank(fault.rank);
  const AttemptNode* share = FindShare(attempt, fault.node);
  why.set_node(share != nullptr ? share->name : fault.node.str());
  why.set_detail(fault.detail);
  return why;
}

}  // namespace

bool LooksLikeVictim(const v1::RankReport& report) {
  if (report.exit().signal() == SIGPIPE) return true;
  return Says(report, kVictimPatterns);
}

std::string DescribeExit(const v1::RankReport& report) {
  std::string text;
  if (report.oom_killed()) {
    text = "killed by the kernel: out of memory";
  } else if (report.exit().signal() != 0) {
    text = absl::StrCat("killed by ", SignalName(report.exit().signal()),
                        report.exit().core_dumped() ? " (core dumped)" : "");
  } else {
    text = absl::StrCat("exited with code ", report.exit().code());
  }
  if (!report.error_message().empty()) {
    const std::vector<std::string> lines = absl::StrSplit(report.error_message(), '\n');
    absl::StrAppend(&text, ": ", lines.front());
  }
  return text;
}

std::optional<v1::Why> Judge(const Attempt& attempt) {
  std::optional<Key> best;
  const Fault* fault = nullptr;
  const AttemptNode* node = nullptr;
  const RankInfo* rank = nullptr;
  for (const Fault& f : attempt.faults) {
    const Key key{f.after_stop ? Whose::kLateNode : Whose::kOwn, WeightOf(f.cause, 0), f.order};
    if (best && *best <= key) continue;
    best = key;
    fault = &f;
  }
  for (const auto& share : attempt.nodes) {
    for (const auto& [number, info] : share->ranks) {
      if (!Failed(info.report)) continue;
      const int weight = WeightOf(CauseOf(info.report), info.report.exit().signal());
      // Ranks that end together in one record are told apart by the node's own order.
      const Key key{WhoseExit(*share, info), weight, info.order};
      const bool same_record = best == key && node == &*share && rank != nullptr &&
                               info.report.exit_order() < rank->report.exit_order();
      if (best && *best <= key && !same_record) continue;
      best = key;
      fault = nullptr;
      node = &*share;
      rank = &info;
    }
  }
  if (!best) return std::nullopt;
  v1::Why why = fault != nullptr ? WhyOf(attempt, *fault) : WhyOf(*node, *rank);
  why.set_attempt(attempt.number.value());
  return why;
}

v1::Why StoppedBy(const StopWish& wish, AttemptNo attempt) {
  v1::Why why;
  why.set_cause(v1::CAUSE_STOPPED);
  why.set_rank(-1);
  why.set_attempt(attempt.value());
  why.set_detail(absl::StrCat("stopped by ", wish.user, wish.reason.empty() ? "" : ": ", wish.reason));
  return why;
}

int ExitCodeOf(v1::JobState state, const v1::Why& why, const std::optional<StopWish>& stop) {
  // docs/states.md lists these; 69, 70, 75 to 78 are those of sysexits.h.
  if (state == v1::JOB_STATE_SUCCEEDED) return 0;
  if (state == v1::JOB_STATE_STOPPED) return stop && stop->reason == "Ctrl-C" ? 130 : 143;
  const int rank_code = why.exit().signal() != 0 ? 128 + why.exit().signal() : why.exit().code();
  switch (why.cause()) {
    case v1::CAUSE_EXIT_CODE:
    case v1::CAUSE_SIGNAL:
    case v1::CAUSE_OOM_KILL:
    case v1::CAUSE_GPU_FAULT:
      return rank_code != 0 ? rank_code : 70;
    case v1::CAUSE_NODE_LOST:
    case v1::CAUSE_FENCED:
      return 69;
    case v1::CAUSE_HANG:
      return 76;
    case v1::CAUSE_PREEMPTED:
      return 75;
    case v1::CAUSE_LAUNCH_REFUSED:
      return 78;
    case v1::CAUSE_STOPPED:
      return 143;
    case v1::CAUSE_SPAWN_FAILED:
    case v1::CAUSE_SUPERVISOR_LOST:
    case v1::CAUSE_CLIENT_LOST:
    case v1::CAUSE_UNSPECIFIED:
    case v1::Cause_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Cause_INT_MAX_SENTINEL_DO_NOT_USE_:
      return 70;
  }
  return 70;
}

}  // namespace dgxrun::core
