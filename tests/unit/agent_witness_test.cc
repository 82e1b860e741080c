// The committee as an agent sees it: what it says of itself, and when ranks may live without a controller.
#include <memory>
#include <string>
#include <vector>

#include "agent/agent_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/lease_rule.h"

namespace dgxrun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kS = 1000 * kMs;
const AttemptKey kKey{JobId("c-1"), AttemptNo(0)};

class WitnessTest : public ::testing::Test {
 protected:
  WitnessTest() { Begin(); }

  static AgentCoreOptions Options(const std::string& boot) {
    AgentCoreOptions options;
    options.version.set_major(1);
    options.node_id = NodeId("me");
    options.node_name = "me";
    options.boot_id = boot;
    options.witness_port = 4711;
    return options;
  }
  // An agent that starts with what the one before it stored.
  void Begin(const std::string& boot = "boot-1") {
    core_ = std::make_unique<AgentCore>(Options(boot), store_);
    Do(Restored{{}, {}});
  }
  void Do(decltype(Input::body) body) {
    lease_ = 0;
    asked_.clear();
    answers_.clear();
    for (const Action& action : core_->Handle({now_, std::move(body)})) {
      if (const auto* a = std::get_if<StoreCommittee>(&action)) store_.committee = a->stored;
      if (const auto* a = std::get_if<StoreCluster>(&action)) store_.cluster_id = a->cluster_id;
      if (const auto* a = std::get_if<StoreJob>(&action)) store_.jobs[a->job] = a->stored;
      if (const auto* a = std::get_if<ToShim>(&action); a != nullptr && a->command.has_lease()) {
        lease_ = static_cast<int64_t>(a->command.lease().deadline_ns());
      }
      if (const auto* a = std::get_if<AskCommittee>(&action)) {
        round_ = a->round;
        for (const auto& member : a->members) asked_.push_back(member.node_id());
      }
      if (const auto* a = std::get_if<AnswerWitness>(&action)) answers_.push_back(a->answer);
    }
  }
  void Controller(const v1::ControllerMsg& message) { Do(FromController{message}); }
  // Welcomed now, with a committee of these, and with one attempt alive.
  void Meet(const std::vector<std::string>& members) {
    Do(LinkUp{});
    v1::ControllerMsg m;
    v1::Welcome* welcome = m.mutable_welcome();
    welcome->mutable_version()->set_major(1);
    welcome->set_cluster_id("cid");
    welcome->set_term(5);
    welcome->set_heartbeat_ms(1000);
    welcome->set_node_lease_ms(5000);
    welcome->set_isolation_timeout_ms(10000);
    welcome->set_orphan_timeout_ms(60000);
    Controller(m);
    v1::ControllerMsg named;
    named.mutable_committee()->set_number(1);
    for (const std::string& member : members) named.mutable_committee()->add_members()->set_node_id(member);
    Controller(named);
    v1::ControllerMsg launch;
    launch.mutable_launch()->set_job_id("c-1");
    Controller(launch);
  }
  void Answer(const std::string& node, bool silent, uint64_t term = 5, const std::string& cluster = "cid") {
    v1::WitnessAnswer answer;
    answer.set_node_id(node);
    answer.set_cluster_id(cluster);
    answer.set_term(term);
    answer.set_silent(silent);
    Do(WitnessAnswered{round_, answer});
  }
  bool Silent() {
    v1::WitnessQuestion question;
    question.set_cluster_id("cid");
    Do(WitnessAsked{1, question});
    return answers_.at(0).silent();
  }

  int64_t now_ = 100 * kS;
  StoredState store_;
  std::unique_ptr<AgentCore> core_;
  int64_t lease_ = 0;
  uint64_t round_ = 0;
  std::vector<std::string> asked_;
  std::vector<v1::WitnessAnswer> answers_;
};

TEST_F(WitnessTest, SaysThatItIsSilentOnlyWellAfterTheLease) {
  Meet({"me", "b", "c"});
  const int64_t met = now_;
  now_ = met + 5 * kS + kWitnessSlackNs - 1;
  EXPECT_FALSE(Silent());
  now_ = met + 5 * kS + kWitnessSlackNs;
  EXPECT_TRUE(Silent());
  v1::WitnessQuestion other;
  other.set_cluster_id("another");
  Do(WitnessAsked{2, other});
  EXPECT_FALSE(answers_.at(0).refusal().empty());
}

TEST_F(WitnessTest, AfterARestartItMayHaveBeenInTouchUntilThen) {
  Meet({"me", "b", "c"});
  now_ += 60 * kS;
  Begin();
  EXPECT_FALSE(Silent());
  now_ += 5 * kS + kWitnessSlackNs;
  EXPECT_TRUE(Silent());
}

TEST_F(WitnessTest, AMajorityOfSilentOnesIsALicenceFromTheQuestionOn) {
  Meet({"me", "b", "c"});
  now_ += 2 * kS;
  Do(WitnessDue{});
  EXPECT_THAT(asked_, IsEmpty()) << "in touch: nobody is asked";
  now_ += 6 * kS;
  Do(WitnessDue{});
  EXPECT_THAT(asked_, ElementsAre("b", "c"));
  EXPECT_EQ(lease_, 0) << "its own word alone is no majority";
  const int64_t asked_at = now_;
  now_ += 20 * kMs;
  Answer("b", true);
  EXPECT_EQ(lease_, asked_at + 10 * kS);
}

TEST_F(WitnessTest, WhatIsNoLicence) {
  Meet({"a", "b", "c"});
  now_ += 8 * kS;
  Do(WitnessDue{});
  EXPECT_THAT(asked_, ElementsAre("a", "b", "c"));
  Answer("a", true);
  EXPECT_EQ(lease_, 0) << "a single witness";
  Answer("a", true);
  EXPECT_EQ(lease_, 0) << "the same one twice";
  Answer("b", false);
  EXPECT_EQ(lease_, 0) << "one that is in touch";
  Answer("stranger", true);
  EXPECT_EQ(lease_, 0) << "no member";
  Answer("b", true, 6);
  EXPECT_EQ(lease_, 0) << "one that has met a later controller";
  Answer("b", true, 5, "another");
  EXPECT_EQ(lease_, 0) << "of another cluster";
  now_ += kWitnessAnswerNs + 1;
  Answer("b", true);
  EXPECT_EQ(lease_, 0) << "too late";
  --round_;
  now_ -= kWitnessAnswerNs;
  Answer("b", true);
  EXPECT_EQ(lease_, 0) << "of an earlier question";
  ++round_;
  Answer("b", true);
  EXPECT_GT(lease_, 0);
}

TEST_F(WitnessTest, NotLongerThanTheOrphanTimeoutHoweverOftenTheAgentStarts) {
  Meet({"b"});
  const int64_t met = now_;
  now_ = met + 8 * kS;
  Do(WitnessDue{});
  Answer("b", true);
  EXPECT_EQ(lease_, now_ + 10 * kS);
  now_ = met + 55 * kS;
  Begin();
  Do(ShimSaid{kKey, [] {
                v1::ShimMsg m;
                m.mutable_hello()->mutable_snapshot()->set_phase(v1::ATTEMPT_PHASE_RUNNING);
                return m;
              }()});
  now_ += 5 * kS + kWitnessSlackNs;
  EXPECT_TRUE(Silent());
  Do(WitnessDue{});
  EXPECT_THAT(asked_, IsEmpty()) << "60 s are over";
}

TEST_F(WitnessTest, TheTimeWithoutAControllerEndsWithItsNextWord) {
  Meet({"b"});
  now_ += 50 * kS;
  Do(WitnessDue{});
  Answer("b", true);
  EXPECT_EQ(lease_, 100 * kS + 60 * kS) << "capped";
  EXPECT_NE(store_.committee.orphan_since_ns, 0);
  Do(LinkDown{});
  Meet({"b"});
  EXPECT_EQ(store_.committee.orphan_since_ns, 0);
  now_ += 30 * kS;
  Do(WitnessDue{});
  Answer("b", true);
  EXPECT_EQ(lease_, now_ + 10 * kS);
}

TEST_F(WitnessTest, TheCommitteeIsKeptOverARestartAndOnlyANewerOneReplacesIt) {
  Meet({"b"});
  v1::ControllerMsg m;
  m.mutable_committee()->set_number(3);
  m.mutable_committee()->add_members()->set_node_id("c");
  Controller(m);
  m.mutable_committee()->set_number(2);
  m.mutable_committee()->mutable_members(0)->set_node_id("d");
  Controller(m);
  EXPECT_EQ(store_.committee.committee.number(), 3u);
  EXPECT_EQ(store_.committee.committee.members(0).node_id(), "c");
  // Another boot has another clock.
  store_.committee.orphan_since_ns = 5;
  store_.committee.boot_id = "boot-1";
  Begin("boot-2");
  now_ += 20 * kS;
  EXPECT_TRUE(Silent());
}

}  // namespace
}  // namespace dgxrun::agent
