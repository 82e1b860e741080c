// Peers mode in the core: who may come, the job that makes itself, and a controller that starts with an empty
// log beside nodes on which an attempt lives.
#include "controller/core/peers.h"
#include "controller/core/plan.h"
#include "gtest/gtest.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

using Kind = SendToNode::Kind;

v1::JobSpec OwnSpec(const std::string& word) {
  v1::JobSpec spec;
  spec.set_nodes(2);
  spec.set_ranks_per_node(2);
  spec.set_device(v1::DEVICE_CPU);
  spec.add_argv("python3");
  spec.add_argv(word);
  spec.set_cwd("/home/" + word);
  spec.set_script("/home/" + word + "/" + word);
  spec.set_grace_ms(10000);
  spec.set_max_restarts(3);
  return spec;
}

class PeersTest : public ::testing::Test {
 protected:
  PeersTest() { Configure(&kit_); }

  static void Configure(CoreKit* kit) {
    PeersConfig peers;
    peers.rdzv_id = "none";
    peers.endpoint_host = "alpha.example";
    peers.spec = OwnSpec("a.py");
    peers.spec.mutable_owner()->set_user("ada");
    peers.spec.mutable_owner()->set_uid(1000);
    kit->contacts.config.peers = peers;
    kit->contacts.config.isolation_timeout = absl::Seconds(60);
  }

  static KitNode Node(const std::string& name, uint32_t order) {
    KitNode node{name};
    node.peer = order == 0 ? "" : "10.0.0.9";
    node.user = "ada-" + name;  // another account name on each machine
    node.offer.emplace();
    node.offer->set_rdzv_id("none");
    node.offer->set_order(order);
    *node.offer->mutable_spec() = OwnSpec(name + ".py");
    return node;
  }

  const Job& OnlyJob() const {
    EXPECT_EQ(kit_.state.jobs.size(), 1u);
    return *kit_.state.jobs.begin()->second;
  }
  JobId Id() const { return OnlyJob().id; }

  // Both nodes come, prepare and are launched; the capsules are those that their agents then keep.
  void LaunchBoth() {
    kit_.Connect(Node("b", 1));
    kit_.Connect(Node("a", 0));
    Launch(0);
  }
  void Launch(uint32_t attempt) {
    kit_.Prepared("a", Id(), attempt);
    kit_.Prepared("b", Id(), attempt);
    capsules_.clear();
    for (const SendToNode& send : kit_.Sent(Kind::kLaunch)) {
      capsules_.push_back(send.message.launch().capsule());
      launches_[send.node] = send.message.launch();
    }
    ASSERT_EQ(capsules_.size(), 2u);
  }
  void StartBoth(uint32_t attempt) {
    kit_.Started("a", Id(), attempt, {0, 1});
    kit_.Started("b", Id(), attempt, {2, 3});
  }

  // A node as it says hello to the next controller.
  KitNode Holding(const std::string& name, uint32_t order, uint32_t attempt, v1::AttemptPhase phase,
                  const std::vector<v1::RankReport>& ranks = {}) {
    KitNode node = Node(name, order);
    node.cluster_id = capsules_[0].cluster_id();
    node.term = capsules_[0].term();
    node.capsules = {capsules_[0]};
    v1::AttemptSnapshot held;
    held.set_job_id(capsules_[0].job_id());
    held.set_attempt(attempt);
    held.set_phase(phase);
    for (uint32_t local = 0; local < 2; ++local) {
      v1::RankReport* rank = held.add_ranks();
      rank->set_rank(order * 2 + local);
      rank->set_pid(500 + static_cast<int>(rank->rank()));
      rank->set_state(v1::RANK_STATE_RUNNING);
      for (const v1::RankReport& given : ranks) {
        if (given.rank() == rank->rank()) *rank = given;
      }
    }
    node.snapshot = {held};
    return node;
  }

  // A controller with an empty log.
  void StartEmpty() {
    CoreKit fresh("99999999-0000-4000-8000-000000000000");
    fresh.now = kit_.now + absl::Seconds(3);
    Configure(&fresh);
    kit_ = fresh;
  }

  std::string RefusalOf(const KitNode& node, bool* final) {
    kit_.Connect(node);
    for (const SendToNode& send : kit_.Sent(Kind::kRefuse)) {
      if (send.connection != kit_.last_connection) continue;
      *final = send.message.refused().final();
      return send.message.refused().reason();
    }
    return "";
  }

  CoreKit kit_;
  std::vector<v1::JobCapsule> capsules_;
  std::map<NodeId, v1::Launch> launches_;
};

TEST_F(PeersTest, TheJobMakesItselfAndWaitsForAllNodes) {
  kit_.Connect(Node("b", 1));
  EXPECT_TRUE(kit_.state.jobs.empty()) << "the node of order 0 says what the job is";
  kit_.Connect(Node("a", 0));
  EXPECT_EQ(kit_.Status(Id()).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(OnlyJob().spec.owner().user(), "ada");
}

TEST_F(PeersTest, QueuedUntilTheLastNodeHasCome) {
  kit_.Connect(Node("a", 0));
  EXPECT_EQ(kit_.Status(Id()).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(kit_.Status(Id()).waiting_for(), "2 nodes (1 now)");
  kit_.Run(absl::Minutes(3), {"a"});
  kit_.Connect(Node("b", 1));
  EXPECT_EQ(kit_.Status(Id()).state(), v1::JOB_STATE_STARTING);
}

TEST_F(PeersTest, EachNodeRunsItsOwnCommand) {
  LaunchBoth();
  const v1::NodePlan& a = launches_[kit_.Id("a")].plan();
  const v1::NodePlan& b = launches_[kit_.Id("b")].plan();
  EXPECT_EQ(a.argv(1), "a.py");
  EXPECT_EQ(b.argv(1), "b.py");
  EXPECT_EQ(b.cwd(), "/home/b.py");
  EXPECT_EQ(a.ranks(0).rank(), 0u);
  EXPECT_EQ(b.ranks(0).rank(), 2u);
}

TEST_F(PeersTest, RankOrderIsThatOfTheCommandsNotOfTheNames) {
  KitNode z = Node("z", 0), a = Node("a", 1);
  kit_.Connect(a);
  kit_.Connect(z);
  ASSERT_NE(LiveAttempt(OnlyJob()), nullptr);
  EXPECT_EQ(LiveAttempt(OnlyJob())->nodes[0]->name, "z");
}

TEST_F(PeersTest, OthersReachRankZeroAtTheEndpoint) {
  LaunchBoth();
  EXPECT_EQ(OnlyJob().attempt->master_addr, "alpha.example");
}

TEST_F(PeersTest, OnOneMachineItIsLoopback) {
  KitNode b = Node("b", 1);
  b.peer = "127.0.0.1";
  kit_.Connect(b);
  kit_.Connect(Node("a", 0));
  Launch(0);
  EXPECT_EQ(OnlyJob().attempt->master_addr, "127.0.0.1");
}

TEST_F(PeersTest, CommandsThatDifferAreRefusedForGoodWithBothValues) {
  kit_.Connect(Node("a", 0));
  struct Case {
    std::function<void(v1::PeerOffer*)> change;
    std::string theirs, ours;
  };
  const std::vector<Case> cases = {
      {[](v1::PeerOffer* o) { o->set_rdzv_id("other"); }, "--rdzv-id other", "--rdzv-id none"},
      {[](v1::PeerOffer* o) { o->mutable_spec()->set_nodes(3); }, "--nnodes 3", "--nnodes 2"},
      {[](v1::PeerOffer* o) { o->mutable_spec()->set_ranks_per_node(4); }, "--nproc-per-node 4",
       "--nproc-per-node 2"},
      {[](v1::PeerOffer* o) { o->mutable_spec()->set_max_restarts(0); }, "--max-restarts 0",
       "--max-restarts 3"},
      {[](v1::PeerOffer* o) { o->mutable_spec()->set_device(v1::DEVICE_GPU); }, "GPUs", "the CPU"},
      {[](v1::PeerOffer* o) { o->mutable_spec()->set_ckpt_dir("/c"); }, "--ckpt-dir /c", "no --ckpt-dir"},
  };
  for (const Case& one : cases) {
    KitNode node = Node("b", 1);
    one.change(&*node.offer);
    bool final = false;
    const std::string reason = RefusalOf(node, &final);
    EXPECT_TRUE(final) << reason;
    EXPECT_NE(reason.find(one.theirs), std::string::npos) << reason;
    EXPECT_NE(reason.find(one.ours), std::string::npos) << reason;
    EXPECT_NE(reason.find("node b"), std::string::npos) << reason;
  }
}

TEST_F(PeersTest, NodeRanksAreTakenOnceAndInRange) {
  kit_.Connect(Node("a", 0));
  KitNode b = Node("b", 1);
  b.offer->set_order_given(true);
  b.offer->set_order(2);
  bool final = false;
  EXPECT_NE(RefusalOf(b, &final).find("--node-rank 2"), std::string::npos);
  EXPECT_TRUE(final);
  b.offer->set_order(1);
  kit_.Connect(b);
  KitNode c = Node("c", 1);
  c.offer->set_order_given(true);
  EXPECT_NE(RefusalOf(c, &final).find("--node-rank 1 is node b's"), std::string::npos);
  EXPECT_TRUE(final);
}

TEST_F(PeersTest, OneNodeTooManyIsRefused) {
  kit_.Connect(Node("b", 1));
  kit_.Connect(Node("a", 0));
  bool final = false;
  const std::string reason = RefusalOf(Node("c", 1), &final);
  EXPECT_TRUE(final);
  EXPECT_NE(reason.find("node c is one too many: the job has 2 nodes: a, b"), std::string::npos) << reason;
  // A node that is away, and perhaps for good, leaves room only when it is fenced.
  kit_.Disconnect("b");
  EXPECT_NE(RefusalOf(Node("c", 1), &final), "");
  EXPECT_FALSE(final);
  kit_.Run(absl::Seconds(70), {"a"});
  EXPECT_EQ(RefusalOf(Node("c", 1), &final), "");
}

TEST_F(PeersTest, AnAgentWithoutACommandAndASubmitAreRefused) {
  kit_.Connect(Node("a", 0));
  bool final = false;
  EXPECT_NE(RefusalOf(KitNode{"c"}, &final), "");
  EXPECT_TRUE(final);
  EXPECT_EQ(kit_.SubmitStatus(OwnSpec("x.py")).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PeersTest, AnEmptyLogTakesTheJobFromACapsule) {
  LaunchBoth();
  StartBoth(0);
  const JobId job = Id();
  StartEmpty();
  kit_.Connect(Holding("a", 0, 0, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(Id(), job);
  EXPECT_EQ(kit_.state.cluster_id, capsules_[0].cluster_id());
  EXPECT_GT(kit_.state.term, capsules_[0].term());
  ASSERT_FALSE(kit_.Sent(Kind::kWelcome).empty());
  EXPECT_TRUE(kit_.Sent(Kind::kWelcome)[0].message.welcome().peers());
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STARTING);
  kit_.Connect(Holding("b", 1, 0, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(kit_.Status(job).nodes(1).ranks(0).pid(), 502);
  EXPECT_TRUE(kit_.Sent(Kind::kStop).empty());
  // And it ends as if nothing had been.
  kit_.Gone("a", job, 0, {CoreKit::Exit(0, 0), CoreKit::Exit(1, 0)});
  kit_.Gone("b", job, 0, {CoreKit::Exit(2, 0), CoreKit::Exit(3, 0)});
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(PeersTest, ItsOwnQueuedJobIsDroppedAndWelcomedNodesAreToldAgain) {
  LaunchBoth();
  StartBoth(0);
  const JobId job = Id();
  StartEmpty();
  KitNode fresh = Node("a", 0);
  kit_.Connect(fresh);
  EXPECT_NE(Id(), job);
  kit_.Connect(Holding("b", 1, 0, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(Id(), job);
  size_t told = 0;
  for (const SendToNode& send : kit_.Sent(Kind::kWelcome)) {
    told += send.message.welcome().cluster_id() == capsules_[0].cluster_id();
  }
  EXPECT_EQ(told, 2u);
  // The Launch of the node that has nothing goes out again, since the log does not know whether it got there.
  ASSERT_EQ(kit_.Sent(Kind::kLaunch).size(), 1u);
  EXPECT_EQ(kit_.Sent(Kind::kLaunch)[0].node, kit_.Id("a"));
}

TEST_F(PeersTest, RestartBudgetAndHistorySurvive) {
  LaunchBoth();
  StartBoth(0);
  for (uint32_t attempt = 0; attempt < 2; ++attempt) {
    kit_.Exited("b", Id(), attempt, CoreKit::Exit(3, 7));
    kit_.Gone("a", Id(), attempt, {CoreKit::Exit(0, 1), CoreKit::Exit(1, 1)});
    kit_.Gone("b", Id(), attempt, {CoreKit::Exit(2, 1), CoreKit::Exit(3, 7)});
    kit_.Run(absl::Seconds(5), {"a", "b"});
    Launch(attempt + 1);
    StartBoth(attempt + 1);
  }
  const JobId job = Id();
  StartEmpty();
  kit_.Connect(Holding("a", 0, 2, v1::ATTEMPT_PHASE_RUNNING));
  kit_.Connect(Holding("b", 1, 2, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(kit_.Status(job).restarts(), 2u);
  EXPECT_EQ(kit_.Status(job).attempt(), 2u);
  EXPECT_EQ(kit_.Status(job).why().exit().code(), 7);
  kit_.Exited("b", job, 2, CoreKit::Exit(3, 7));
  kit_.Gone("a", job, 2);
  kit_.Gone("b", job, 2);
  kit_.Run(absl::Seconds(30), {"a", "b"});
  Launch(3);
  StartBoth(3);
  kit_.Exited("b", job, 3, CoreKit::Exit(3, 7));
  kit_.Gone("a", job, 3);
  kit_.Gone("b", job, 3);
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(kit_.Status(job).exit_code(), 7);
}

TEST_F(PeersTest, WhatWasLoadedBeforeAndWhatRestartsTookSurvives) {
  kit_.Connect(Node("b", 1));
  kit_.Connect(Node("a", 0));
  const auto launch = [&](uint32_t attempt, int64_t step) {
    for (const char* node : {"a", "b"}) {
      v1::Report report = kit_.ReportOf(node, Id(), attempt);
      for (const int64_t there : {20, 10}) {
        v1::Checkpoint* found = report.mutable_prepared()->add_findings()->mutable_checkpoint();
        found->set_path(absl::StrCat("/ckpt/", there));
        found->set_step(there);
        found->set_verdict(v1::VERDICT_COMPLETE);
      }
      kit_.Send(node, report);
    }
    for (const char* node : {"a", "b"}) {
      v1::Report report = kit_.ReportOf(node, Id(), attempt);
      report.mutable_prepared()->mutable_checkpoint()->set_path(absl::StrCat("/ckpt/", step));
      kit_.Send(node, report);
    }
    capsules_.clear();
    for (const SendToNode& send : kit_.Sent(Kind::kLaunch))
      capsules_.push_back(send.message.launch().capsule());
    ASSERT_EQ(capsules_.size(), 2u);
    StartBoth(attempt);
  };
  const auto fail = [&](uint32_t attempt) {
    kit_.Exited("b", Id(), attempt, CoreKit::Exit(3, 7, 0, "bad tensor"));
    kit_.Gone("a", Id(), attempt, {CoreKit::Exit(0, 1), CoreKit::Exit(1, 1)});
    kit_.Gone("b", Id(), attempt, {CoreKit::Exit(2, 1), CoreKit::Exit(3, 7, 0, "bad tensor")});
    kit_.Run(absl::Seconds(5), {"a", "b"});
  };
  launch(0, 20);
  fail(0);
  launch(1, 20);
  const absl::Time failed_at = OnlyJob().failed_at;
  StartEmpty();
  kit_.Connect(Holding("a", 0, 1, v1::ATTEMPT_PHASE_RUNNING));
  kit_.Connect(Holding("b", 1, 1, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(OnlyJob().failed_at, failed_at);
  fail(1);
  ASSERT_EQ(OnlyJob().poisoned.size(), 1u) << "the failure before the restart counts";
  EXPECT_EQ(OnlyJob().poisoned[0].step(), 20);
  launch(2, 10);
}

TEST_F(PeersTest, AnExitThatTheDeadControllerHadAcknowledgedIsToldByTheSnapshot) {
  LaunchBoth();
  StartBoth(0);
  const JobId job = Id();
  StartEmpty();
  v1::RankReport first = CoreKit::Exit(3, 9), second = CoreKit::Exit(2, 1);
  first.set_exit_order(1);
  second.set_exit_order(2);
  kit_.Connect(Holding("b", 1, 0, v1::ATTEMPT_PHASE_RUNNING, {second, first}));
  kit_.Connect(Holding("a", 0, 0, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(kit_.Status(job).why().rank(), 3);
}

TEST_F(PeersTest, AnAttemptThatWasBeingStoppedIsStoppedEverywhere) {
  LaunchBoth();
  StartBoth(0);
  const JobId job = Id();
  StartEmpty();
  kit_.Connect(Holding("a", 0, 0, v1::ATTEMPT_PHASE_RUNNING));
  kit_.Connect(Holding("b", 1, 0, v1::ATTEMPT_PHASE_STOPPING));
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(kit_.Sent(Kind::kStop).size(), 2u);
}

TEST_F(PeersTest, ANodeThatDoesNotComeBackIsLost) {
  LaunchBoth();
  StartBoth(0);
  const JobId job = Id();
  StartEmpty();
  kit_.Connect(Holding("a", 0, 0, v1::ATTEMPT_PHASE_RUNNING));
  kit_.Run(absl::Seconds(6), {"a"});
  EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(kit_.Status(job).why().cause(), v1::CAUSE_NODE_LOST);
}

TEST_F(PeersTest, TheNextAttemptWaitsForItsNodesAsLongAsTheFirst) {
  kit_.contacts.config.peers->join_timeout = absl::Minutes(2);
  LaunchBoth();
  StartBoth(0);
  kit_.Run(absl::Seconds(6), {"a"});  // b is lost, and fenced later
  kit_.Gone("a", Id(), 0, {CoreKit::Exit(0, 143), CoreKit::Exit(1, 143)});
  kit_.Run(absl::Seconds(65), {"a"});
  EXPECT_EQ(kit_.Status(Id()).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(kit_.Status(Id()).restarts(), 1u);
  kit_.Run(absl::Seconds(105), {"a"});
  EXPECT_EQ(kit_.Status(Id()).state(), v1::JOB_STATE_QUEUED) << "counted from the end of the attempt";
  kit_.Run(absl::Seconds(20), {"a"});
  const v1::JobStatus status = kit_.Status(Id());
  EXPECT_EQ(status.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(status.exit_code(), 69);
  EXPECT_EQ(status.why().cause(), v1::CAUSE_NODE_LOST);
  EXPECT_EQ(status.why().node(), "b");
  EXPECT_NE(status.why().detail().find("node b has not answered for"), std::string::npos);
  EXPECT_NE(status.why().detail().find("only 1 of 2 nodes were there for the next attempt within 2m "
                                       "(--join-timeout): a"),
            std::string::npos)
      << status.why().detail();
}

TEST_F(PeersTest, ANodeThatComesInTimeStartsTheNextAttempt) {
  kit_.contacts.config.peers->join_timeout = absl::Minutes(2);
  LaunchBoth();
  StartBoth(0);
  kit_.Run(absl::Seconds(6), {"a"});
  kit_.Gone("a", Id(), 0, {CoreKit::Exit(0, 143), CoreKit::Exit(1, 143)});
  kit_.Run(absl::Seconds(160), {"a"});
  KitNode back = Node("b", 1);
  back.cluster_id = kit_.state.cluster_id;
  kit_.Connect(back);
  kit_.Run(absl::Seconds(300), {"a", "b"});
  EXPECT_EQ(kit_.Status(Id()).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(kit_.Status(Id()).attempt(), 1u);
}

TEST_F(PeersTest, TheLastWordSaysHowItEnded) {
  LaunchBoth();
  StartBoth(0);
  const JobId job = Id();
  kit_.Exited("b", job, 0, CoreKit::Exit(3, 0));
  kit_.Gone("a", job, 0, {CoreKit::Exit(0, 0), CoreKit::Exit(1, 0)});
  kit_.Gone("b", job, 0, {CoreKit::Exit(2, 0), CoreKit::Exit(3, 0)});
  const std::vector<SendToNode> forgets = kit_.Sent(Kind::kForget);
  ASSERT_EQ(forgets.size(), 2u);
  for (const SendToNode& forget : forgets) {
    EXPECT_EQ(forget.message.forget().status().job_id(), job.str());
    EXPECT_EQ(forget.message.forget().status().state(), v1::JOB_STATE_SUCCEEDED);
  }
}

TEST_F(PeersTest, TheHigherAttemptWinsAndTheOtherIsStopped) {
  LaunchBoth();
  StartBoth(0);
  const KitNode old_b = Holding("b", 1, 0, v1::ATTEMPT_PHASE_RUNNING);
  kit_.Exited("b", Id(), 0, CoreKit::Exit(3, 7));
  kit_.Gone("a", Id(), 0);
  kit_.Gone("b", Id(), 0);
  Launch(1);
  const JobId job = Id();
  StartEmpty();
  kit_.Connect(old_b);
  EXPECT_EQ(kit_.Status(job).attempt(), 0u);
  kit_.Connect(Holding("a", 0, 1, v1::ATTEMPT_PHASE_RUNNING));
  EXPECT_EQ(kit_.Status(job).attempt(), 1u);
  bool stopped = false;
  for (const SendToNode& send : kit_.Sent(Kind::kStop)) stopped |= send.node == kit_.Id("b");
  EXPECT_TRUE(stopped);
}

TEST_F(PeersTest, RanksOfAnotherRunAreWaitedFor) {
  LaunchBoth();
  StartBoth(0);
  const KitNode stranger = Holding("b", 1, 0, v1::ATTEMPT_PHASE_RUNNING);
  StartEmpty();
  LaunchBoth();  // this run has a job of its own by now
  kit_.Disconnect("b");
  bool final = true;
  EXPECT_NE(RefusalOf(stranger, &final), "");
  EXPECT_FALSE(final);
  KitNode later = stranger;
  later.snapshot.clear();
  EXPECT_EQ(RefusalOf(later, &final), "") << "nothing lives: what it served before is history";
}

TEST_F(PeersTest, ADamagedCapsuleIsNotTaken) {
  LaunchBoth();
  const JobId job = Id();
  StartEmpty();
  KitNode node = Holding("a", 0, 0, v1::ATTEMPT_PHASE_RUNNING);
  v1::Record record;
  ASSERT_TRUE(record.ParseFromString(node.capsules[0].record()));
  record.mutable_job_adopted()->mutable_spec()->set_nodes(7);
  node.capsules[0].set_record(record.SerializeAsString());
  kit_.Connect(node);
  EXPECT_EQ(FindJobById(kit_.state, job), nullptr);
}

TEST_F(PeersTest, TheTermGoesAboveWhatTheNodeHasSeen) {
  KitNode a = Node("a", 0);
  kit_.Connect(a);
  KitNode b = Node("b", 1);
  b.cluster_id = kit_.state.cluster_id;
  b.term = 41;
  kit_.Connect(b);
  EXPECT_EQ(kit_.state.term, 42u);
  EXPECT_EQ(kit_.Sent(Kind::kWelcome).size(), 2u);
}

}  // namespace
}  // namespace dgxrun::core
