// The gang as a table: what each input does in each state, and the order of what comes out.
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/gang.h"

namespace dgxrun {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Words {
  std::vector<std::string>* out;
  void operator()(const SignalRanks& a) const {
    out->push_back(absl::StrCat("signal ", a.signal, a.and_continue ? "+cont" : ""));
  }
  void operator()(const KillAll&) const { out->push_back("kill"); }
  void operator()(const ReportEvent& a) const {
    const v1::ShimEvent& event = a.event;
    if (event.has_started()) out->push_back("started");
    if (event.has_spawn_failed()) out->push_back("spawn_failed");
    if (event.has_exited()) out->push_back(absl::StrCat("exited ", event.exited().rank()));
    if (event.has_output_lost()) out->push_back("output_lost");
    if (event.has_gone()) out->push_back(absl::StrCat("gone ", v1::Cause_Name(event.gone().cause())));
  }
  void operator()(const ArmTimer& a) const {
    out->push_back(absl::StrCat("arm ", a.boottime_ns / 1'000'000));
  }
  void operator()(const Finish&) const { out->push_back("finish"); }
};

std::string Say(const GangActions& actions) {
  std::vector<std::string> words;
  for (const GangAction& action : actions) std::visit(Words{&words}, action);
  return absl::StrJoin(words, ", ");
}

v1::ShimStart Start(int ranks, v1::OnAgentGone gone = v1::ON_AGENT_GONE_LEASE, int64_t lease_ns = 0) {
  v1::ShimStart start;
  start.set_job_id("abc-1");
  start.set_attempt(2);
  start.set_log_dir("/logs");
  start.set_on_agent_gone(gone);
  start.set_lease_deadline_ns(static_cast<uint64_t>(lease_ns));
  for (int i = 0; i < ranks; ++i) start.mutable_plan()->add_ranks()->set_rank(static_cast<uint32_t>(i));
  return start;
}

RankExit Exit(size_t index, int code = 0) {
  RankExit exit;
  exit.index = index;
  exit.exit.set_code(code);
  return exit;
}

std::vector<SpawnedRank> Pids(int count) {
  std::vector<SpawnedRank> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(SpawnedRank{100 + i, 0});
  return ranks;
}

// A gang of two ranks, brought to a state.
Gang In(GangState state, v1::OnAgentGone gone = v1::ON_AGENT_GONE_LEASE, int64_t lease_ns = 0) {
  Gang gang(Start(2, gone, lease_ns));
  if (state == GangState::kStarting) return gang;
  gang.Spawned(0, Pids(2), {});
  if (state == GangState::kRunning) return gang;
  gang.Stop(0, state == GangState::kStopping ? 10'000 : 0, "stopped");
  if (state == GangState::kGone) gang.NoDescendants();
  EXPECT_EQ(gang.state(), state);
  return gang;
}

constexpr GangState kStates[] = {GangState::kStarting, GangState::kRunning, GangState::kStopping,
                                 GangState::kKilling, GangState::kGone};

struct Row {
  const char* input;
  std::function<GangActions(Gang&)> apply;
  // Actions, in the order of kStates.
  const char* expected[5];
};

TEST(GangTable, EveryInputInEveryState) {
  v1::SpawnFailed failure;
  failure.set_stage("exec");
  const Row rows[] = {
      {"spawned",
       [](Gang& g) { return g.Spawned(kSecond, Pids(2), {}); },
       {"started, arm 0", "", "", "kill", ""}},
      {"spawn failed",
       [&](Gang& g) { return g.SpawnFailed(kSecond, failure); },
       {"spawn_failed, kill, arm 1100", "", "", "", ""}},
      {"rank exited",
       [](Gang& g) { return g.RankExited(kSecond, Exit(1)); },
       {"", "exited 1", "exited 1", "exited 1", ""}},
      {"stop",
       [](Gang& g) { return g.Stop(kSecond, 5000, "x"); },
       {"kill, arm 1100", "signal 15+cont, arm 6000", "arm 6000", "", ""}},
      {"stop, longer",
       [](Gang& g) { return g.Stop(kSecond, 60'000, "x"); },
       {"kill, arm 1100", "signal 15+cont, arm 61000", "", "", ""}},
      {"stop now",
       [](Gang& g) { return g.Stop(kSecond, 0, "x"); },
       {"kill, arm 1100", "kill, arm 1100", "kill, arm 1100", "", ""}},
      {"lease",
       [](Gang& g) { return g.Lease(kSecond, 7 * kSecond); },
       {"arm 7000", "arm 7000", "arm 7000", "", ""}},
      {"tick, early",
       [](Gang& g) { return g.Tick(kSecond); },
       {"arm 0", "arm 0", "arm 10000", "kill, arm 1100", ""}},
      {"tick at the end of the grace",
       [](Gang& g) { return g.Tick(10 * kSecond); },
       {"arm 0", "arm 0", "kill, arm 10100", "kill, arm 10100", ""}},
      {"signal", [](Gang& g) { return g.Signal(1, SIGUSR1); }, {"", "signal 10", "signal 10", "", ""}},
      {"agent gone, lease", [](Gang& g) { return g.AgentGone(kSecond); }, {"", "", "", "", ""}},
      {"guard gone",
       [](Gang& g) { return g.GuardGone(kSecond); },
       {"kill, arm 1100", "kill, arm 1100", "kill, arm 1100", "", ""}},
      {"output lost",
       [](Gang& g) { return g.OutputLost(v1::OutputLost()); },
       {"output_lost", "output_lost", "output_lost", "output_lost", ""}},
      {"no descendants",
       [](Gang& g) { return g.NoDescendants(); },
       {"", "", "", "gone CAUSE_UNSPECIFIED, arm 0, finish", ""}},
  };
  for (const Row& row : rows) {
    for (size_t i = 0; i < 5; ++i) {
      Gang gang = In(kStates[i]);
      EXPECT_EQ(Say(row.apply(gang)), row.expected[i]) << row.input << " in " << GangStateName(kStates[i]);
    }
  }
}

TEST(Gang, SuccessKillsWhatIsLeftAndIsGoneOnce) {
  Gang gang = In(GangState::kRunning);
  EXPECT_EQ(Say(gang.RankExited(5, Exit(0))), "exited 0");
  EXPECT_EQ(Say(gang.RankExited(6, Exit(1))), "exited 1, kill, arm 100");
  EXPECT_EQ(Say(gang.NoDescendants()), "gone CAUSE_UNSPECIFIED, arm 0, finish");
  EXPECT_EQ(Say(gang.NoDescendants()), "");
  ASSERT_EQ(gang.events().size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(gang.events()[i].number(), i + 1);
  const v1::AttemptGone& gone = gang.events()[3].gone();
  EXPECT_EQ(gone.ranks(0).exit_order(), 1u);
  EXPECT_EQ(gone.ranks(1).exit_order(), 2u);
  EXPECT_EQ(gone.log_dir(), "/logs");
}

TEST(Gang, AFailureAloneStopsNobody) {
  Gang gang = In(GangState::kRunning);
  EXPECT_EQ(Say(gang.RankExited(5, Exit(0, 85))), "exited 0");
  EXPECT_EQ(gang.state(), GangState::kRunning);
  EXPECT_FALSE(gang.ranks()[0].after_stop());
  gang.Stop(6, 1000, "a rank failed");
  gang.RankExited(7, Exit(1, 143));
  EXPECT_TRUE(gang.ranks()[1].after_stop());
}

TEST(Gang, AnExitIsCountedOnce) {
  Gang gang = In(GangState::kRunning);
  EXPECT_EQ(Say(gang.RankExited(5, Exit(0, 1))), "exited 0");
  EXPECT_EQ(Say(gang.RankExited(6, Exit(0, 2))), "");
  EXPECT_EQ(Say(gang.RankExited(6, Exit(7))), "");
  EXPECT_EQ(gang.ranks()[0].exit().code(), 1);
}

TEST(Gang, TheLeaseKillsAndNamesItsCause) {
  for (GangState state : {GangState::kStarting, GangState::kRunning, GangState::kStopping}) {
    Gang gang = In(state, v1::ON_AGENT_GONE_LEASE, 4 * kSecond);
    EXPECT_EQ(Say(gang.Tick(4 * kSecond - 1)), state == GangState::kStopping ? "arm 4000" : "arm 4000");
    EXPECT_EQ(Say(gang.Tick(4 * kSecond)), "kill, arm 4100");
    EXPECT_EQ(Say(gang.NoDescendants()), "gone CAUSE_FENCED, arm 0, finish");
  }
}

TEST(Gang, ALeaseNeverGetsEarlier) {
  Gang gang = In(GangState::kRunning, v1::ON_AGENT_GONE_LEASE, 4 * kSecond);
  EXPECT_EQ(Say(gang.Lease(kSecond, 3 * kSecond)), "");
  EXPECT_EQ(Say(gang.Lease(kSecond, 6 * kSecond)), "arm 6000");
  EXPECT_EQ(Say(gang.Tick(5 * kSecond)), "arm 6000");
}

TEST(Gang, TheAgentsEndKillsInLocalModeOnly) {
  Gang local = In(GangState::kRunning, v1::ON_AGENT_GONE_KILL);
  EXPECT_EQ(Say(local.AgentGone(kSecond)), "kill, arm 1100");
  EXPECT_EQ(Say(local.NoDescendants()), "gone CAUSE_CLIENT_LOST, arm 0, finish");
}

TEST(Gang, TheFirstCauseIsKept) {
  Gang gang = In(GangState::kRunning, v1::ON_AGENT_GONE_KILL, 4 * kSecond);
  gang.GuardGone(kSecond);
  gang.AgentGone(kSecond);
  gang.Tick(5 * kSecond);
  v1::OutputLost lost;
  lost.set_bytes(2);
  gang.NoDescendants({"the log writer hangs"}, lost);
  const v1::AttemptGone& gone = gang.events().back().gone();
  EXPECT_EQ(gone.cause(), v1::CAUSE_SUPERVISOR_LOST);
  EXPECT_EQ(gone.detail(), "the guard of the shim is gone; the log writer hangs");
  EXPECT_EQ(gone.lost().bytes(), 2u);
}

TEST(Gang, StopsOnlyShortenTheGrace) {
  Gang gang = In(GangState::kRunning);
  EXPECT_EQ(Say(gang.Stop(0, 30'000, "")), "signal 15+cont, arm 30000");
  EXPECT_EQ(Say(gang.Stop(kSecond, 60'000, "")), "");
  EXPECT_EQ(Say(gang.Stop(kSecond, 1'000, "")), "arm 2000");
  EXPECT_EQ(Say(gang.Tick(2 * kSecond)), "kill, arm 2100");
}

TEST(Gang, AGraceOfAgesDoesNotOverflow) {
  Gang gang = In(GangState::kRunning);
  EXPECT_EQ(Say(gang.Stop(kSecond, UINT64_MAX, "")), "signal 15+cont, arm 86401000");
}

TEST(Gang, ASignalIsForwardedOnce) {
  Gang gang = In(GangState::kRunning);
  EXPECT_EQ(Say(gang.Signal(3, SIGUSR1)), "signal 10");
  EXPECT_EQ(Say(gang.Signal(3, SIGUSR1)), "");
  EXPECT_EQ(Say(gang.Signal(2, SIGUSR2)), "");
}

TEST(Gang, RanksKilledBeforeTheirStartAreNoExits) {
  Gang gang = In(GangState::kStarting);
  gang.Stop(0, 1000, "too late");
  EXPECT_EQ(Say(gang.RankExited(1, Exit(0, 137))), "");
  EXPECT_EQ(Say(gang.NoDescendants()), "gone CAUSE_UNSPECIFIED, arm 0, finish");
  EXPECT_EQ(gang.events().back().gone().ranks(0).state(), v1::RANK_STATE_PENDING);
}

TEST(Gang, TheSnapshotShowsPhaseAndRanks) {
  const v1::AttemptPhase phases[] = {v1::ATTEMPT_PHASE_STARTING, v1::ATTEMPT_PHASE_RUNNING,
                                     v1::ATTEMPT_PHASE_STOPPING, v1::ATTEMPT_PHASE_STOPPING,
                                     v1::ATTEMPT_PHASE_GONE};
  for (size_t i = 0; i < 5; ++i) {
    const v1::AttemptSnapshot snapshot = In(kStates[i]).Snapshot();
    EXPECT_EQ(snapshot.phase(), phases[i]);
    EXPECT_EQ(snapshot.job_id(), "abc-1");
    EXPECT_EQ(snapshot.attempt(), 2u);
    EXPECT_EQ(snapshot.ranks_size(), 2);
  }
}

}  // namespace
}  // namespace dgxrun
