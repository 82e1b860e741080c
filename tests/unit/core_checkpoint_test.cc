// What an attempt starts from, poison, progress and alarms.
#include "agent/ckpt/format.h"
#include "controller/core/alarms.h"
#include "controller/core/checkpoints.h"
#include "controller/core/progress.h"
#include "gmock/gmock.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = SendToNode::Kind;

v1::CheckpointFinding Found(int64_t step, v1::Verdict verdict, std::string_view format = "dcp",
                            int64_t mtime = 0) {
  v1::CheckpointFinding finding;
  v1::Checkpoint* checkpoint = finding.mutable_checkpoint();
  checkpoint->set_path(absl::StrCat("/ckpt/step_", step));
  checkpoint->set_step(step);
  checkpoint->set_verdict(verdict);
  checkpoint->set_format(std::string(format));
  checkpoint->set_mtime_unix_ns(mtime != 0 ? mtime : step * 1000);
  checkpoint->set_bytes(1000);
  if (verdict != v1::VERDICT_COMPLETE) checkpoint->set_reason("as the test says");
  return finding;
}

// Half of a checkpoint, on the disk of a (with the metadata) or of b.
v1::CheckpointFinding Part(const std::string& node, int64_t step) {
  v1::CheckpointFinding part = Found(step, v1::VERDICT_PARTIAL, "dcp", step * 1000 + (node == "a" ? 1 : 2));
  const std::string here = node == "a" ? ".metadata" : "__1_0.distcp";
  const std::string there = node == "a" ? "__1_0.distcp" : ".metadata";
  part.mutable_checkpoint()->set_file(there);
  part.add_missing()->set_name(there);
  part.mutable_missing(0)->set_bytes(100);
  part.add_present()->set_name(here);
  part.mutable_present(0)->set_bytes(100);
  return part;
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    kit_.Connect({"a"});
    kit_.Connect({"b"});
  }

  v1::JobSpec Spec(uint32_t nodes) {
    v1::JobSpec spec = kit_.Spec(nodes, 1);
    spec.set_ckpt_dir("/ckpt");
    spec.set_max_restarts(8);
    return spec;
  }
  void Answer(const std::string& node, const JobId& job, uint32_t attempt,
              const std::vector<v1::CheckpointFinding>& findings) {
    v1::Report report = kit_.ReportOf(node, job, attempt);
    for (const auto& finding : findings) *report.mutable_prepared()->add_findings() = finding;
    report.mutable_prepared();
    kit_.Send(node, report);
  }
  void AnswerAgain(const std::string& node, const JobId& job, uint32_t attempt, const std::string& resume,
                   const std::string& note = "") {
    v1::Report report = kit_.ReportOf(node, job, attempt);
    report.mutable_prepared()->mutable_checkpoint()->set_path(resume);
    if (!note.empty()) report.mutable_prepared()->add_notes(note);
    kit_.Send(node, report);
  }
  v1::Prepare SecondOf(const std::string& node) {
    const std::vector<SendToNode> sent = kit_.Sent(Kind::kPrepare);
    for (const SendToNode& send : sent) {
      if (send.node == kit_.Id(node) && !send.message.prepare().resume().empty())
        return send.message.prepare();
    }
    return {};
  }
  std::vector<std::string> Aside(const v1::Prepare& prepare) {
    return {prepare.poisoned().begin(), prepare.poisoned().end()};
  }
  std::vector<std::string> Alarms(const JobId& job) {
    std::vector<std::string> texts;
    const v1::JobStatus status = kit_.Status(job);
    for (const v1::Alarm& alarm : status.alarms()) texts.push_back(alarm.text());
    return texts;
  }
  // One node's job with these findings, up to the launch.
  void Start(const JobId& job, uint32_t attempt, const std::vector<v1::CheckpointFinding>& findings) {
    Answer("a", job, attempt, findings);
    if (!findings.empty()) AnswerAgain("a", job, attempt, SecondOf("a").resume());
    kit_.Started("a", job, attempt, {0});
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
  }
  void Fail(const JobId& job, uint32_t attempt, absl::Duration after, const std::string& line, int code = 1) {
    kit_.now += after;
    kit_.Exited("a", job, attempt, CoreKit::Exit(0, code, 0, line));
    kit_.Gone("a", job, attempt);
    kit_.now += absl::Minutes(1);
    kit_.Beat("a");
    kit_.Beat("b");
    kit_.Feed(Tick{});
  }
  void Progress(const JobId& job, uint32_t attempt, int64_t first, int64_t step,
                const std::vector<v1::CheckpointFinding>& findings = {}, uint64_t free = 0,
                const std::string& note = "") {
    NodeHeartbeat input{kit_.Id("a"), kit_.connection["a"], {}};
    input.heartbeat.set_number(++kit_.beat);
    input.heartbeat.add_free_ports(40001);
    input.heartbeat.add_free_ports(40002);
    v1::AttemptProgress* progress = input.heartbeat.add_progress();
    progress->set_job_id(job.str());
    progress->set_attempt(attempt);
    if (step >= 0) {
      progress->set_has_step(true);
      progress->set_first_step(first);
      progress->set_step(step);
    }
    progress->set_has_checkpoints(!findings.empty());
    for (const auto& finding : findings) *progress->add_checkpoints() = finding;
    progress->set_free_bytes(free);
    if (!note.empty()) progress->add_notes(note);
    kit_.Feed(std::move(input));
    kit_.Feed(Tick{});
  }

  // Of any node, --ckpt-keep among it; without a Tick, so that what follows is what this input brings.
  void Progress(const std::string& node, const JobId& job, uint32_t attempt,
                const std::vector<v1::CheckpointFinding>& findings, const std::string& removed = "",
                const std::vector<std::string>& held = {}) {
    NodeHeartbeat input{kit_.Id(node), kit_.connection[node], {}};
    input.heartbeat.set_number(++kit_.beat);
    v1::AttemptProgress* progress = input.heartbeat.add_progress();
    progress->set_job_id(job.str());
    progress->set_attempt(attempt);
    progress->set_has_checkpoints(true);
    for (const auto& finding : findings) *progress->add_checkpoints() = finding;
    if (!removed.empty()) progress->add_removed(removed);
    for (const std::string& name : held) progress->add_held(name);
    kit_.Feed(std::move(input));
  }

  CoreKit kit_;
};

TEST_F(CheckpointTest, NewestCompleteOneAndASecondRound) {
  const JobId job = kit_.Submit(Spec(1));
  EXPECT_EQ(SecondOf("a").resume(), "");
  Answer("a", job, 0,
         {Found(30, v1::VERDICT_PARTIAL, agent::ckpt::kTrainer), Found(25, v1::VERDICT_UNVERIFIED, ""),
          Found(20, v1::VERDICT_COMPLETE), Found(10, v1::VERDICT_CORRUPT, agent::ckpt::kTrainer)});
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 0u) << "not before the folder is in order";
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_20");
  EXPECT_THAT(Aside(SecondOf("a")), ElementsAre("/ckpt/step_30")) << "what is older hurts nobody";
  EXPECT_THAT(kit_.Status(job).waiting_for(), HasSubstr("node a to put its checkpoint folder in order"));
  AnswerAgain("a", job, 0, "/ckpt/step_20", "moved aside: step_30");
  ASSERT_EQ(kit_.Sent(Kind::kLaunch).size(), 1u);
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 20);
  EXPECT_THAT(Alarms(job),
              ElementsAre("checkpoint /ckpt/step_30 is passed over: PARTIAL: as the test says",
                          "checkpoint /ckpt/step_25 is passed over: UNVERIFIED: as the test says",
                          "moved aside: step_30"));
}

TEST_F(CheckpointTest, AnAnswerThatComesTwiceIsNotTheSecondOne) {
  const JobId job = kit_.Submit(Spec(1));
  Answer("a", job, 0, {Found(20, v1::VERDICT_COMPLETE)});
  Answer("a", job, 0, {Found(20, v1::VERDICT_COMPLETE)});
  AnswerAgain("a", job, 0, "/ckpt/step_10");
  EXPECT_FALSE(kit_.state.jobs.at(job)->attempt->launched);
  kit_.Restart();  // between the rounds: the question is asked again
  kit_.Connect({"a"});
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_20");
  AnswerAgain("a", job, 0, "/ckpt/step_20");
  EXPECT_TRUE(kit_.state.jobs.at(job)->attempt->launched);
}

TEST_F(CheckpointTest, NothingThereMeansNoSecondRound) {
  const JobId job = kit_.Submit(Spec(1));
  Answer("a", job, 0, {});
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 1u);
  EXPECT_FALSE(kit_.Status(job).has_checkpoint());
}

TEST_F(CheckpointTest, WithoutACompleteOneTheNewestUnverified) {
  const JobId job = kit_.Submit(Spec(1));
  Answer("a", job, 0,
         {Found(40, v1::VERDICT_PARTIAL, agent::ckpt::kDeepSpeed), Found(30, v1::VERDICT_UNVERIFIED, ""),
          Found(20, v1::VERDICT_WEIGHTS_ONLY)});
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_30");
  EXPECT_THAT(Aside(SecondOf("a")), IsEmpty()) << "DeepSpeed follows its pointer";
  AnswerAgain("a", job, 0, "/ckpt/step_30");
  EXPECT_THAT(
      Alarms(job)[0],
      HasSubstr("no complete checkpoint: resuming from /ckpt/step_30 (UNVERIFIED: as the test says)"));
}

TEST_F(CheckpointTest, NothingCanBeLoaded) {
  const JobId job = kit_.Submit(Spec(1));
  Answer("a", job, 0, {Found(40, v1::VERDICT_PARTIAL, agent::ckpt::kTrainer)});
  EXPECT_EQ(SecondOf("a").resume(), kResumeNothing);
  EXPECT_THAT(Aside(SecondOf("a")), IsEmpty()) << "to fail loudly is better than to begin anew";
  AnswerAgain("a", job, 0, kResumeNothing);
  EXPECT_TRUE(kit_.state.jobs.at(job)->attempt->launched);
  EXPECT_FALSE(kit_.Status(job).has_checkpoint());
}

TEST_F(CheckpointTest, FilesOnTwoNodesMakeOneCheckpoint) {
  const JobId job = kit_.Submit(Spec(2));
  v1::CheckpointFinding with_metadata = Found(20, v1::VERDICT_PARTIAL);
  with_metadata.mutable_checkpoint()->set_file("__1_0.distcp");
  with_metadata.add_missing()->set_name("__1_0.distcp");
  with_metadata.mutable_missing(0)->set_bytes(100);
  with_metadata.add_present()->set_name(".metadata");
  v1::CheckpointFinding shards = Found(20, v1::VERDICT_PARTIAL);
  shards.add_present()->set_name("__1_0.distcp");
  shards.mutable_present(0)->set_bytes(100);
  shards.mutable_checkpoint()->set_file(".metadata");
  shards.add_missing()->set_name(".metadata");
  Answer("a", job, 0, {with_metadata, Found(10, v1::VERDICT_COMPLETE)});
  EXPECT_EQ(SecondOf("a").resume(), "") << "not before all have said what they found";
  Answer("b", job, 0, {shards});
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_20");
  EXPECT_EQ(SecondOf("b").resume(), "/ckpt/step_20");
  AnswerAgain("b", job, 0, "/ckpt/step_20");
  AnswerAgain("a", job, 0, "/ckpt/step_20");
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 20);
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 2u);
}

TEST_F(CheckpointTest, WhatAnotherNodeMayHoldIsNotMovedAside) {
  const JobId job = kit_.Submit(Spec(2));
  Answer("a", job, 0, {Found(30, v1::VERDICT_PARTIAL), Found(20, v1::VERDICT_COMPLETE)});
  Answer("b", job, 0, {});
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_20");
  EXPECT_THAT(Aside(SecondOf("a")), IsEmpty());
}

TEST_F(CheckpointTest, TwoFailuresOfOneRootPoison) {
  const JobId job = kit_.Submit(Spec(1));
  const std::vector<v1::CheckpointFinding> both = {Found(20, v1::VERDICT_COMPLETE),
                                                   Found(10, v1::VERDICT_COMPLETE)};
  Start(job, 0, both);
  Fail(job, 0, absl::Seconds(20), "RuntimeError: bad tensor 17 at 0x7f01");
  EXPECT_THAT(kit_.state.jobs.at(job)->poisoned, IsEmpty());
  Start(job, 1, both);
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 20);
  Fail(job, 1, absl::Seconds(20), "RuntimeError: bad tensor 99 at 0x7fa2");
  ASSERT_EQ(kit_.state.jobs.at(job)->poisoned.size(), 1u);
  Answer("a", job, 2, both);
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_10");
  EXPECT_THAT(Aside(SecondOf("a")), ElementsAre("/ckpt/step_20"));
  AnswerAgain("a", job, 2, "/ckpt/step_10");
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 10);
  EXPECT_THAT(Alarms(job)[0], HasSubstr("two attempts failed in the same way soon after loading it"));
}

TEST_F(CheckpointTest, OtherRootsAndLaterFailuresDoNotPoison) {
  struct Case {
    absl::Duration after;
    std::string line;
    int code;
  };
  for (const Case& second : {Case{absl::Seconds(20), "other", 1}, Case{absl::Seconds(20), "bad 1", 2},
                             Case{absl::Minutes(11), "bad 1", 1}}) {
    const JobId job = kit_.Submit(Spec(1));
    const std::vector<v1::CheckpointFinding> both = {Found(20, v1::VERDICT_COMPLETE),
                                                     Found(10, v1::VERDICT_COMPLETE)};
    Start(job, 0, both);
    Fail(job, 0, absl::Seconds(20), "bad 1");
    Start(job, 1, both);
    Fail(job, 1, second.after, second.line, second.code);
    EXPECT_THAT(kit_.state.jobs.at(job)->poisoned, IsEmpty());
    kit_.Stop(job);
  }
}

TEST_F(CheckpointTest, TheLastCompleteOneIsNeverPoisoned) {
  const JobId job = kit_.Submit(Spec(1));
  for (uint32_t k = 0; k < 4; ++k) {
    Start(job, k, {Found(20, v1::VERDICT_COMPLETE)});
    EXPECT_EQ(kit_.Status(job).checkpoint().step(), 20);
    Fail(job, k, absl::Seconds(20), "bad");
  }
  EXPECT_THAT(kit_.state.jobs.at(job)->poisoned, IsEmpty());
  EXPECT_THAT(Alarms(job)[0], HasSubstr("it is the last complete one"));
}

TEST_F(CheckpointTest, APoisonedOneIsGivenAgainWhenNoOtherIsLeft) {
  const JobId job = kit_.Submit(Spec(1));
  for (uint32_t k = 0; k < 2; ++k) {
    Start(job, k, {Found(20, v1::VERDICT_COMPLETE), Found(10, v1::VERDICT_COMPLETE)});
    Fail(job, k, absl::Seconds(20), "bad");
  }
  ASSERT_EQ(kit_.state.jobs.at(job)->poisoned.size(), 1u);
  Answer("a", job, 2, {Found(20, v1::VERDICT_COMPLETE), Found(5, v1::VERDICT_UNVERIFIED, "")});
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_20");
  EXPECT_THAT(Aside(SecondOf("a")), IsEmpty());
  AnswerAgain("a", job, 2, "/ckpt/step_20");
  EXPECT_THAT(Alarms(job)[1], HasSubstr("it is the last complete one, so it is loaded again"));
}

TEST_F(CheckpointTest, ANewCheckpointOfTheSameNameIsNotPoisoned) {
  const JobId job = kit_.Submit(Spec(1));
  const std::vector<v1::CheckpointFinding> both = {Found(20, v1::VERDICT_COMPLETE),
                                                   Found(10, v1::VERDICT_COMPLETE)};
  for (uint32_t k = 0; k < 2; ++k) {
    Start(job, k, both);
    Fail(job, k, absl::Seconds(20), "bad");
  }
  Answer("a", job, 2, {Found(20, v1::VERDICT_COMPLETE, "dcp", 77), Found(10, v1::VERDICT_COMPLETE)});
  EXPECT_EQ(SecondOf("a").resume(), "/ckpt/step_20");
}

class ElasticTest : public CheckpointTest {
 protected:
  // Two nodes run from a checkpoint of this format; then b is lost and fenced.
  JobId LoseOne(std::string_view format) {
    v1::JobSpec spec = Spec(2);
    spec.set_min_nodes(1);
    const JobId job = kit_.Submit(spec);
    for (const char* node : {"a", "b"}) Answer(node, job, 0, {Found(20, v1::VERDICT_COMPLETE, format)});
    for (const char* node : {"a", "b"}) AnswerAgain(node, job, 0, "/ckpt/step_20");
    kit_.Started("a", job, 0, {0});
    kit_.Started("b", job, 0, {1});
    kit_.Run(absl::Seconds(6), {"a"});
    kit_.Gone("a", job, 0, {CoreKit::Exit(0, 0, 15)});
    kit_.Run(absl::Seconds(30), {"a"});
    return job;
  }
};

TEST_F(ElasticTest, GoesOnWithFewerNodesWhereTheFormatCan) {
  const JobId job = LoseOne(agent::ckpt::kDcp);
  ASSERT_EQ(kit_.state.jobs.at(job)->attempt->number, AttemptNo(1));
  ASSERT_EQ(kit_.state.jobs.at(job)->attempt->nodes.size(), 1u);
  Answer("a", job, 1, {Found(20, v1::VERDICT_COMPLETE)});
  AnswerAgain("a", job, 1, "/ckpt/step_20");
  const auto launches = kit_.Sent(Kind::kLaunch);
  ASSERT_EQ(launches.size(), 1u);
  const v1::NodePlan& plan = launches[0].message.launch().plan();
  for (const v1::EnvVar& var : plan.common_env()) {
    if (var.name() == "WORLD_SIZE") {
      EXPECT_EQ(var.value(), "1");
    }
  }
  kit_.Started("a", job, 1, {0});
  kit_.Exited("a", job, 1, CoreKit::Exit(0, 0));
  kit_.Gone("a", job, 1);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ElasticTest, WaitsWhereItCannotAndSaysWhy) {
  const JobId job = LoseOne(agent::ckpt::kDeepSpeed);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(kit_.Status(job).waiting_for(), HasSubstr("fewer cannot load /ckpt/step_20"));
  KitNode back{"b"};
  back.boot = "boot-2";
  kit_.Connect(back);
  EXPECT_EQ(kit_.state.jobs.at(job)->attempt->number, AttemptNo(1));
  EXPECT_EQ(kit_.state.jobs.at(job)->attempt->nodes.size(), 2u);
}

TEST_F(ElasticTest, WhatThePlacementDidNotKnowIsSeenBeforeTheLaunchAndTheNodeIsWaitedFor) {
  const JobId job = LoseOne(agent::ckpt::kDcp);
  const std::vector<v1::CheckpointFinding> found = {Found(30, v1::VERDICT_COMPLETE, agent::ckpt::kDeepSpeed)};
  Answer("a", job, 1, found);
  AnswerAgain("a", job, 1, "/ckpt/step_30");
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 0u);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(kit_.Status(job).restarts(), 1u) << "that of the lost node: what was not launched is free";
  EXPECT_THAT(kit_.Status(job).waiting_for(),
              HasSubstr("2 nodes (1 now); fewer cannot load /ckpt/step_30: DeepSpeed raises"));
  kit_.Run(absl::Seconds(30), {"a"});
  kit_.Restart();
  kit_.Connect({"a"});
  kit_.Run(absl::Seconds(3), {"a"});
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_QUEUED) << "known from the log";
  EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_NODE_LOST);
  KitNode back{"b"};
  back.boot = "boot-2";
  kit_.Connect(back);
  ASSERT_EQ(kit_.state.jobs.at(job)->attempt->number, AttemptNo(2));
  for (const char* node : {"a", "b"}) Answer(node, job, 2, found);
  for (const char* node : {"a", "b"}) AnswerAgain(node, job, 2, "/ckpt/step_30");
  EXPECT_EQ(kit_.Sent(Kind::kLaunch).size(), 2u);
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 30);
}

TEST_F(ElasticTest, WaitsForTheDiskThatHoldsAPart) {
  v1::JobSpec spec = Spec(2);
  spec.set_min_nodes(1);
  const JobId job = kit_.Submit(spec);
  for (const char* node : {"a", "b"}) Answer(node, job, 0, {});
  kit_.Started("a", job, 0, {0});
  kit_.Started("b", job, 0, {1});
  kit_.contacts.progress.clear();
  for (const char* node : {"a", "b"}) Progress(node, job, 0, {Part(node, 20)});
  ASSERT_EQ(kit_.Status(job).progress().newest().step(), 20);
  kit_.Run(absl::Seconds(6), {"a"});
  kit_.Gone("a", job, 0, {CoreKit::Exit(0, 0, 15)});
  kit_.Run(absl::Seconds(30), {"a"});
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(kit_.Status(job).waiting_for(), HasSubstr("each node has a part of it on its own disk"));
}

TEST_F(CheckpointTest, WhatLayOnALostDiskIsMissedAloud) {
  v1::JobSpec spec = Spec(1);
  const JobId job = kit_.Submit(spec);
  Start(job, 0, {Found(20, v1::VERDICT_COMPLETE)});
  Fail(job, 0, absl::Seconds(20), "bad");
  Answer("a", job, 1, {});
  EXPECT_THAT(Alarms(job), ElementsAre(HasSubstr("checkpoint /ckpt/step_20 was complete, and none of these "
                                                 "nodes has it now: training begins anew")));
}

TEST_F(CheckpointTest, WhatARestartTakesIsMeasuredAndKept) {
  const JobId job = kit_.Submit(Spec(1));
  Start(job, 0, {});
  Progress(job, 0, 1, 1);
  EXPECT_EQ(kit_.Status(job).progress().restart_s(), 0) << "no failure yet";
  const auto fail = [&](uint32_t attempt, absl::Duration then) {
    kit_.Exited("a", job, attempt, CoreKit::Exit(0, 1));
    kit_.now += absl::Seconds(2);
    kit_.Gone("a", job, attempt);
    kit_.Run(absl::Minutes(1), {"a", "b"});  // whatever it waits
    Start(job, attempt + 1, {});
    kit_.now += then - (kit_.now - kit_.state.jobs.at(job)->failed_at);
    kit_.Beat("a");
    kit_.Beat("b");
  };
  fail(0, absl::Seconds(90));
  kit_.Restart();
  KitNode again{"a"};
  again.snapshot.emplace_back().set_job_id(job.str());
  again.snapshot[0].set_attempt(1);
  again.snapshot[0].set_phase(v1::ATTEMPT_PHASE_RUNNING);
  kit_.Connect(again);
  kit_.Connect({"b"});
  EXPECT_EQ(kit_.Status(job).progress().restart_s(), 0) << "the script has not spoken yet";
  Progress(job, 1, 2, 2);
  Progress(job, 1, 2, 3);
  EXPECT_DOUBLE_EQ(kit_.Status(job).progress().restart_s(), 90);
  fail(1, absl::Seconds(70));
  Progress(job, 2, 3, 3);
  fail(2, absl::Seconds(400));
  Progress(job, 3, 3, 3);
  EXPECT_DOUBLE_EQ(kit_.Status(job).progress().restart_s(), 90) << "the median";
  kit_.Restart();
  EXPECT_DOUBLE_EQ(kit_.Status(job).progress().restart_s(), 90) << "from the log";
}

class KeepTest : public CheckpointTest {
 protected:
  JobId Begin(const std::vector<v1::CheckpointFinding>& a, const std::vector<v1::CheckpointFinding>& b) {
    v1::JobSpec spec = Spec(2);
    spec.mutable_ckpt()->set_keep_last(1);
    spec.mutable_ckpt()->set_keep_every(100);
    const JobId job = kit_.Submit(spec);
    Answer("a", job, 0, a);
    Answer("b", job, 0, b);
    for (const char* node : {"a", "b"}) {
      const bool has = !(std::string(node) == "a" ? a : b).empty();
      if (has) AnswerAgain(node, job, 0, SecondOf(node).resume());
    }
    kit_.Started("a", job, 0, {0});
    kit_.Started("b", job, 0, {1});
    return job;
  }
  // "a: /ckpt/step_20 ..." of each node that is told something by the last input.
  std::vector<std::string> Told() {
    std::vector<std::string> all;
    for (const SendToNode& send : kit_.Sent(Kind::kRemove)) {
      const v1::RemoveCheckpoints& remove = send.message.remove();
      std::string text = absl::StrCat(send.node.str().substr(3), remove.by_rule() ? " by rule" : "");
      for (const auto& checkpoint : remove.checkpoints()) absl::StrAppend(&text, " ", checkpoint.step());
      all.push_back(text);
    }
    return all;
  }
};

TEST_F(KeepTest, OneNodeTendsAFolderThatAllShare) {
  const JobId job = Begin({}, {});
  Progress("a", job, 0, {Found(10, v1::VERDICT_COMPLETE)});
  EXPECT_THAT(Told(), IsEmpty()) << "b has not said what it sees";
  Progress("b", job, 0, {Found(10, v1::VERDICT_COMPLETE)});
  EXPECT_THAT(Told(), ElementsAre("a by rule 10"));
}

TEST_F(KeepTest, ANodeWithoutAFolderIsNotWaitedFor) {
  const JobId job = Begin({}, {});
  Progress("b", job, 0, {Found(10, v1::VERDICT_COMPLETE)});
  EXPECT_THAT(Told(), IsEmpty());
  Progress("b", job, 0, {Found(15, v1::VERDICT_COMPLETE)});
  EXPECT_THAT(Told(), IsEmpty()) << "saves may come faster than a node can tell";
  kit_.now += absl::Seconds(10);
  Progress("b", job, 0, {Found(20, v1::VERDICT_COMPLETE)});
  EXPECT_THAT(Told(), ElementsAre("b by rule 20"));
}

TEST_F(KeepTest, SharesOnDisksOfTheirOwnGoEverywhereOnceTheNewOneIsWhole) {
  const JobId job =
      Begin({Part("a", 100), Part("a", 90), Part("a", 80)}, {Part("b", 100), Part("b", 90), Part("b", 80)});
  EXPECT_EQ(kit_.Status(job).checkpoint().step(), 100);
  Progress("a", job, 0, {Part("a", 110)});
  EXPECT_THAT(Told(), IsEmpty()) << "whether b's part is good nobody knows";
  EXPECT_EQ(kit_.Status(job).progress().complete(), 0u);
  Progress("b", job, 0, {Part("b", 110)}, "", {"step_80"});
  EXPECT_THAT(Told(), ElementsAre("a 90", "b 90")) << "100 is a milestone, b has pinned 80";
  Progress("a", job, 0, {Part("a", 120)}, "/ckpt/step_90");
  EXPECT_THAT(Told(), IsEmpty());
  Progress("b", job, 0, {Part("b", 120)}, "/ckpt/step_90", {});
  EXPECT_THAT(Told(), ElementsAre("a 110 80", "b 110 80"));
  kit_.Stop(job);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(KeepTest, WhatIsGoodOnOneNodeOnlyRemovesNothing) {
  const JobId job = Begin({Part("a", 90), Part("a", 80)}, {Part("b", 90), Part("b", 80)});
  v1::CheckpointFinding damaged = Found(110, v1::VERDICT_CORRUPT);
  Progress("a", job, 0, {Part("a", 110)});
  Progress("b", job, 0, {damaged});
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(ElasticTest, NotWithoutTheWishAndNeverBelowIt) {
  for (const uint32_t least : {0u, 2u}) {
    v1::JobSpec spec = Spec(2);
    spec.set_min_nodes(least);
    const JobId job = kit_.Submit(spec);
    for (const char* node : {"a", "b"}) Answer(node, job, 0, {});
    kit_.Started("a", job, 0, {0});
    kit_.Started("b", job, 0, {1});
    kit_.Run(absl::Seconds(6), {"a"});
    kit_.Gone("a", job, 0, {CoreKit::Exit(0, 0, 15)});
    kit_.Run(absl::Seconds(30), {"a"});
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_QUEUED);
    kit_.Stop(job);
    kit_.Connect({"b"});
  }
  v1::JobSpec spec = Spec(1);
  spec.set_min_nodes(2);
  EXPECT_THAT(kit_.SubmitStatus(spec).message(), HasSubstr("--elastic 2"));
}

TEST_F(CheckpointTest, ProgressIsTold) {
  const JobId job = kit_.Submit(Spec(1));
  Start(job, 0, {Found(100, v1::VERDICT_COMPLETE)});
  EXPECT_EQ(kit_.Status(job).progress().newest().step(), 100) << "what it was given";
  Progress(job, 0, 101, 110);
  kit_.now += absl::Seconds(10);
  Progress(job, 0, 101, 130, {Found(120, v1::VERDICT_COMPLETE)}, 5000);
  const v1::Progress progress = kit_.Status(job).progress();
  EXPECT_EQ(progress.first_step(), 101);
  EXPECT_EQ(progress.step(), 130);
  EXPECT_TRUE(progress.from_script());
  EXPECT_DOUBLE_EQ(progress.steps_per_second(), 2);
  EXPECT_EQ(progress.newest().step(), 120);
  EXPECT_EQ(progress.free_bytes(), 5000u);
  EXPECT_THAT(Alarms(job), IsEmpty());
  kit_.Restart();
  EXPECT_FALSE(kit_.Status(job).progress().has_step()) << "volatile";
}

TEST_F(CheckpointTest, SilentResetWarnsOrStops) {
  for (const bool stop : {false, true}) {
    v1::JobSpec spec = Spec(1);
    spec.mutable_ckpt()->set_stop_on_reset(stop);
    const JobId job = kit_.Submit(spec);
    Start(job, 0, {Found(100, v1::VERDICT_COMPLETE)});
    Progress(job, 0, 0, 3);
    Progress(job, 0, 0, 4);
    ASSERT_EQ(Alarms(job).size(), 1u);
    EXPECT_THAT(Alarms(job)[0], HasSubstr("silent reset"));
    EXPECT_EQ(kit_.Status(job).state(), stop ? v1::JOB_STATE_STOPPING : v1::JOB_STATE_RUNNING);
    if (!stop) kit_.Stop(job);
    v1::RankReport killed = CoreKit::Exit(0, 0, 15);
    killed.set_after_stop(true);
    kit_.Exited("a", job, 0, killed);
    kit_.Gone("a", job, 0);
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STOPPED);
  }
}

TEST_F(CheckpointTest, AResetIsSeenByCheckpointsTooButNeverStops) {
  v1::JobSpec spec = Spec(1);
  spec.mutable_ckpt()->set_stop_on_reset(true);
  const JobId job = kit_.Submit(spec);
  Start(job, 0, {Found(100, v1::VERDICT_COMPLETE)});
  Progress(job, 0, 0, -1, {Found(10, v1::VERDICT_COMPLETE, "dcp", 900000)});
  EXPECT_THAT(Alarms(job), ElementsAre(HasSubstr("its first new checkpoint is of step 10")));
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CheckpointTest, ACheckpointWithoutAStepIsNoReset) {
  const JobId job = kit_.Submit(Spec(1));
  Start(job, 0, {Found(100, v1::VERDICT_COMPLETE)});
  Progress(job, 0, 0, -1, {Found(-1, v1::VERDICT_COMPLETE, "dcp", 900000)});
  Progress(job, 0, 0, -1, {Found(110, v1::VERDICT_COMPLETE, "dcp", 910000)});
  EXPECT_EQ(kit_.Status(job).progress().step(), 110);
  EXPECT_THAT(Alarms(job), IsEmpty());
}

TEST_F(CheckpointTest, NoNewCheckpointAndAFullDisk) {
  const JobId job = kit_.Submit(Spec(1));
  Start(job, 0, {});
  const int64_t minute = 60'000'000'000;
  std::vector<v1::CheckpointFinding> seen;
  for (int64_t i = 1; i <= 4; ++i) seen.push_back(Found(i, v1::VERDICT_COMPLETE, "dcp", i * minute));
  Progress(job, 0, 0, -1, seen, 2000);
  EXPECT_DOUBLE_EQ(kit_.Status(job).progress().save_interval_s(), 60);
  kit_.Run(absl::Seconds(170), {"a", "b"});
  EXPECT_THAT(Alarms(job), IsEmpty());
  kit_.Run(absl::Seconds(15), {"a", "b"});
  EXPECT_THAT(Alarms(job), ElementsAre(HasSubstr("no new complete checkpoint for 3 min")));
  Progress(job, 0, 0, -1, {Found(5, v1::VERDICT_COMPLETE, "dcp", 8 * minute)}, 900);
  EXPECT_THAT(Alarms(job)[1], HasSubstr("will not fit"));
  Progress(job, 0, 0, -1, {}, 0, "TMPDIR is on another file system than /ckpt");
  EXPECT_THAT(Alarms(job)[2], HasSubstr("TMPDIR"));
  EXPECT_EQ(kit_.Status(job).alarms(2).node(), "a");
}

TEST_F(CheckpointTest, SuspiciousSuccess) {
  struct Case {
    int64_t step;
    bool suspicious;
  };
  for (const Case& c : {Case{940, true}, Case{960, false}, Case{-1, false}}) {
    v1::JobSpec spec = Spec(1);
    spec.mutable_ckpt()->set_last_step(1000);
    const JobId job = kit_.Submit(spec);
    Start(job, 0, {});
    if (c.step >= 0) Progress(job, 0, 0, c.step);
    kit_.Exited("a", job, 0, CoreKit::Exit(0, 0));
    kit_.Gone("a", job, 0);
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(Alarms(job).size(), c.suspicious ? 1u : 0u) << c.step;
  }
}

TEST_F(CheckpointTest, SuccessWithoutAStepAfterABadCheckpointIsSuspicious) {
  const JobId job = kit_.Submit(Spec(1));
  Start(job, 0, {Found(40, v1::VERDICT_CORRUPT), Found(20, v1::VERDICT_COMPLETE)});
  kit_.Exited("a", job, 0, CoreKit::Exit(0, 0));
  kit_.Gone("a", job, 0);
  EXPECT_THAT(Alarms(job)[1], HasSubstr("suspicious success"));
}

}  // namespace
}  // namespace dgxrun::core
