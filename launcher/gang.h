// The ranks of one attempt on one node, as a state machine. Pure: no clock, no I/O; `now_ns` is
// CLOCK_BOOTTIME and comes with the input. The shim performs the actions; the simulator uses the gang as its
// shim.
//
//   starting ──all exec'ed──▶ running ──stop──▶ stopping ──grace over, or all ranks exited──▶ killing ──▶
//   gone
//       │                        │                                                              ▲
//       └─ spawn failed, stop ───┴── all ranks exited, lease over, agent gone, guard gone ──────┘
//
// Invariants:
//  * A state is never left backwards. `gone` is reported once, and only after NoDescendants: nothing of the
//    attempt lives by then.
//  * Every rank that was started is reported as exited exactly once, in the order of exits. The caller
//    tells exits after Spawned.
//  * The stop deadline only ever gets earlier; the lease deadline only ever gets later.
//  * The first reason to kill is the cause in AttemptGone; a stop by the controller's word has none
//    (it knows why).
//
// The caller performs the actions in order, calls Tick when the armed time has passed, and NoDescendants
// when in `killing` no process of the attempt is left.
#ifndef DGXRUN_LAUNCHER_GANG_H_
#define DGXRUN_LAUNCHER_GANG_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "dgxrun/v1/shim.pb.h"

namespace dgxrun {

enum class GangState { kStarting, kRunning, kStopping, kKilling, kGone };

const char* GangStateName(GangState state);

// SIGCONT then this signal, to the process group of every rank.
struct SignalRanks {
  int signal = 0;
  bool and_continue = false;  // SIGCONT too: a stopped rank would not see SIGTERM
};
// SIGKILL to every descendant; again on each death, until none is left.
struct KillAll {};
struct ReportEvent {
  v1::ShimEvent event;  // numbered
};
// Call Tick at this time; replaces the timer armed before. 0: none.
struct ArmTimer {
  int64_t boottime_ns = 0;
};
// The attempt is over: leave final.pb, wait for the acknowledgement, exit.
struct Finish {};
using GangAction = std::variant<SignalRanks, KillAll, ReportEvent, ArmTimer, Finish>;
using GangActions = std::vector<GangAction>;

struct SpawnedRank {
  int32_t pid = 0;
  int32_t inner_pid = 0;
};

struct RankExit {
  size_t index = 0;  // in the plan's order
  v1::ExitStatus exit;
  int64_t unix_ns = 0;
  bool oom_killed = false;
};

class Gang {
 public:
  // While killing, KillAll is repeated this often: a process forked in the very moment of a pass, or one
  // that left uninterruptible sleep, causes no event of its own.
  static constexpr int64_t kKillAgainNs = 100'000'000;

  explicit Gang(const v1::ShimStart& start);

  // All ranks have exec'ed; in the plan's order.
  GangActions Spawned(int64_t now_ns, const std::vector<SpawnedRank>& ranks,
                      const std::vector<std::string>& warnings);
  GangActions SpawnFailed(int64_t now_ns, const v1::SpawnFailed& failure);
  GangActions RankExited(int64_t now_ns, const RankExit& exit);
  GangActions Stop(int64_t now_ns, uint64_t grace_ms, const std::string& reason);
  GangActions Lease(int64_t now_ns, uint64_t deadline_ns);
  GangActions Signal(uint64_t number, int signal);
  GangActions Tick(int64_t now_ns);
  GangActions AgentGone(int64_t now_ns);
  GangActions GuardGone(int64_t now_ns);
  // Output of the ranks cannot be written; `lost` is of the whole attempt so far.
  GangActions OutputLost(const v1::OutputLost& lost);
  // `notes`: what a person should know of the end; joined to the detail. `lost`: output that is in no file.
  GangActions NoDescendants(const std::vector<std::string>& notes = {}, const v1::OutputLost& lost = {});

  GangState state() const { return state_; }
  v1::AttemptPhase phase() const;
  v1::AttemptSnapshot Snapshot() const;
  const std::vector<v1::RankReport>& ranks() const { return ranks_; }
  const std::vector<v1::ShimEvent>& events() const { return events_; }
  uint64_t last_event() const { return events_.size(); }

 private:
  void Report(GangActions& actions, v1::ShimEvent event);
  void Kill(GangActions& actions, int64_t now_ns, v1::Cause cause, const std::string& detail);
  void Arm(GangActions& actions, int64_t now_ns);
  bool AllExited() const;

  const std::string job_id_;
  const uint32_t attempt_;
  const std::string log_dir_;
  const v1::OnAgentGone on_agent_gone_;
  GangState state_ = GangState::kStarting;
  std::vector<v1::RankReport> ranks_;
  std::vector<v1::ShimEvent> events_;
  uint32_t exits_ = 0;
  uint64_t last_signal_ = 0;
  int64_t lease_ns_ = 0;  // 0: none
  int64_t stop_ns_ = 0;   // end of the grace time; valid in stopping
  v1::Cause cause_ = v1::CAUSE_UNSPECIFIED;
  std::string detail_;
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_GANG_H_
