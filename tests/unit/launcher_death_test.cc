// What is left when somebody dies: the shim, the guard, both, the writer, the agent; and at the lease's end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/sys.h"
#include "launcher/run_dir.h"
#include "launcher/shim_start.h"
#include "tests/unit/launcher_harness.h"

namespace dgxrun::testing {
namespace {

class DeathTest : public ::testing::TestWithParam<bool> {
 protected:
  // Two ranks, each with an escaped grandchild; returns all four pids.
  std::vector<int> StartEscaping(v1::OnAgentGone on_agent_gone, int64_t lease_ns = 0) {
    v1::ShimStart start = harness_.Plan(
        2,
        {"sh", "-c", absl::StrCat("echo $$ > rank$RANK; exec ", DGXRUN_RANK_BINARY, " escape esc$RANK -1")});
    start.set_on_agent_gone(on_agent_gone);
    start.set_lease_deadline_ns(static_cast<uint64_t>(lease_ns));
    harness_.Start(start);
    std::optional<v1::ShimEvent> event = harness_.Next();
    EXPECT_TRUE(event && event->has_started());
    std::vector<int> pids = {harness_.PidFrom("esc0"), harness_.PidFrom("esc1")};
    for (const v1::RankReport& rank : event->started().ranks()) pids.push_back(rank.pid());
    return pids;
  }

  static bool AllDead(const std::vector<int>& pids) {
    for (int pid : pids) {
      if (Lives(pid)) return false;
    }
    return true;
  }

  int WriterPid() {
    for (int child : RealSys().Children(harness_.hello().shim_pid())) {
      if (Slurp(absl::StrCat("/proc/", child, "/comm")) == "dgxrun-writer\n") return child;
    }
    return 0;
  }

  Harness harness_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Cgroup, DeathTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "WithCgroup" : "None"; });

TEST_P(DeathTest, OfTheShim) {
  const std::vector<int> pids = StartEscaping(v1::ON_AGENT_GONE_LEASE);
  kill(harness_.hello().shim_pid(), SIGKILL);
  ASSERT_TRUE(harness_.GuardEnds());
  EXPECT_TRUE(AllDead(pids));
  EXPECT_TRUE(harness_.NothingLeft());
  absl::StatusOr<v1::ShimFinal> final = ReadFinal(harness_.run_dir());
  ASSERT_TRUE(final.ok()) << final.status();
  ASSERT_EQ(final->events_size(), 2);
  EXPECT_TRUE(final->events(0).has_started());
  EXPECT_EQ(final->events(1).number(), 2u);
  EXPECT_EQ(final->events(1).gone().cause(), v1::CAUSE_SUPERVISOR_LOST);
  EXPECT_EQ(final->events(1).gone().ranks_size(), 2);
  EXPECT_FALSE(ConnectShim(harness_.run_dir()).ok());
}

TEST_P(DeathTest, OfTheGuard) {
  const std::vector<int> pids = StartEscaping(v1::ON_AGENT_GONE_LEASE);
  kill(harness_.hello().guard_pid(), SIGKILL);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.cause(), v1::CAUSE_SUPERVISOR_LOST);
  EXPECT_TRUE(AllDead(pids));
  EXPECT_TRUE(Eventually([&] { return !Lives(harness_.hello().shim_pid()); }));
  EXPECT_TRUE(harness_.NothingLeft());
  EXPECT_TRUE(ReadFinal(harness_.run_dir()).ok());
}

TEST_P(DeathTest, OfShimAndGuardIsSweptByTheAgent) {
  const std::vector<int> pids = StartEscaping(v1::ON_AGENT_GONE_LEASE);
  const int guard = harness_.hello().guard_pid(), shim = harness_.hello().shim_pid();
  kill(guard, SIGSTOP);  // so that it cannot act between the two
  kill(shim, SIGKILL);
  kill(guard, SIGKILL);
  ASSERT_TRUE(harness_.GuardEnds());
  ASSERT_TRUE(Eventually([&] { return !Lives(shim); }));
  EXPECT_EQ(SweepStrays({"node:no-such-job", harness_.cgroup()}, 10), 0);
  EXPECT_TRUE(AllDead(pids));
  // The writer is no stray: it drains the pipes and ends by itself once the last rank is gone.
  EXPECT_TRUE(Eventually([&] { return harness_.NothingLeft(); }));
}

TEST_P(DeathTest, OfTheAgentInLocalMode) {
  const std::vector<int> pids = StartEscaping(v1::ON_AGENT_GONE_KILL);
  const absl::Time begin = absl::Now();
  harness_.CloseSocket();
  ASSERT_TRUE(harness_.GuardEnds());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  EXPECT_TRUE(AllDead(pids));
  EXPECT_TRUE(harness_.NothingLeft());
  EXPECT_NE(access(harness_.run_dir().c_str(), F_OK), 0) << "nobody comes to remove it";
}

TEST_P(DeathTest, OfTheAgentInAClusterHarmsNobody) {
  const std::vector<int> pids =
      StartEscaping(v1::ON_AGENT_GONE_LEASE, EventLoop::BoottimeNs() + 3600'000'000'000);
  harness_.CloseSocket();
  harness_.Attach(1);
  harness_.Lease(EventLoop::BoottimeNs() + 7200'000'000'000);
  for (int pid : pids) EXPECT_TRUE(Lives(pid));
  harness_.Stop(0);
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.cause(), v1::CAUSE_UNSPECIFIED);
  EXPECT_TRUE(AllDead(pids));
}

TEST_P(DeathTest, AtTheEndOfTheLease) {
  const int64_t deadline = EventLoop::BoottimeNs() + 1'000'000'000;
  const std::vector<int> pids = StartEscaping(v1::ON_AGENT_GONE_LEASE, deadline);
  harness_.Lease(deadline - 500'000'000);  // an earlier one is ignored
  harness_.CloseSocket();
  ASSERT_TRUE(harness_.GuardEnds());
  EXPECT_GE(EventLoop::BoottimeNs(), deadline);
  EXPECT_TRUE(AllDead(pids));
  EXPECT_TRUE(harness_.NothingLeft());
  absl::StatusOr<v1::ShimFinal> final = ReadFinal(harness_.run_dir());
  ASSERT_TRUE(final.ok()) << final.status();
  EXPECT_EQ(final->events(final->events_size() - 1).gone().cause(), v1::CAUSE_FENCED);
}

TEST_P(DeathTest, OfTheWriterLosesNoRank) {
  harness_.Start(harness_.Plan(
      1, {"sh", "-c", "echo first; touch go; while [ ! -e on ]; do sleep 0.01; done; echo last"}));
  ASSERT_TRUE(harness_.Next()->has_started());
  ASSERT_TRUE(Eventually([&] { return Slurp(harness_.File("rank_0.out")) == "first\n"; }));
  const int writer = WriterPid();
  ASSERT_GT(writer, 0);
  kill(writer, SIGKILL);
  ASSERT_TRUE(WriteFileAtomically(harness_.File("on"), "").ok());
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().code(), 0);
  EXPECT_NE(gone.detail().find("log writer died and was replaced 1 times"), std::string::npos)
      << gone.detail();
  EXPECT_EQ(Slurp(harness_.File("rank_0.out")), "first\nlast\n");
}

// More than its pipe holds, so that the rank waits until another writer takes it. The one that was stopped
// had nothing in hand, so nothing is lost.
TEST_P(DeathTest, AWriterThatHangsIsReplacedAndTheRankGoesOn) {
  harness_.Start(harness_.Plan(
      1, {"sh", "-c",
          "echo first; while [ ! -e on ]; do sleep 0.01; done; head -c 600000 /dev/zero | tr '\\0' x; echo; "
          "echo last"}));
  ASSERT_TRUE(harness_.Next()->has_started());
  ASSERT_TRUE(Eventually([&] { return Slurp(harness_.File("rank_0.out")) == "first\n"; }));
  const int writer = WriterPid();
  ASSERT_GT(writer, 0);
  kill(writer, SIGSTOP);
  ASSERT_TRUE(WriteFileAtomically(harness_.File("on"), "").ok());
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.ranks(0).exit().code(), 0);
  EXPECT_NE(gone.detail().find("log writer hung and was replaced 1 times"), std::string::npos)
      << gone.detail();
  EXPECT_EQ(Slurp(harness_.File("rank_0.out")), "first\n" + std::string(600000, 'x') + "\nlast\n");
  EXPECT_FALSE(Lives(writer));
}

// A program that is silent gives its writer nothing to do: that is no hang.
TEST_P(DeathTest, AWriterWithoutWorkIsLeftAlone) {
  harness_.Start(harness_.Plan(1, {"sh", "-c", "echo first; sleep 7; echo last"}));
  ASSERT_TRUE(harness_.Next()->has_started());
  const v1::AttemptGone gone = harness_.UntilGone();
  EXPECT_EQ(gone.detail().find("log writer"), std::string::npos) << gone.detail();
  EXPECT_EQ(Slurp(harness_.File("rank_0.out")), "first\nlast\n");
}

TEST_P(DeathTest, AHangingWriterDoesNotHoldUpTheEnd) {
  const std::vector<int> pids = StartEscaping(v1::ON_AGENT_GONE_LEASE);
  const int writer = WriterPid();
  ASSERT_GT(writer, 0);
  kill(writer, SIGSTOP);
  const absl::Time begin = absl::Now();
  harness_.Stop(0);
  harness_.UntilGone();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_TRUE(AllDead(pids));
  EXPECT_TRUE(Eventually([&] { return !Lives(writer); }));
}

TEST_P(DeathTest, OfTheAgentBeforeItSaidWhatToStart) {
  ShimStartOptions options;
  options.shim_binary = DGXRUN_SHIM_BINARY;
  options.run_dir = harness_.run_dir();
  absl::StatusOr<StartedShim> started = StartShim(options);
  ASSERT_TRUE(started.ok());
  started->socket.Reset();
  EXPECT_TRUE(Eventually([&] { return waitpid(started->guard_pid, nullptr, WNOHANG) != 0; }));
  EXPECT_NE(access(harness_.run_dir().c_str(), F_OK), 0);
}

}  // namespace
}  // namespace dgxrun::testing
