// Nodes: admission, silence, fencing, return; and what a submit may ask of them.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

using ::testing::HasSubstr;
using Kind = SendToNode::Kind;

JobId Running(CoreKit* kit, const std::string& first = "a", const std::string& second = "b") {
  const JobId job = kit->Submit(kit->Spec(2, 2));
  kit->Prepared(first, job, 0);
  kit->Prepared(second, job, 0);
  kit->Started(first, job, 0, {0, 1});
  kit->Started(second, job, 0, {2, 3});
  EXPECT_EQ(kit->Status(job).state(), v1::JOB_STATE_RUNNING);
  return job;
}

v1::AttemptSnapshot Holds(const JobId& job, uint32_t attempt) {
  v1::AttemptSnapshot snapshot;
  snapshot.set_job_id(job.str());
  snapshot.set_attempt(attempt);
  snapshot.set_phase(v1::ATTEMPT_PHASE_RUNNING);
  return snapshot;
}

TEST(Node, LostThenFencedThenReplaced) {
  CoreKit kit;
  for (const char* name : {"a", "b", "c"}) kit.Connect({name});
  const JobId job = Running(&kit);
  kit.Disconnect("b");
  kit.Run(absl::Seconds(4), {"a", "c"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_RUNNING) << "a closed stream alone is no loss";
  kit.Run(absl::Seconds(2), {"a", "c"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(kit.Status(job).why().cause(), v1::CAUSE_NODE_LOST);
  EXPECT_EQ(kit.Status(job).nodes(1).state(), v1::NODE_STATE_LOST);
  EXPECT_EQ(kit.Status(job).nodes(1).ranks(0).state(), v1::RANK_STATE_UNKNOWN);
  kit.Gone("a", job, 0);
  EXPECT_EQ(kit.Status(job).attempt(), 0u);
  EXPECT_THAT(kit.Status(job).waiting_for(), HasSubstr("node b (lost) to be fenced"));
  kit.Run(absl::Seconds(7), {"a", "c"});
  EXPECT_EQ(kit.Status(job).attempt(), 0u) << "its lease of 10 s may still run";
  kit.Run(absl::Seconds(2), {"a", "c"});
  EXPECT_EQ(kit.Status(job).attempt(), 1u);
  EXPECT_EQ(kit.Status(job).nodes(0).name(), "a");
  EXPECT_EQ(kit.Status(job).nodes(1).name(), "c") << "replaced in place";
  const v1::JobStatus status = kit.Status(job);
  ASSERT_EQ(status.placements_size(), 2) << "where the logs of each attempt are";
  EXPECT_EQ(status.placements(0).first_attempt(), 0u);
  EXPECT_EQ(status.placements(0).nodes(1).name(), "b");
  EXPECT_EQ(status.placements(1).first_attempt(), 1u);
  EXPECT_EQ(status.placements(1).nodes(1).name(), "c");
}

TEST(Node, OutlivedAttemptIsStoppedAndKeepsTheNodeUnusable) {
  CoreKit kit;
  KitNode b{"b"};
  kit.Connect({"a"});
  kit.Connect(b);
  const JobId job = Running(&kit);
  kit.Disconnect("b");
  kit.Run(absl::Seconds(20), {"a"});
  kit.Gone("a", job, 0);
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_QUEUED);
  b.snapshot = {Holds(job, 0)};
  kit.Connect(b);
  ASSERT_EQ(kit.Sent(Kind::kStop).size(), 1u);
  EXPECT_EQ(kit.Sent(Kind::kStop)[0].message.stop().grace_ms(), 0u);
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_QUEUED) << "attempt 0 still lives on b";
  kit.Gone("b", job, 0);
  EXPECT_EQ(kit.Status(job).attempt(), 1u);
}

TEST(Node, ReturnsBeforeItsFence) {
  CoreKit kit;
  KitNode b{"b"};
  kit.Connect({"a"});
  kit.Connect(b);
  const JobId job = Running(&kit);
  kit.Disconnect("b");
  kit.Run(absl::Seconds(7), {"a"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_STOPPING);
  b.snapshot = {Holds(job, 0)};
  kit.Connect(b);
  ASSERT_EQ(kit.Sent(Kind::kStop).size(), 2u);
  kit.Gone("a", job, 0);
  kit.Gone("b", job, 0, {}, v1::CAUSE_UNSPECIFIED);
  EXPECT_EQ(kit.Status(job).attempt(), 1u);
}

TEST(Node, QuickAgentRestartHarmsNoJob) {
  CoreKit kit;
  KitNode b{"b"};
  kit.Connect({"a"});
  kit.Connect(b);
  const JobId job = Running(&kit);
  kit.Disconnect("b");
  b.snapshot = {Holds(job, 0)};
  kit.Connect(b);
  kit.Run(absl::Seconds(30), {"a", "b"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(kit.Status(job).attempt(), 0u);
}

TEST(Node, ControllerRestartHarmsNoJob) {
  CoreKit kit;
  KitNode a{"a"}, b{"b"};
  kit.Connect(a);
  kit.Connect(b);
  const JobId job = Running(&kit);
  kit.Restart();
  EXPECT_EQ(kit.Status(job).nodes(0).state(), v1::NODE_STATE_UNKNOWN);
  EXPECT_EQ(kit.state.term, 2u);
  a.snapshot = {Holds(job, 0)};
  b.snapshot = {Holds(job, 0)};
  kit.Run(absl::Seconds(3), {});
  kit.Connect(a);
  kit.Connect(b);
  kit.Run(absl::Seconds(30), {"a", "b"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(kit.Status(job).attempt(), 0u);
}

TEST(Node, APauseOfTheControllerIsNobodysSilence) {
  CoreKit kit;
  kit.Connect({"a"});
  kit.Connect({"b"});
  const JobId job = Running(&kit);
  kit.now += absl::Minutes(10);
  kit.Feed(Tick{});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_RUNNING);
  kit.Run(absl::Seconds(30), {"a", "b"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_RUNNING);
}

TEST(Node, RebootIsProof) {
  CoreKit kit;
  KitNode b{"b"};
  kit.Connect({"a"});
  kit.Connect(b);
  const JobId job = Running(&kit);
  b.boot = "boot-2";
  kit.Connect(b);
  EXPECT_EQ(kit.Status(job).why().cause(), v1::CAUSE_NODE_LOST);
  kit.Gone("a", job, 0);
  EXPECT_EQ(kit.Status(job).attempt(), 1u) << "no fence to wait for";
}

TEST(Node, LostLaunchIsSentAgain) {
  CoreKit kit;
  kit.Connect({"a"});
  kit.Connect({"b"});
  const JobId job = kit.Submit(kit.Spec(2, 2));
  kit.Prepared("a", job, 0);
  kit.Prepared("b", job, 0);
  kit.Started("a", job, 0, {0, 1});
  kit.Connect({"b"});
  ASSERT_EQ(kit.Sent(Kind::kLaunch).size(), 1u);
  EXPECT_EQ(kit.Sent(Kind::kLaunch)[0].node, kit.Id("b"));
}

TEST(Node, NewerAttemptThanTheLogIsLeftAlone) {
  CoreKit kit;
  KitNode b{"b"};
  kit.Connect({"a"});
  kit.Connect(b);
  const JobId job = Running(&kit);
  b.snapshot = {Holds(job, 4)};
  kit.Connect(b);
  EXPECT_EQ(kit.Sent(Kind::kStop).size(), 0u);
  kit.Exited("a", job, 0, CoreKit::Exit(0, 1));
  EXPECT_EQ(kit.Sent(Kind::kStop).size(), 0u);
  EXPECT_THAT(kit.Status(job).waiting_for(), HasSubstr("newer attempt"));
  EXPECT_THAT(DescribeNode(kit.state, kit.contacts, kit.Id("b"), kit.now).detail(), HasSubstr("left alone"));
}

TEST(Node, AttemptOfAnArchivedJobHasToGo) {
  CoreKit kit;
  KitNode a{"a"};
  kit.Connect(a);
  kit.state.last_job_number = 5;
  kit.check_replay = false;
  a.snapshot = {Holds(JobId("abcdef-3"), 1)};
  kit.Connect(a);
  EXPECT_EQ(kit.Sent(Kind::kStop).size(), 1u);
  EXPECT_EQ(kit.Sent(Kind::kForget).size(), 1u);
}

TEST(Node, Refusals) {
  CoreKit kit;
  kit.Connect({"a"});
  auto hello = [&](const std::string& id, const std::string& name) {
    NodeConnected input;
    input.connection = ++kit.last_connection;
    *input.hello.mutable_version() = kit.contacts.config.version;
    input.hello.set_node_id(id);
    input.hello.set_node_name(name);
    return input;
  };
  auto refused = [&](NodeConnected input) {
    const size_t records = kit.log.size();
    kit.Feed(input);
    EXPECT_EQ(kit.log.size(), records);
    EXPECT_EQ(kit.Sent(Kind::kWelcome).size(), 0u);
    for (const SendToNode& sent : kit.Sent(Kind::kRefuse)) {
      if (sent.connection != input.connection) continue;
      EXPECT_TRUE(sent.message.refused().final());
      return sent.message.refused().reason();
    }
    return std::string();
  };
  EXPECT_THAT(refused(hello("other", "a")), HasSubstr("is taken"));
  EXPECT_THAT(refused(hello("x", "bad name")), HasSubstr("must match"));
  NodeConnected input = hello("x", "x");
  input.hello.mutable_version()->set_major(9);
  EXPECT_THAT(refused(input), HasSubstr("speaks version 9.0"));
  input = hello("x", "x");
  input.hello.set_cluster_id("another");
  EXPECT_THAT(refused(input), HasSubstr("belongs to cluster another"));
  input = hello("x", "x");
  input.hello.set_term(7);
  EXPECT_THAT(refused(input), HasSubstr("served term 7"));
}

TEST(Node, HeartbeatsDecideNothing) {
  CoreKit kit;
  kit.Connect({"a"});
  const size_t records = kit.log.size();
  kit.Beat("a");
  EXPECT_EQ(kit.log.size(), records);
  ASSERT_EQ(kit.Sent(Kind::kHeartbeatAnswer).size(), 1u);
  EXPECT_EQ(kit.Sent(Kind::kHeartbeatAnswer)[0].message.answer().number(), kit.beat);
}

TEST(Capacity, GpusAreHeldUntilGone) {
  CoreKit kit;
  kit.Connect({"a", 4});
  const JobId first = kit.Submit(kit.Spec(1, 3));
  const JobId second = kit.Submit(kit.Spec(1, 2));
  const JobId third = kit.Submit(kit.Spec(1, 1));
  EXPECT_EQ(kit.Status(second).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(kit.Status(third).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(DescribeNode(kit.state, kit.contacts, kit.Id("a"), kit.now).gpus_in_use_size(), 4);
  kit.Prepared("a", first, 0);
  kit.Started("a", first, 0, {0, 1, 2});
  for (uint32_t r = 0; r < 3; ++r) kit.Exited("a", first, 0, CoreKit::Exit(r, 0));
  EXPECT_EQ(kit.Status(second).state(), v1::JOB_STATE_QUEUED) << "exited is not gone";
  kit.Gone("a", first, 0);
  EXPECT_EQ(kit.Status(second).state(), v1::JOB_STATE_STARTING);
}

TEST(Capacity, SubmitErrorsNameNodeAndReason) {
  CoreKit kit;
  EXPECT_THAT(std::string(kit.SubmitStatus(kit.Spec(1, 1)).message()),
              HasSubstr("no agent has ever connected"));
  kit.Connect({"a", 4});
  KitNode broken{"b"};
  broken.pci_gpus = 8;
  broken.gpu_error = "libnvidia-ml.so.1: driver not loaded";
  kit.Connect(broken);
  auto message = [&](const v1::JobSpec& spec) { return std::string(kit.SubmitStatus(spec).message()); };
  EXPECT_THAT(message(kit.Spec(3, 1)), HasSubstr("3 nodes asked for, test has 2: a, b"));
  EXPECT_THAT(message(kit.Spec(2, 1)), HasSubstr("node b: libnvidia-ml.so.1: driver not loaded"));
  EXPECT_THAT(message(kit.Spec(1, 8)), HasSubstr("node a has 4 GPUs"));
  EXPECT_THAT(message(kit.Spec(1, 0)), HasSubstr("node b: libnvidia-ml.so.1"));
  v1::JobSpec cpu = kit.Spec(2, 2);
  cpu.set_device(v1::DEVICE_CPU);
  EXPECT_EQ(message(cpu), "");
  v1::JobSpec spec = kit.Spec(1, 1);
  spec.set_cwd("data");
  EXPECT_THAT(message(spec), HasSubstr("absolute path"));
}

TEST(Capacity, AllGpusMustAgree) {
  CoreKit kit;
  kit.Connect({"a", 4});
  EXPECT_EQ(kit.Status(kit.Submit(kit.Spec(1, 0))).ranks_per_node(), 4u);
  kit.Connect({"b", 8});
  EXPECT_THAT(std::string(kit.SubmitStatus(kit.Spec(2, 0)).message()),
              HasSubstr("nodes differ: node a has 4 GPUs, node b has 8 GPUs"));
}

TEST(Capacity, OwnerMustBeRunnable) {
  CoreKit kit;
  KitNode node{"a"};
  node.user = "bob";
  kit.Connect(node);
  EXPECT_THAT(std::string(kit.SubmitStatus(kit.Spec(1, 1)).message()),
              HasSubstr("node a: its agent runs as bob"));
}

TEST(Capacity, LocalJobMayComeBeforeItsNode) {
  CoreKit kit;
  kit.contacts.config.node_comes_with_job = true;
  const JobId job = kit.Submit(kit.Spec(1, 2));
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_QUEUED);
  kit.Connect({"a"});
  EXPECT_EQ(kit.Status(job).state(), v1::JOB_STATE_STARTING);
}

}  // namespace
}  // namespace dgxrun::core
