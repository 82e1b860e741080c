// Logs that earlier releases wrote replay with this one: tests/logs/wire_X_Y/log.db, made by
// tests/logs/record.sh.
#include <filesystem>
#include <fstream>
#include <map>

#include "controller/core/core.h"
#include "controller/core/invariants.h"
#include "controller/record_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

class OldLog : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    // Opening writes to it.
    std::filesystem::copy_file(std::string(DGXRUN_LOGS) + "/" + GetParam() + "/log.db", dir_ / "log.db");
    absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Open(dir_ / "log.db", /*durable=*/false);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
    const absl::Status replayed = log_->Replay([&](const LogRow& row) {
      v1::Record record;
      if (!record.ParseFromString(row.bytes)) return absl::DataLossError("a row does not parse");
      core::Apply(&state_, record);
      ++kinds_[record.body_case()];
      return absl::OkStatus();
    });
    ASSERT_TRUE(replayed.ok()) << replayed;
  }

  TempDir dir_;
  std::unique_ptr<RecordLog> log_;
  core::State state_;
  std::map<v1::Record::BodyCase, int> kinds_;
};

TEST_P(OldLog, GivesTheStateThatItsControllerHad) {
  const absl::Status status = core::CheckInvariants(state_);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(state_.last_job_number, 5u);
  EXPECT_EQ(state_.nodes.size(), 2u);
  // Four have ended and are in the archive; the fifth lives, at its third attempt.
  ASSERT_EQ(state_.jobs.size(), 1u);
  const core::Job& job = *state_.jobs.begin()->second;
  EXPECT_EQ(job.spec.name(), "lives");
  EXPECT_EQ(job.restarts, 2u);
  EXPECT_EQ(job.why.cause(), v1::CAUSE_NODE_LOST);
  EXPECT_EQ(job.why.node(), "node2");
  const core::Attempt* attempt = core::LiveAttempt(job);
  ASSERT_NE(attempt, nullptr);
  EXPECT_EQ(attempt->number, AttemptNo(2));
  EXPECT_EQ(attempt->phase, core::Attempt::Phase::kRunning);
  ASSERT_EQ(attempt->nodes.size(), 2u);
  for (const auto& share : attempt->nodes) {
    EXPECT_EQ(share->phase, core::AttemptNode::Phase::kStarted);
    EXPECT_EQ(share->ranks.size(), 2u);
  }
  // It was made to hold these: a rank that was killed, a node that was lost and fenced and came back.
  for (v1::Record::BodyCase kind :
       {v1::Record::kClusterCreated, v1::Record::kNodeAdmitted, v1::Record::kNodeLost,
        v1::Record::kNodeFenced, v1::Record::kJobSubmitted, v1::Record::kAttemptPlaced,
        v1::Record::kAttemptLaunched, v1::Record::kRankExited, v1::Record::kFaultSeen, v1::Record::kNodeGone,
        v1::Record::kAttemptEnded, v1::Record::kJobArchived}) {
    EXPECT_GT(kinds_[kind], 0) << "record " << kind;
  }
}

TEST_P(OldLog, ItsArchiveIsReadable) {
  absl::StatusOr<std::vector<ArchivedJob>> jobs = log_->NewestArchived(std::nullopt, 10);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  std::vector<std::string> told;
  for (const ArchivedJob& job : *jobs) {
    v1::JobStatus status;
    ASSERT_TRUE(status.ParseFromString(job.status)) << job.id;
    told.push_back(status.name() + " " + v1::JobState_Name(status.state()) + " " +
                   std::to_string(status.exit_code()));
    if (status.name() == "resumes") {
      EXPECT_EQ(status.restarts(), 1u);
      EXPECT_THAT(status.checkpoint().path(), ::testing::EndsWith("/ckpt/step_20.pt"));
    }
  }
  EXPECT_THAT(told,
              ::testing::ElementsAre("stopped JOB_STATE_STOPPED 143", "fails JOB_STATE_FAILED 1",
                                     "resumes JOB_STATE_SUCCEEDED 0", "succeeds JOB_STATE_SUCCEEDED 0"));
}

TEST_P(OldLog, AControllerGoesOnWithIt) {
  core::Contacts contacts;
  const auto feed = [&](core::Input input) {
    core::Observe(&contacts, state_, input);
    const core::Decision decision = core::Decide(state_, contacts, input);
    for (const v1::Record& record : decision.records) core::Apply(&state_, record);
    const absl::Status status = core::CheckInvariants(state_);
    EXPECT_TRUE(status.ok()) << status;
    return decision;
  };
  const uint64_t term = state_.term;
  const std::string cluster = state_.cluster_id;
  absl::Time now = absl::FromUnixSeconds(2000000000);
  feed({now, core::ControllerStarted{"ffffffff-0000-4000-8000-000000000000"}});
  EXPECT_EQ(state_.term, term + 1);
  EXPECT_EQ(state_.cluster_id, cluster);
  // Nobody answers any more: the nodes are lost, then fenced, and the job waits for others.
  for (int i = 0; i < 200; ++i) feed({now += absl::Milliseconds(250), core::Tick{}});
  const core::Job& job = *state_.jobs.begin()->second;
  EXPECT_EQ(core::LiveAttempt(job), nullptr);
  EXPECT_EQ(job.phase, core::Job::Phase::kQueued);
  EXPECT_EQ(job.restarts, 3u);
}

INSTANTIATE_TEST_SUITE_P(Releases, OldLog, ::testing::Values("wire_1_0"));

}  // namespace
}  // namespace dgxrun
