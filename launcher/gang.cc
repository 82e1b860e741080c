#include "launcher/gang.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dgxrun {
namespace {

// A grace of years would overflow; nobody waits longer than a day for a SIGTERM.
constexpr uint64_t kMaxGraceMs = 24ull * 3600 * 1000;

}  // namespace

const char* GangStateName(GangState state) {
  switch (state) {
    case GangState::kStarting:
      return "starting";
    case GangState::kRunning:
      return "running";
    case GangState::kStopping:
      return "stopping";
    case GangState::kKilling:
      return "killing";
    case GangState::kGone:
      return "gone";
  }
  return "?";
}

Gang::Gang(const v1::ShimStart& start)
    : job_id_(start.job_id()),
      attempt_(start.attempt()),
      log_dir_(start.log_dir()),
      on_agent_gone_(start.on_agent_gone()),
      lease_ns_(static_cast<int64_t>(start.lease_deadline_ns())) {
  for (const v1::RankPlan& plan : start.plan().ranks()) {
    v1::RankReport& rank = ranks_.emplace_back();
    rank.set_rank(plan.rank());
    rank.set_local_rank(plan.local_rank());
    rank.set_state(v1::RANK_STATE_PENDING);
  }
}

GangActions Gang::Spawned(int64_t now_ns, const std::vector<SpawnedRank>& ranks,
                          const std::vector<std::string>& warnings) {
  GangActions actions;
  if (state_ == GangState::kGone) return actions;
  v1::ShimEvent event;
  for (size_t i = 0; i < ranks_.size() && i < ranks.size(); ++i) {
    ranks_[i].set_pid(ranks[i].pid);
    ranks_[i].set_inner_pid(ranks[i].inner_pid);
    if (ranks_[i].state() == v1::RANK_STATE_PENDING) ranks_[i].set_state(v1::RANK_STATE_RUNNING);
    *event.mutable_started()->add_ranks() = ranks_[i];
  }
  event.mutable_started()->set_log_dir(log_dir_);
  for (const std::string& warning : warnings) event.mutable_started()->add_warnings(warning);
  switch (state_) {
    case GangState::kStarting:
      state_ = GangState::kRunning;
      Report(actions, std::move(event));
      Arm(actions, now_ns);
      break;
    case GangState::kKilling:  // killed while they started: the exits are reported, the start is not
      actions.push_back(KillAll{});
      break;
    case GangState::kRunning:
    case GangState::kStopping:
    case GangState::kGone:
      break;  // a second Spawned says nothing new
  }
  return actions;
}

GangActions Gang::SpawnFailed(int64_t now_ns, const v1::SpawnFailed& failure) {
  GangActions actions;
  if (state_ != GangState::kStarting) return actions;  // killed meanwhile: that is the first cause
  v1::ShimEvent event;
  *event.mutable_spawn_failed() = failure;
  Report(actions, std::move(event));
  Kill(actions, now_ns, v1::CAUSE_SPAWN_FAILED, failure.detail());
  return actions;
}

GangActions Gang::RankExited(int64_t now_ns, const RankExit& exit) {
  GangActions actions;
  if (state_ == GangState::kGone || exit.index >= ranks_.size()) return actions;
  v1::RankReport& rank = ranks_[exit.index];
  if (rank.state() == v1::RANK_STATE_EXITED) return actions;
  // Killed between fork and exec: it never was a rank.
  if (rank.state() == v1::RANK_STATE_PENDING) return actions;
  rank.set_state(v1::RANK_STATE_EXITED);
  *rank.mutable_exit() = exit.exit;
  rank.set_exited_unix_ns(exit.unix_ns);
  rank.set_exit_order(++exits_);
  rank.set_after_stop(state_ == GangState::kStopping || state_ == GangState::kKilling);
  rank.set_oom_killed(exit.oom_killed);
  v1::ShimEvent event;
  *event.mutable_exited() = rank;
  Report(actions, std::move(event));
  // What the ranks left behind dies with them.
  if (AllExited()) Kill(actions, now_ns, v1::CAUSE_UNSPECIFIED, "");
  return actions;
}

GangActions Gang::Stop(int64_t now_ns, uint64_t grace_ms, const std::string& reason) {
  GangActions actions;
  const int64_t end_ns = now_ns + static_cast<int64_t>(std::min(grace_ms, kMaxGraceMs)) * 1'000'000;
  switch (state_) {
    case GangState::kStarting:  // no rank has done anything that it would want to save
      Kill(actions, now_ns, v1::CAUSE_UNSPECIFIED, reason);
      break;
    case GangState::kRunning:
      detail_ = reason;
      if (grace_ms == 0) {
        Kill(actions, now_ns, v1::CAUSE_UNSPECIFIED, reason);
        break;
      }
      state_ = GangState::kStopping;
      stop_ns_ = end_ns;
      actions.push_back(SignalRanks{SIGTERM, true});
      Arm(actions, now_ns);
      break;
    case GangState::kStopping:
      if (grace_ms == 0) {
        Kill(actions, now_ns, v1::CAUSE_UNSPECIFIED, reason);
        break;
      }
      if (end_ns < stop_ns_) {
        stop_ns_ = end_ns;
        Arm(actions, now_ns);
      }
      break;
    case GangState::kKilling:
    case GangState::kGone:
      break;  // cannot be stopped any more than that
  }
  return actions;
}

GangActions Gang::Lease(int64_t now_ns, uint64_t deadline_ns) {
  GangActions actions;
  const auto deadline = static_cast<int64_t>(deadline_ns);
  if (deadline <= lease_ns_) return actions;
  // A lease that came too late does not bring killed ranks back; Tick decides that, not the message.
  lease_ns_ = deadline;
  if (state_ != GangState::kKilling && state_ != GangState::kGone) Arm(actions, now_ns);
  return actions;
}

GangActions Gang::Signal(uint64_t number, int signal) {
  GangActions actions;
  if (number <= last_signal_) return actions;
  last_signal_ = number;
  if (state_ == GangState::kRunning || state_ == GangState::kStopping) {
    actions.push_back(SignalRanks{signal, false});
  }
  return actions;
}

GangActions Gang::Tick(int64_t now_ns) {
  GangActions actions;
  switch (state_) {
    case GangState::kStarting:
    case GangState::kRunning:
    case GangState::kStopping:
      if (lease_ns_ != 0 && now_ns >= lease_ns_) {
        Kill(actions, now_ns, v1::CAUSE_FENCED, "no word from the controller until the lease was over");
      } else if (state_ == GangState::kStopping && now_ns >= stop_ns_) {
        Kill(actions, now_ns, v1::CAUSE_UNSPECIFIED, detail_);
      } else {
        Arm(actions, now_ns);
      }
      break;
    case GangState::kKilling:
      actions.push_back(KillAll{});
      Arm(actions, now_ns);
      break;
    case GangState::kGone:
      break;
  }
  return actions;
}

GangActions Gang::AgentGone(int64_t now_ns) {
  GangActions actions;
  switch (on_agent_gone_) {
    case v1::ON_AGENT_GONE_LEASE:
      break;  // the lease says how long to go on
    case v1::ON_AGENT_GONE_KILL:
    case v1::ON_AGENT_GONE_UNSPECIFIED:
    default:  // proto enums are open: an agent newer than this shim
      Kill(actions, now_ns, v1::CAUSE_CLIENT_LOST, "the dgxrun process is gone");
      break;
  }
  return actions;
}

GangActions Gang::GuardGone(int64_t now_ns) {
  GangActions actions;
  Kill(actions, now_ns, v1::CAUSE_SUPERVISOR_LOST, "the guard of the shim is gone");
  return actions;
}

GangActions Gang::OutputLost(const v1::OutputLost& lost) {
  GangActions actions;
  if (state_ == GangState::kGone) return actions;
  v1::ShimEvent event;
  *event.mutable_output_lost() = lost;
  Report(actions, std::move(event));
  return actions;
}

GangActions Gang::NoDescendants(const std::vector<std::string>& notes, const v1::OutputLost& lost) {
  GangActions actions;
  if (state_ != GangState::kKilling) return actions;
  state_ = GangState::kGone;
  v1::ShimEvent event;
  v1::AttemptGone& gone = *event.mutable_gone();
  for (v1::RankReport& rank : ranks_) *gone.add_ranks() = rank;
  gone.set_cause(cause_);
  std::vector<std::string> detail;
  if (!detail_.empty()) detail.push_back(detail_);
  detail.insert(detail.end(), notes.begin(), notes.end());
  gone.set_detail(absl::StrJoin(detail, "; "));
  gone.set_log_dir(log_dir_);
  if (lost.bytes() > 0) *gone.mutable_lost() = lost;
  Report(actions, std::move(event));
  actions.push_back(ArmTimer{0});
  actions.push_back(Finish{});
  return actions;
}

v1::AttemptPhase Gang::phase() const {
  switch (state_) {
    case GangState::kStarting:
      return v1::ATTEMPT_PHASE_STARTING;
    case GangState::kRunning:
      return v1::ATTEMPT_PHASE_RUNNING;
    case GangState::kStopping:
    case GangState::kKilling:
      return v1::ATTEMPT_PHASE_STOPPING;
    case GangState::kGone:
      return v1::ATTEMPT_PHASE_GONE;
  }
  return v1::ATTEMPT_PHASE_UNSPECIFIED;
}

v1::AttemptSnapshot Gang::Snapshot() const {
  v1::AttemptSnapshot snapshot;
  snapshot.set_job_id(job_id_);
  snapshot.set_attempt(attempt_);
  snapshot.set_phase(phase());
  for (const v1::RankReport& rank : ranks_) *snapshot.add_ranks() = rank;
  return snapshot;
}

void Gang::Report(GangActions& actions, v1::ShimEvent event) {
  event.set_number(events_.size() + 1);
  events_.push_back(event);
  actions.push_back(ReportEvent{std::move(event)});
}

void Gang::Kill(GangActions& actions, int64_t now_ns, v1::Cause cause, const std::string& detail) {
  if (state_ == GangState::kKilling || state_ == GangState::kGone) return;
  state_ = GangState::kKilling;
  cause_ = cause;
  detail_ = detail;
  actions.push_back(KillAll{});
  Arm(actions, now_ns);
}

void Gang::Arm(GangActions& actions, int64_t now_ns) {
  int64_t next = lease_ns_;
  switch (state_) {
    case GangState::kStarting:
    case GangState::kRunning:
      break;
    case GangState::kStopping:
      next = next == 0 ? stop_ns_ : std::min(next, stop_ns_);
      break;
    case GangState::kKilling:
      next = now_ns + kKillAgainNs;
      break;
    case GangState::kGone:
      next = 0;
      break;
  }
  actions.push_back(ArmTimer{next});
}

bool Gang::AllExited() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const v1::RankReport& rank) { return rank.state() == v1::RANK_STATE_EXITED; });
}

}  // namespace dgxrun
