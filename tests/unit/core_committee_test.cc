// The committee as the controller sees it: who is in it, when it lets a node be fenced, and a person's word.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/lease_rule.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = SendToNode::Kind;

class CommitteeTest : public ::testing::Test {
 protected:
  void Connect(const std::string& name, uint64_t held = 0) {
    NodeConnected input;
    input.connection = ++kit_.last_connection;
    input.peer_address = "10.0.0.1";
    v1::Hello& hello = input.hello;
    *hello.mutable_version() = kit_.contacts.config.version;
    hello.set_node_id(kit_.Id(name).str());
    hello.set_node_name(name);
    hello.set_boot_id("boot-1");
    hello.set_agent_user("root");
    hello.add_free_ports(40001);
    hello.mutable_inventory()->set_allowed_cores(8);
    hello.mutable_inventory()->add_addresses("10.0.0.1");
    hello.set_witness_port(4711);
    if (held != 0) {
      hello.mutable_committee()->set_number(held);
      hello.mutable_committee()->add_members()->set_node_id("id-elsewhere");
    }
    kit_.connection[name] = input.connection;
    kit_.report_number[name] = 0;
    beats_[name] = 0;
    answered_[name] = 0;
    kit_.Feed(std::move(input));
  }
  // A heartbeat that says that the one before it was answered, and which committee is held.
  void Beat(const std::string& name) {
    NodeHeartbeat input{kit_.Id(name), kit_.connection[name], {}};
    input.heartbeat.set_number(++beats_[name]);
    input.heartbeat.set_last_answer(deaf_.count(name) > 0 ? answered_[name] : beats_[name] - 1);
    if (deaf_.count(name) == 0) answered_[name] = beats_[name] - 1;
    input.heartbeat.add_free_ports(40001);
    input.heartbeat.set_committee(kit_.state.committees.empty() ? 0 : kit_.state.committees.rbegin()->first);
    kit_.Feed(std::move(input));
  }
  void Run(absl::Duration time, const std::vector<std::string>& alive) {
    const absl::Time end = kit_.now + time;
    for (int i = 0; kit_.now < end; ++i) {
      kit_.now += absl::Milliseconds(250);
      if (i % 4 == 0) {
        for (const std::string& name : alive) Beat(name);
      }
      kit_.Feed(Tick{});
    }
  }
  void Start(const std::vector<std::string>& names) {
    for (const std::string& name : names) Connect(name);
    Run(absl::Seconds(5), names);
  }
  // One rank on the node named.
  JobId RunJobOn(const std::string& name) {
    v1::JobSpec spec = kit_.Spec(1, 1);
    spec.set_device(v1::DEVICE_CPU);
    const JobId job = kit_.Submit(spec);
    EXPECT_EQ(kit_.Status(job).nodes(0).name(), name);
    kit_.Prepared(name, job, 0);
    kit_.Started(name, job, 0, {0});
    EXPECT_EQ(kit_.Status(job).state(), v1::JOB_STATE_RUNNING);
    return job;
  }
  std::vector<std::string> Members() const {
    std::vector<std::string> names;
    if (kit_.state.committees.empty()) return names;
    for (const auto& member : kit_.state.committees.rbegin()->second.members())
      names.push_back(member.name());
    return names;
  }
  absl::Status Fence(const std::string& node, bool root = true) {
    FenceNode input;
    input.request = ++kit_.last_request;
    input.caller = root ? Caller{"root", 0, 0, true} : kit_.ada;
    input.node = node;
    kit_.Feed(std::move(input));
    return kit_.answers.at(0).status;
  }
  NodePhase Phase(const std::string& name) { return FindNode(kit_.state, kit_.Id(name))->phase; }

  CoreKit kit_;
  std::map<std::string, uint64_t> beats_, answered_;
  std::set<std::string> deaf_;  // they send, and hear nothing
};

TEST_F(CommitteeTest, AllWhileFewThenFiveSpreadOverTheNames) {
  Connect("a");
  EXPECT_THAT(Members(), ElementsAre("a"));
  EXPECT_EQ(kit_.state.committees.rbegin()->second.members(0).target(), "10.0.0.1:4711");
  for (const char* name : {"b", "c", "d", "e", "f", "g"}) Connect(name);
  EXPECT_THAT(Members(), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(kit_.Sent(Kind::kCommittee).size(), 1u) << "the newcomer is told";
}

TEST_F(CommitteeTest, AgentsThatBearNoWitnessAreNoMembersAndAreFencedAsBefore) {
  kit_.Connect({"old-1"});
  kit_.Connect({"old-2"});
  EXPECT_TRUE(kit_.state.committees.empty());
  kit_.Disconnect("old-1");
  kit_.Run(absl::Seconds(16), {"old-2"});
  EXPECT_EQ(Phase("old-1"), NodePhase::kFenced);
}

TEST_F(CommitteeTest, OneOfThreeIsFencedByTime) {
  Start({"a", "b", "c"});
  const JobId job = RunJobOn("a");
  kit_.Disconnect("a");
  Run(absl::Seconds(13), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kLost);
  Run(absl::Seconds(3), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kFenced);
  EXPECT_EQ(kit_.Status(job).attempt(), 1u);
}

TEST_F(CommitteeTest, AMajorityThatIsSilentNeedsProof) {
  Start({"a", "b", "c"});
  const JobId job = RunJobOn("a");
  kit_.Disconnect("a");
  kit_.Disconnect("b");
  Run(absl::Minutes(10), {"c"});
  EXPECT_EQ(Phase("a"), NodePhase::kLost);
  EXPECT_EQ(kit_.Status(job).attempt(), 0u);
  EXPECT_THAT(kit_.Status(job).waiting_for(),
              HasSubstr("proof that node a is off, since a, b of the committee"));
  EXPECT_THAT(kit_.Status(job).waiting_for(), HasSubstr("`dgxrun nodes fence a --is-off`"));
}

TEST_F(CommitteeTest, TheWaitBeginsWhenTheMajorityIsBack) {
  Start({"a", "b", "c"});
  RunJobOn("a");
  kit_.Disconnect("a");
  kit_.Disconnect("b");
  Run(absl::Minutes(1), {"c"});
  Connect("b");
  Run(absl::Seconds(14), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kLost);
  // Two heartbeats until it is known that b hears us, then the whole wait.
  Run(absl::Seconds(4), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kFenced);
}

TEST_F(CommitteeTest, AMemberThatSendsButHearsNothingIsSilent) {
  Start({"a", "b", "c"});
  RunJobOn("a");
  kit_.Disconnect("a");
  deaf_ = {"b"};
  Run(absl::Minutes(1), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kLost) << "b bears witness for a, and c alone is no majority";
  deaf_.clear();
  Run(absl::Seconds(20), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kFenced);
}

TEST_F(CommitteeTest, APauseOfTheControllerBeginsTheWaitAnew) {
  Start({"a", "b", "c"});
  RunJobOn("a");
  kit_.Disconnect("a");
  Run(absl::Seconds(12), {"b", "c"});
  kit_.now += absl::Seconds(20);  // stopped, or a suspended machine
  Run(absl::Seconds(10), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kLost);
  Run(absl::Seconds(8), {"b", "c"});
  EXPECT_EQ(Phase("a"), NodePhase::kFenced);
}

TEST_F(CommitteeTest, ANodeThatHoldsAnOlderCommitteeNeedsThatOneToo) {
  Start({"a", "b", "c"});
  RunJobOn("a");
  kit_.Disconnect("a");  // it holds the committee of a, b, c
  // b and c go too and are off; d, e, f come and are the committee now.
  Run(absl::Seconds(6), {});
  for (const char* name : {"d", "e", "f"}) Connect(name);
  EXPECT_TRUE(Fence("b").ok());
  EXPECT_TRUE(Fence("c").ok());
  Run(absl::Minutes(1), {"d", "e", "f"});
  EXPECT_EQ(Phase("a"), NodePhase::kLost) << "a, b and c may still answer each other";
  EXPECT_TRUE(Fence("a").ok());
  EXPECT_EQ(Phase("a"), NodePhase::kFenced);
}

TEST_F(CommitteeTest, AFencedMemberIsReplaced) {
  Start({"a", "b", "c", "d", "e", "f"});
  kit_.Disconnect("b");
  Run(absl::Seconds(10), {"a", "c", "d", "e", "f"});
  EXPECT_THAT(Members(), ElementsAre("a", "b", "c", "d", "e")) << "a lost one stays";
  Run(absl::Seconds(10), {"a", "c", "d", "e", "f"});
  EXPECT_THAT(Members(), ElementsAre("a", "c", "d", "e", "f"));
}

TEST_F(CommitteeTest, ACommitteeThatTheLogDoesNotKnowCounts) {
  Start({"a", "b"});
  Connect("c", 9);  // of a newer log
  EXPECT_EQ(kit_.state.committees.count(9), 1u);
  Run(absl::Seconds(3), {"a", "b", "c"});
  EXPECT_EQ(kit_.state.committees.rbegin()->first, 10u) << "the next one is told to all";
  EXPECT_EQ(kit_.state.committees.size(), 1u) << "all hold it, so none older is of account";
}

TEST_F(CommitteeTest, APersonsWord) {
  Start({"a", "b", "c"});
  const JobId job = RunJobOn("a");
  EXPECT_THAT(Fence("a").ToString(), HasSubstr("node a is in touch"));
  EXPECT_THAT(Fence("x").ToString(), HasSubstr("there is no node x"));
  kit_.Disconnect("a");
  kit_.Disconnect("b");
  Run(absl::Seconds(20), {"c"});
  EXPECT_THAT(Fence("a", /*root=*/false).ToString(), HasSubstr("only root"));
  EXPECT_EQ(kit_.Status(job).attempt(), 0u);
  EXPECT_TRUE(Fence("a").ok());
  EXPECT_EQ(kit_.Status(job).attempt(), 1u);
  EXPECT_EQ(kit_.Status(job).nodes(0).name(), "c");
  EXPECT_TRUE(Fence("a").ok()) << "said twice";
}

}  // namespace
}  // namespace dgxrun::core
