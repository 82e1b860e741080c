// The life of a job, input by input, and what each repeated or late word does.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

using ::testing::HasSubstr;
using Kind = SendToNode::Kind;

class JobTest : public ::testing::Test {
 protected:
  JobTest() {
    kit_.Connect({"a"});
    kit_.Connect({"b"});
  }
  JobId Running(uint32_t max_restarts = 3) {
    v1::JobSpec spec = kit_.Spec(2, 2);
    spec.set_max_restarts(max_restarts);
    const JobId job = kit_.Submit(spec);
    RunAttempt(job, 0);
    return job;
  }
  void RunAttempt(const JobId& job, uint32_t k) {
    kit_.Prepared("a", job, k);
    kit_.Prepared("b", job, k);
    kit_.Started("a", job, k, {0, 1});
    kit_.Started("b", job, k, {2, 3});
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
  }
  CoreKit kit_;
};

TEST_F(JobTest, SucceedsAndIsArchived) {
  const JobId job = kit_.Submit(kit_.Spec(2, 2));
  EXPECT_EQ(job.str(), "abcdef-1");
  EXPECT_EQ(kit_.Sent(Kind::kPrepare).size(), 2u);
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 0u);
  kit_.Prepared("a", job, 0);
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 0u) << "a launch before all are prepared";
  kit_.Prepared("b", job, 0);
  ASSERT_EQ(kit_.Sent(Kind::kLaunch).size(), 2u);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STARTING);
  kit_.Started("b", job, 0, {2, 3});
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STARTING);
  kit_.Started("a", job, 0, {0, 1});
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
  for (uint32_t r = 0; r < 4; ++r) kit_.Exited(r < 2 ? "a" : "b", job, 0, CoreKit::Exit(r, 0));
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
  kit_.Gone("a", job, 0);
  kit_.Gone("b", job, 0);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(kit_.Status(job).exit_code(), 0);
  EXPECT_EQ(kit_.Count<DeleteEnvironment>(), 1u);
  EXPECT_EQ(kit_.Sent(Kind::kForget).size(), 2u);
  EXPECT_EQ(kit_.Count<ArchiveJob>(), 1u);
  const v1::Record archived = ArchivedRecord(kit_.state, job, kit_.now);
  Apply(&kit_.state, archived);
  kit_.log.push_back(archived);
  EXPECT_TRUE(kit_.state.jobs.empty());
  EXPECT_EQ(kit_.Submit(kit_.Spec(2, 2), "key-1"), job) << "the key of an archived job makes no second job";
  EXPECT_EQ(kit_.Submit(kit_.Spec(2, 2)).str(), "abcdef-2");
}

TEST_F(JobTest, FirstFailureStopsAllAtOnceAndRestartsWhenGone) {
  const JobId job = Running();
  kit_.Exited("b", job, 0, CoreKit::Exit(3, 85));
  const auto stops = kit_.Sent(Kind::kStop);
  ASSERT_EQ(stops.size(), 2u) << "both nodes, in the same step";
  EXPECT_EQ(stops[0].message.stop().grace_ms(), 10000u);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(kit_.Status(job).why().rank(), 3);
  kit_.Gone("a", job, 0);
  EXPECT_EQ(kit_.Status(job).attempt(), 0u) << "a new attempt before the old one is gone everywhere";
  kit_.Gone("b", job, 0);
  EXPECT_EQ(kit_.Status(job).attempt(), 1u);
  EXPECT_EQ(kit_.Status(job).restarts(), 1u);
  EXPECT_EQ(kit_.Sent(Kind::kPrepare).size(), 2u);
  kit_.Prepared("a", job, 1, 40);
  kit_.Prepared("b", job, 1, 30);
  const auto launches = kit_.Sent(Kind::kLaunch);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 40);
}

TEST_F(JobTest, PortDiffersInEveryAttempt) {
  const JobId job = Running();
  const uint32_t first = kit_.state.jobs.at(job)->attempt->master_port;
  kit_.Exited("a", job, 0, CoreKit::Exit(0, 1));
  kit_.Gone("a", job, 0);
  kit_.Gone("b", job, 0);
  RunAttempt(job, 1);
  EXPECT_NE(kit_.state.jobs.at(job)->attempt->master_port, first);
}

TEST_F(JobTest, BudgetIsOfTheJob) {
  const JobId job = Running(2);
  for (uint32_t k = 0; k < 3; ++k) {
    if (k > 0) {
      kit_.Run(absl::Seconds(30), {"a", "b"});
      RunAttempt(job, k);
    }
    kit_.Exited("a", job, k, CoreKit::Exit(0, 7));
    kit_.Gone("a", job, k);
    kit_.Gone("b", job, k);
  }
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(kit_.Status(job).exit_code(), 7);
  EXPECT_EQ(kit_.Status(job).restarts(), 2u);
  ASSERT_EQ(kit_.Status(job).placements_size(), 1) << "the nodes were the same in all attempts";
  EXPECT_EQ(kit_.Status(job).placements(0).nodes_size(), 2);
  EXPECT_EQ(kit_.Status(job).why().attempt(), 2u);
}

TEST_F(JobTest, PrepareErrorFailsWithoutRestart) {
  const JobId job = kit_.Submit(kit_.Spec(2, 2));
  kit_.Prepared("a", job, 0);
  kit_.Prepared("b", job, 0, -1, "/data does not exist");
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(kit_.Status(job).exit_code(), 78);
  EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_LAUNCH_REFUSED);
  EXPECT_THAT(kit_.Status(job).why().detail(), HasSubstr("node b: /data does not exist"));
  EXPECT_EQ(kit_.Status(job).restarts(), 0u);
}

TEST_F(JobTest, StopAndCtrlC) {
  struct Case {
    const char* reason;
    int code;
  };
  for (const Case& c : {Case{"dgxrun stop", 143}, Case{"Ctrl-C", 130}, Case{"SIGTERM", 143}}) {
    const JobId job = Running();
    kit_.Stop(job, c.reason);
    EXPECT_TRUE(kit_.answers[0].status.ok());
    EXPECT_EQ(kit_.Sent(Kind::kStop).size(), 2u);
    v1::RankReport killed = CoreKit::Exit(0, 0, 15);
    killed.set_after_stop(true);
    kit_.Exited("a", job, 0, killed);
    kit_.Gone("a", job, 0);
    kit_.Gone("b", job, 0);
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STOPPED);
    EXPECT_EQ(kit_.Status(job).exit_code(), c.code);
    EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_STOPPED);
  }
}

TEST_F(JobTest, StopOfAQueuedAndOfAPreparingJob) {
  const JobId preparing = kit_.Submit(kit_.Spec(2, 2));
  kit_.Stop(preparing);
  EXPECT_EQ(kit_.Status(preparing).state(), v1::JOB_STATE_STOPPED)
      << "nothing was launched: nothing to wait for";
  kit_.Disconnect("a");
  const JobId queued = kit_.Submit(kit_.Spec(2, 2));
  EXPECT_EQ(kit_.Status(queued).state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(kit_.Status(queued).waiting_for(), HasSubstr("2 nodes (1 now)"));
  kit_.Stop(queued);
  EXPECT_EQ(kit_.Status(queued).state(), v1::JOB_STATE_STOPPED);
}

TEST_F(JobTest, RepeatedStopOnlyShortensTheGrace) {
  const JobId job = Running();
  kit_.Stop(job);
  const size_t records = kit_.log.size();
  kit_.Stop(job);
  EXPECT_EQ(kit_.log.size(), records) << "a repeated wish leaves no record";
  StopJob shorter{99, kit_.ada, job, true, absl::Seconds(1), "dgxrun stop"};
  kit_.Feed(shorter);
  ASSERT_EQ(kit_.Sent(Kind::kStop).size(), 2u);
  EXPECT_EQ(kit_.Sent(Kind::kStop)[0].message.stop().grace_ms(), 1000u);
  StopJob longer{100, kit_.ada, job, true, absl::Seconds(60), "dgxrun stop"};
  kit_.Feed(longer);
  EXPECT_EQ(kit_.Sent(Kind::kStop)[0].message.stop().grace_ms(), 1000u);
}

TEST_F(JobTest, EveryReportMayComeTwice) {
  const JobId job = Running();
  kit_.Exited("b", job, 0, CoreKit::Exit(3, 85));
  kit_.Gone("a", job, 0);
  size_t records = kit_.log.size();
  kit_.Prepared("a", job, 0);
  kit_.Started("a", job, 0, {0, 1});
  kit_.Exited("b", job, 0, CoreKit::Exit(3, 1));
  kit_.Gone("a", job, 0, {CoreKit::Exit(0, 3)});
  EXPECT_EQ(kit_.log.size(), records);
  EXPECT_EQ(kit_.Sent(Kind::kAck).size(), 1u) << "acknowledged all the same";
  kit_.Gone("b", job, 0);
  EXPECT_EQ(kit_.Status(job).attempt(), 1u);
  records = kit_.log.size();
  kit_.Gone("b", job, 0);
  kit_.Exited("a", job, 0, CoreKit::Exit(0, 9));
  kit_.Exited("a", JobId("abcdef-77"), 0, CoreKit::Exit(0, 9));
  EXPECT_EQ(kit_.log.size(), records) << "reports of an older attempt and of an unknown job";
}

TEST_F(JobTest, RanksOfOthersAndStaleStreamsAreNotBelieved) {
  const JobId job = Running();
  const size_t records = kit_.log.size();
  kit_.Exited("a", job, 0, CoreKit::Exit(3, 1));  // rank 3 is b's
  kit_.Feed(NodeReport{kit_.Id("a"), 4711, kit_.ReportOf("a", job, 0)});
  EXPECT_EQ(kit_.log.size(), records);
}

TEST_F(JobTest, RepeatedKeyMakesNoSecondJob) {
  const JobId job = kit_.Submit(kit_.Spec(2, 2), "same");
  const size_t records = kit_.log.size();
  EXPECT_EQ(kit_.Submit(kit_.Spec(2, 2), "same"), job);
  EXPECT_EQ(kit_.log.size(), records);
  kit_.Restart();
  EXPECT_EQ(kit_.Submit(kit_.Spec(2, 2), "same"), job);
  kit_.ada.uid = 1001;
  EXPECT_NE(kit_.Submit(kit_.Spec(2, 2), "same"), job) << "keys are the owner's own";
}

TEST_F(JobTest, OwnerIsTheCaller) {
  v1::JobSpec spec = kit_.Spec(1, 1);
  spec.mutable_owner()->set_user("root");
  const JobId job = kit_.Submit(spec);
  EXPECT_EQ(kit_.Status(job).owner().user(), "ada");
  EXPECT_EQ(kit_.Status(job).owner().uid(), 1000u);
  kit_.ada = Caller{"bob", 1001, 1001, false};
  kit_.Stop(job);
  EXPECT_EQ(kit_.answers[0].status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(kit_.answers[0].status.message()), HasSubstr("belongs to ada"));
}

TEST_F(JobTest, ShortFailuresSlowRestartsDown) {
  const JobId job = Running(10);
  std::vector<absl::Duration> delays;
  for (uint32_t k = 0; k < 5; ++k) {
    kit_.Exited("a", job, k, CoreKit::Exit(0, 1));
    kit_.Gone("a", job, k);
    kit_.Gone("b", job, k);
    delays.push_back(std::max(kit_.state.jobs.at(job)->not_before - kit_.now, absl::ZeroDuration()));
    if (delays.back() > absl::ZeroDuration()) {
      EXPECT_THAT(kit_.Status(job).waiting_for(), HasSubstr("restart in"));
      kit_.Run(delays.back() + absl::Milliseconds(300), {"a", "b"});
    }
    RunAttempt(job, k + 1);
  }
  EXPECT_EQ(delays, (std::vector<absl::Duration>{absl::ZeroDuration(), absl::ZeroDuration(), absl::Seconds(1),
                                                 absl::Seconds(2), absl::Seconds(4)}));
}

TEST_F(JobTest, SupervisorLostAndSpawnFailed) {
  JobId job = Running(0);
  kit_.Gone("a", job, 0, {CoreKit::Exit(0, 0, 9), CoreKit::Exit(1, 0, 9)}, v1::CAUSE_SUPERVISOR_LOST);
  kit_.Gone("b", job, 0);
  EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_SUPERVISOR_LOST);
  EXPECT_EQ(kit_.Status(job).exit_code(), 70);

  v1::JobSpec spec = kit_.Spec(2, 2);
  spec.set_max_restarts(0);
  job = kit_.Submit(spec);
  kit_.Prepared("a", job, 0);
  kit_.Prepared("b", job, 0);
  v1::Report report = kit_.ReportOf("a", job, 0);
  report.mutable_spawn_failed()->set_rank(1);
  report.mutable_spawn_failed()->set_stage("exec");
  report.mutable_spawn_failed()->set_detail("/opt/x: No such file or directory");
  kit_.Send("a", report);
  kit_.Gone("a", job, 0);
  kit_.Gone("b", job, 0);
  EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_SPAWN_FAILED);
  EXPECT_THAT(kit_.Status(job).why().detail(), HasSubstr("/opt/x"));
  EXPECT_EQ(kit_.Status(job).why().rank(), 1);
}

TEST_F(JobTest, EndedByTheNodeWithoutAWordIsNoSuccess) {
  const JobId job = Running(0);
  for (uint32_t r = 0; r < 4; ++r) {
    v1::RankReport rank = CoreKit::Exit(r, 0);
    rank.set_after_stop(true);
    kit_.Exited(r < 2 ? "a" : "b", job, 0, rank);
  }
  kit_.Gone("a", job, 0);
  kit_.Gone("b", job, 0);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_SUPERVISOR_LOST);
}

TEST_F(JobTest, FindJob) {
  v1::JobSpec spec = kit_.Spec(1, 1);
  spec.set_name("train");
  kit_.Submit(spec);
  const JobId second = kit_.Submit(spec);
  EXPECT_EQ(*FindJob(kit_.state, kit_.ada, "train"), second);
  EXPECT_EQ(*FindJob(kit_.state, kit_.ada, ""), second);
  EXPECT_EQ(FindJob(kit_.state, kit_.ada, "abcdef-1")->str(), "abcdef-1");
  EXPECT_EQ(FindJob(kit_.state, kit_.ada, "nope").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace dgxrun::core
