// A table: what went wrong in an attempt, in the order in which it was heard, and whose fault it was.
#include <signal.h>

#include "controller/core/verdict.h"
#include "gtest/gtest.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

struct Exit {
  uint32_t rank;
  int code;
  int signal = 0;
  std::string tail;
  bool after_stop = false;
  bool oom = false;
};

struct Case {
  std::string name;
  std::vector<Exit> exits;    // as heard
  std::vector<Fault> faults;  // heard before the exits
  v1::Cause cause;
  int rank;
  int code;
};

constexpr char kGloo[] = "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:41234";
constexpr char kNccl[] =
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting";
constexpr char kWatchdog[] = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)";

Fault MakeFault(v1::Cause cause, bool after_stop = false) {
  Fault fault;
  fault.cause = cause;
  fault.node = NodeId("id-a");
  fault.order = 1;
  fault.after_stop = after_stop;
  return fault;
}

Attempt Build(const Case& c) {
  Attempt attempt;
  attempt.launched = true;
  for (const char* name : {"a", "b"}) {
    AttemptNode share;
    share.node = NodeId(std::string("id-") + name);
    share.name = name;
    attempt.nodes.emplace_back(share);
  }
  uint64_t order = 10;
  attempt.faults = c.faults;
  for (const Exit& exit : c.exits) {
    v1::RankReport report = CoreKit::Exit(exit.rank, exit.code, exit.signal, exit.tail);
    report.set_after_stop(exit.after_stop);
    report.set_oom_killed(exit.oom);
    attempt.nodes[exit.rank / 2].Mutable().ranks[exit.rank] = RankInfo{report, ++order, false};
  }
  return attempt;
}

TEST(Verdict, Table) {
  const Case cases[] = {
      {"the case of the issue: victims are heard first",
       {{0, 1, 0, kGloo}, {1, 0, SIGABRT, kWatchdog}, {3, 1, 0, kNccl}, {2, 85}},
       {},
       v1::CAUSE_EXIT_CODE,
       2,
       85},
      {"the case of the issue: a victim's stderr says nothing, but it ended after our stop",
       {{2, 85}, {0, 0, SIGTERM, "", true}, {1, 0, SIGKILL, "", true}, {3, 1, 0, "", true}},
       {},
       v1::CAUSE_EXIT_CODE,
       2,
       85},
      {"abort without words is no stronger than an exit code that came first",
       {{2, 85}, {0, 0, SIGABRT}},
       {},
       v1::CAUSE_EXIT_CODE,
       2,
       85},
      {"a signal beats an exit code, also when heard later",
       {{0, 1}, {3, 0, SIGSEGV}},
       {},
       v1::CAUSE_SIGNAL,
       3,
       139},
      {"out of memory beats a signal",
       {{0, 0, SIGSEGV}, {1, 0, SIGKILL, "", false, true}},
       {},
       v1::CAUSE_OOM_KILL,
       1,
       137},
      {"a GPU fault beats them all but a lost node",
       {{0, 0, SIGSEGV}, {1, 1, 0, "RuntimeError: CUDA error: uncorrectable ECC error encountered"}},
       {},
       v1::CAUSE_GPU_FAULT,
       1,
       1},
      {"node lost, and its peers die of the reset",
       {{2, 1, 0, kGloo}, {3, 1, 0, kNccl}},
       {MakeFault(v1::CAUSE_NODE_LOST)},
       v1::CAUSE_NODE_LOST,
       -1,
       69},
      {"node lost only after the stop is not the cause",
       {{2, 85}},
       {MakeFault(v1::CAUSE_NODE_LOST, true)},
       v1::CAUSE_EXIT_CODE,
       2,
       85},
      {"node lost after the stop explains victims that were heard first",
       {{2, 1, 0, kGloo}},
       {MakeFault(v1::CAUSE_SUPERVISOR_LOST, true)},
       v1::CAUSE_SUPERVISOR_LOST,
       -1,
       70},
      {"only victims: the earliest", {{3, 1, 0, kNccl}, {0, 1, 0, kGloo}}, {}, v1::CAUSE_EXIT_CODE, 3, 1},
      {"SIGPIPE is a victim's death", {{0, 0, SIGPIPE}, {1, 3}}, {}, v1::CAUSE_EXIT_CODE, 1, 3},
      {"exit code 0 is no fault", {{0, 0}, {1, 4}}, {}, v1::CAUSE_EXIT_CODE, 1, 4},
      {"a refused launch beats what the others did",
       {{2, 1, 0, kGloo}},
       {MakeFault(v1::CAUSE_LAUNCH_REFUSED)},
       v1::CAUSE_LAUNCH_REFUSED,
       -1,
       78},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::optional<v1::Why> why = Judge(Build(c));
    ASSERT_TRUE(why.has_value());
    EXPECT_EQ(v1::Cause_Name(why->cause()), v1::Cause_Name(c.cause));
    if (c.rank >= 0) {
      EXPECT_EQ(why->rank(), c.rank);
      EXPECT_EQ(why->node(), c.rank < 2 ? "a" : "b");
    }
    EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_FAILED, *why, std::nullopt), c.code);
  }
}

TEST(Verdict, NothingFailed) {
  EXPECT_FALSE(
      Judge(Build({"", {{0, 0}, {1, 0}, {2, 0}, {3, 0}}, {}, v1::CAUSE_UNSPECIFIED, 0, 0})).has_value());
}

TEST(Verdict, ExitsToldOnlyByALostSupervisorAreItsVictims) {
  Attempt attempt = Build({"", {{0, 0, SIGKILL}, {2, 6}}, {}, v1::CAUSE_UNSPECIFIED, 0, 0});
  AttemptNode& share = attempt.nodes[0].Mutable();
  share.gone_cause = v1::CAUSE_SUPERVISOR_LOST;
  share.ranks[0].told_by_gone = true;
  EXPECT_EQ(Judge(attempt)->rank(), 2);
}

TEST(Verdict, Describes) {
  EXPECT_EQ(DescribeExit(CoreKit::Exit(0, 85)), "exited with code 85");
  v1::RankReport report = CoreKit::Exit(0, 0, SIGSEGV);
  report.mutable_exit()->set_core_dumped(true);
  EXPECT_EQ(DescribeExit(report), "killed by SIGSEGV (core dumped)");
  report = CoreKit::Exit(0, 1);
  report.set_error_message("ValueError: bad batch\nsecond line");
  EXPECT_EQ(DescribeExit(report), "exited with code 1: ValueError: bad batch");
}

}  // namespace
}  // namespace dgxrun::core
