// AgentCore as tables: what each input does in each state, and the order of what comes out.
#include "agent/agent_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dgxrun::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1000000;
const AttemptKey kA0{JobId("c-1"), AttemptNo(0)};
const AttemptKey kA1{JobId("c-1"), AttemptNo(1)};

std::string Brief(const v1::Report& r) {
  static const char* const kNames[] = {"?",       "?",       "?",      "?",    "prepared",
                                       "refused", "started", "exited", "gone", "spawn_failed"};
  return absl::StrCat("#", r.number(), " ", kNames[r.body_case()], " ", r.attempt());
}

// One word or two per action, so that a list of actions reads like a sentence.
std::string Brief(const Action& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, StoreCluster>)
          return absl::StrCat("store cluster ", a.cluster_id, " ", a.term);
        if constexpr (std::is_same_v<T, StoreJob>) {
          return absl::StrCat("store job ", a.stored.launched, " ", a.stored.tombstone, " ", a.stored.gone);
        }
        if constexpr (std::is_same_v<T, StoreReport>) return absl::StrCat("store ", Brief(a.report));
        if constexpr (std::is_same_v<T, StoreCapsule>)
          return absl::StrCat("store capsule ", a.capsule.attempt());
        if constexpr (std::is_same_v<T, DropCapsule>) return "drop capsule";
        if constexpr (std::is_same_v<T, DropReports>) return absl::StrCat("drop ", a.up_to);
        if constexpr (std::is_same_v<T, DropJob>) return absl::StrCat("drop job ", a.job.str());
        if constexpr (std::is_same_v<T, Send>) {
          if (a.message.has_hello()) return "hello";
          if (a.message.has_heartbeat()) return absl::StrCat("heartbeat ", a.message.heartbeat().number());
          return absl::StrCat("send ", Brief(a.message.report()));
        }
        if constexpr (std::is_same_v<T, SetHeartbeat>) return "set heartbeat";
        if constexpr (std::is_same_v<T, CloseLink>) return a.final ? "close for good" : "close";
        if constexpr (std::is_same_v<T, CheckPaths>) return "check";
        if constexpr (std::is_same_v<T, StartShimFor>) return absl::StrCat("start ", a.launch.attempt());
        if constexpr (std::is_same_v<T, ToShim>) {
          const auto& c = a.command;
          if (c.has_stop()) return absl::StrCat("stop ", a.key.attempt.value(), " ", c.stop().grace_ms());
          if (c.has_lease()) return absl::StrCat("lease ", c.lease().deadline_ns() / kMs);
          if (c.has_ack()) return absl::StrCat("ack ", c.ack().number());
          if (c.has_attach()) return absl::StrCat("attach ", c.attach().last_event());
          return "?";
        }
        if constexpr (std::is_same_v<T, Sweep>) return absl::StrCat("sweep ", a.key.attempt.value());
        if constexpr (std::is_same_v<T, AttemptEnded>) return absl::StrCat("ended ", a.key.attempt.value());
        if constexpr (std::is_same_v<T, ForgetJob>)
          return a.end.has_value() ? absl::StrCat("forget: exit code ", a.end->exit_code()) : "forget";
        if constexpr (std::is_same_v<T, StartTail>) return a.ended ? "tail ended" : "tail";
        if constexpr (std::is_same_v<T, CancelTail>) return "cancel tail";
        if constexpr (std::is_same_v<T, TidyCheckpoints>)
          return absl::StrCat("tidy ", a.key.attempt.value(), a.remove.by_rule() ? " by rule" : "");
        if constexpr (std::is_same_v<T, StoreCommittee>)
          return absl::StrCat("store committee ", a.stored.committee.number());
        if constexpr (std::is_same_v<T, AskCommittee>) return absl::StrCat("ask ", a.members.size());
        if constexpr (std::is_same_v<T, AnswerWitness>) return "answer witness";
        if constexpr (std::is_same_v<T, Note>) return "note";
      },
      action);
}

v1::Launch MakeLaunch(const AttemptKey& key) {
  v1::Launch launch;
  launch.set_job_id(key.job.str());
  launch.set_attempt(key.attempt.value());
  launch.mutable_plan()->set_grace_ms(700);
  return launch;
}

class AgentCoreTest : public ::testing::Test {
 protected:
  static AgentCoreOptions Options() {
    AgentCoreOptions options;
    options.version.set_major(1);
    options.version.set_minor(3);
    options.node_id = NodeId("node-uuid");
    options.node_name = "n1";
    return options;
  }

  // Stores what the core says is stored, as the agent does.
  std::vector<std::string> Do(decltype(Input::body) body) {
    last_ = core_->Handle({now_ms_ * kMs, std::move(body)});
    std::vector<std::string> words;
    for (const Action& action : last_) {
      words.push_back(Brief(action));
      if (const auto* a = std::get_if<StoreCluster>(&action))
        store_.cluster_id = a->cluster_id, store_.term = a->term;
      if (const auto* a = std::get_if<StoreJob>(&action)) store_.jobs[a->job] = a->stored;
      if (const auto* a = std::get_if<StoreReport>(&action)) {
        store_.jobs[JobId(a->report.job_id())] = a->stored;
        store_.reports.push_back(a->report);
        store_.last_report = a->report.number();
      }
      if (const auto* a = std::get_if<StoreCapsule>(&action)) store_.capsules[kA0.job] = a->capsule;
      if (const auto* a = std::get_if<DropCapsule>(&action)) store_.capsules.erase(a->job);
      if (const auto* a = std::get_if<DropReports>(&action)) {
        std::erase_if(store_.reports, [&](const auto& r) { return r.number() <= a->up_to; });
      }
    }
    return words;
  }
  std::vector<std::string> Say(const v1::ControllerMsg& message) { return Do(FromController{message}); }
  std::vector<std::string> Welcome(const std::string& cluster = "cid", uint64_t term = 5,
                                   uint32_t minor = 3) {
    v1::ControllerMsg m;
    m.mutable_welcome()->mutable_version()->set_major(1);
    m.mutable_welcome()->mutable_version()->set_minor(minor);
    m.mutable_welcome()->set_cluster_id(cluster);
    m.mutable_welcome()->set_term(term);
    m.mutable_welcome()->set_heartbeat_ms(1000);
    m.mutable_welcome()->set_isolation_timeout_ms(10000);
    return Say(m);
  }
  void Connect() {
    Do(Restored{});
    Do(LinkUp{});
    Welcome();
  }
  std::vector<std::string> Launch(const AttemptKey& key) {
    v1::ControllerMsg m;
    *m.mutable_launch() = MakeLaunch(key);
    return Say(m);
  }
  std::vector<std::string> Stop(const AttemptKey& key, uint64_t grace = 500) {
    v1::ControllerMsg m;
    m.mutable_stop()->set_job_id(key.job.str());
    m.mutable_stop()->set_attempt(key.attempt.value());
    m.mutable_stop()->set_grace_ms(grace);
    return Say(m);
  }
  std::vector<std::string> Prepare(const AttemptKey& key) {
    v1::ControllerMsg m;
    m.mutable_prepare()->set_job_id(key.job.str());
    m.mutable_prepare()->set_attempt(key.attempt.value());
    return Say(m);
  }
  std::vector<std::string> Forget() {
    v1::ControllerMsg m;
    m.mutable_forget()->set_job_id("c-1");
    return Say(m);
  }
  std::vector<std::string> Ack(uint64_t number) {
    v1::ControllerMsg m;
    m.mutable_ack()->set_number(number);
    return Say(m);
  }
  std::vector<std::string> Hello(const AttemptKey& key, v1::AttemptPhase phase) {
    v1::ShimMsg m;
    m.mutable_hello()->mutable_snapshot()->set_phase(phase);
    return Do(ShimSaid{key, m});
  }
  std::vector<std::string> Event(const AttemptKey& key, uint64_t number, const std::string& what) {
    v1::ShimMsg m;
    m.mutable_event()->set_number(number);
    if (what == "started") m.mutable_event()->mutable_started()->add_ranks()->set_rank(3);
    if (what == "exited") m.mutable_event()->mutable_exited()->set_rank(3);
    if (what == "gone") m.mutable_event()->mutable_gone();
    return Do(ShimSaid{key, m});
  }

  int64_t now_ms_ = 100;
  StoredState store_;
  std::unique_ptr<AgentCore> core_ = std::make_unique<AgentCore>(Options(), StoredState());
  AgentCore& core() { return *core_; }
  Actions last_;
};

TEST_F(AgentCoreTest, WelcomeIsStoredBeforeAnythingElse) {
  EXPECT_THAT(Do(LinkUp{}), ElementsAre("hello"));
  EXPECT_THAT(Welcome(), ElementsAre("store cluster cid 5", "set heartbeat"));
  EXPECT_EQ(core().in_touch_ns(), 100 * kMs);  // as of the Hello's sending
}

TEST_F(AgentCoreTest, RefusesLowerTermOtherClusterOtherVersion) {
  Connect();
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(Welcome("cid", 4), ElementsAre("close"));
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(Welcome("other", 9), ElementsAre("close for good"));
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(Welcome("cid", 9, 5), ElementsAre("close for good"));  // minor 5 against 3
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(Welcome("cid", 9, 4), ElementsAre("store cluster cid 9", "set heartbeat"));
}

TEST_F(AgentCoreTest, NothingIsTakenBeforeTheWelcome) {
  Do(LinkUp{});
  EXPECT_THAT(Launch(kA0), ElementsAre("note"));
  EXPECT_THAT(Stop(kA0), ElementsAre("note"));
}

TEST_F(AgentCoreTest, ALateSecondQuestionTouchesNothingAndOldCheckpointsGoWhileItLives) {
  Connect();
  Launch(kA0);
  v1::ControllerMsg late;
  late.mutable_prepare()->set_job_id(kA0.job.str());
  late.mutable_prepare()->set_resume("/ckpt/20");
  EXPECT_THAT(Say(late), ElementsAre("store #1 prepared 0", "send #1 prepared 0"));
  v1::ControllerMsg remove;
  remove.mutable_remove()->set_job_id(kA0.job.str());
  remove.mutable_remove()->set_by_rule(true);
  EXPECT_THAT(Say(remove), ElementsAre("tidy 0 by rule"));
  remove.mutable_remove()->set_attempt(1);
  EXPECT_THAT(Say(remove), IsEmpty()) << "nothing of it lives here";
  v1::AttemptProgress news;
  news.set_job_id(kA0.job.str());
  news.add_removed("/ckpt/10");
  Do(ProgressHere{news});
  Do(HeartbeatDue{});
  EXPECT_EQ(std::get<Send>(last_.back()).message.heartbeat().progress(0).removed_size(), 1);
  news.clear_removed();
  Do(ProgressHere{news});
  Do(HeartbeatDue{});
  EXPECT_EQ(std::get<Send>(last_.back()).message.heartbeat().progress(0).removed_size(), 0) << "said once";
}

TEST_F(AgentCoreTest, LifeOfAnAttempt) {
  Connect();
  EXPECT_THAT(Prepare(kA0), ElementsAre("check"));
  EXPECT_THAT(Prepare(kA0), IsEmpty());  // in hand
  EXPECT_THAT(Do(PreparedHere{kA0, {}}), ElementsAre("store #1 prepared 0", "send #1 prepared 0"));
  EXPECT_THAT(Prepare(kA0), IsEmpty());  // unacknowledged
  EXPECT_THAT(Launch(kA0), ElementsAre("store job 0 -1 -1", "start 0"));
  EXPECT_THAT(Launch(kA0), IsEmpty());
  EXPECT_THAT(Hello(kA0, v1::ATTEMPT_PHASE_STARTING), ElementsAre("lease 10100"));
  EXPECT_THAT(Event(kA0, 1, "started"), ElementsAre("store #2 started 0", "send #2 started 0", "ack 1"));
  EXPECT_THAT(Event(kA0, 1, "started"), ElementsAre("ack 1"));  // resent
  EXPECT_THAT(Event(kA0, 2, "exited"), ElementsAre("store #3 exited 0", "send #3 exited 0", "ack 2"));
  EXPECT_THAT(Event(kA0, 3, "gone"), ElementsAre("store #4 gone 0", "send #4 gone 0", "ack 3", "ended 0"));
  EXPECT_FALSE(core().Lives(kA0));
  EXPECT_THAT(Launch(kA0), IsEmpty());                     // its end is on its way
  EXPECT_THAT(Stop(kA0), ElementsAre("store job 0 0 0"));  // reported once
  EXPECT_THAT(Ack(4), ElementsAre("drop 4"));
  EXPECT_THAT(Ack(4), IsEmpty());
  EXPECT_THAT(Ack(9), ElementsAre("note"));
  EXPECT_THAT(Launch(kA0), ElementsAre("store #5 refused 0", "send #5 refused 0"));
  EXPECT_THAT(Launch(kA0), IsEmpty());  // said, unacknowledged
  EXPECT_THAT(Launch(kA1), ElementsAre("store job 1 0 0", "start 1"));
}

TEST_F(AgentCoreTest, StopStoresTheTombstoneFirst) {
  Connect();
  Launch(kA0);
  EXPECT_THAT(Stop(kA0), ElementsAre("store job 0 0 -1", "stop 0 500"));
  EXPECT_THAT(Stop(kA0, 0), ElementsAre("stop 0 0"));  // shortens
  EXPECT_THAT(Event(kA0, 1, "gone"), ElementsAre("store #1 gone 0", "send #1 gone 0", "ack 1", "ended 0"));
}

TEST_F(AgentCoreTest, StopOfWhatNeverRanIsGoneAtOnceAndOnce) {
  Connect();
  EXPECT_THAT(Stop(kA1), ElementsAre("store job -1 1 -1", "store #1 gone 1", "send #1 gone 1", "ended 1"));
  EXPECT_THAT(Stop(kA1), IsEmpty());
  EXPECT_THAT(Launch(kA1), ElementsAre("store #2 refused 1", "send #2 refused 1"));
  EXPECT_THAT(Launch(kA0), ElementsAre("store #3 refused 0", "send #3 refused 0"));
  EXPECT_THAT(Prepare(kA1), IsEmpty());  // refused already, unacknowledged
}

TEST_F(AgentCoreTest, StopDuringTheCheckDropsItsAnswer) {
  Connect();
  Prepare(kA0);
  Stop(kA0);
  EXPECT_THAT(Do(PreparedHere{kA0, {}}), IsEmpty());
}

TEST_F(AgentCoreTest, LaunchAboveALivingAttemptWaits) {
  Connect();
  Launch(kA0);
  EXPECT_THAT(Launch(kA1), ElementsAre("store job 0 0 -1", "stop 0 700"));
  EXPECT_THAT(Event(kA0, 1, "gone"), ElementsAre("store #1 gone 0", "send #1 gone 0", "ack 1", "ended 0",
                                                 "store job 1 0 0", "start 1"));
}

TEST_F(AgentCoreTest, StopOfAWaitingLaunchOwesItsGone) {
  Connect();
  Launch(kA0);
  Launch(kA1);
  EXPECT_THAT(Stop(kA1), ElementsAre("store job 0 1 -1", "stop 0 500"));
  EXPECT_THAT(Event(kA0, 1, "gone"), ElementsAre("store #1 gone 0", "send #1 gone 0", "ack 1", "ended 0",
                                                 "store #2 gone 1", "send #2 gone 1", "ended 1"));
}

TEST_F(AgentCoreTest, FailedStart) {
  Connect();
  Launch(kA0);
  EXPECT_THAT(Do(StartFailed{kA0, "no"}), ElementsAre("store #1 refused 0", "send #1 refused 0", "ended 0"));
  EXPECT_THAT(Stop(kA0), ElementsAre("store job 0 0 -1", "store #2 gone 0", "send #2 gone 0", "ended 0"));
  Launch(kA1);
  Stop(kA1);
  EXPECT_THAT(Do(StartFailed{kA1, "stopped"}), ElementsAre("store #3 gone 1", "send #3 gone 1", "ended 1"));
}

TEST_F(AgentCoreTest, ReportsAreResentAfterReconnect) {
  Connect();
  Launch(kA0);
  Event(kA0, 1, "started");
  Do(LinkDown{});
  EXPECT_THAT(Event(kA0, 2, "exited"), ElementsAre("store #2 exited 0", "ack 2"));
  Do(LinkUp{});
  const v1::Hello hello = std::get<Send>(last_[0]).message.hello();
  EXPECT_EQ(hello.oldest_unacked_report(), 1u);
  ASSERT_EQ(hello.snapshot().attempts_size(), 1);
  EXPECT_EQ(hello.snapshot().attempts(0).phase(), v1::ATTEMPT_PHASE_RUNNING);
  EXPECT_THAT(Welcome(),
              ElementsAre("set heartbeat", "lease 10100", "send #1 started 0", "send #2 exited 0"));
}

TEST_F(AgentCoreTest, LeaseCountsFromTheAnsweredHeartbeat) {
  Connect();
  Launch(kA0);
  now_ms_ = 1100;
  EXPECT_THAT(Do(HeartbeatDue{}), ElementsAre("heartbeat 1"));
  now_ms_ = 2100;
  Do(HeartbeatDue{});
  now_ms_ = 2500;
  v1::ControllerMsg answer;
  answer.mutable_answer()->set_number(1);
  EXPECT_THAT(Say(answer), ElementsAre("lease 11100"));
  EXPECT_THAT(Say(answer), IsEmpty());  // twice is no news
  Do(HeartbeatDue{});
  EXPECT_EQ(std::get<Send>(last_[0]).message.heartbeat().last_answer(), 1u);
}

TEST_F(AgentCoreTest, NoLeasesInKillMode) {
  AgentCoreOptions options = Options();
  options.leases = false;
  core_ = std::make_unique<AgentCore>(options, StoredState());
  Connect();
  Launch(kA0);
  EXPECT_EQ(std::get<StartShimFor>(last_.back()).lease_deadline_ns, 0u);
  EXPECT_THAT(Hello(kA0, v1::ATTEMPT_PHASE_STARTING), IsEmpty());
}

TEST_F(AgentCoreTest, RestartAttachesToALivingShim) {
  Connect();
  Launch(kA0);
  Event(kA0, 1, "started");
  core_ = std::make_unique<AgentCore>(Options(), store_);
  EXPECT_THAT(Do(Restored{{kA0}, {}}), IsEmpty());
  EXPECT_TRUE(core().Lives(kA0));
  EXPECT_THAT(Hello(kA0, v1::ATTEMPT_PHASE_RUNNING), ElementsAre("attach 1"));
  Do(LinkUp{});
  EXPECT_THAT(Welcome(), ElementsAre("set heartbeat", "lease 10100", "send #1 started 0"));
  EXPECT_THAT(Event(kA0, 2, "gone"), ElementsAre("store #2 gone 0", "send #2 gone 0", "ack 2", "ended 0"));
}

TEST_F(AgentCoreTest, RestartSweepsWhatLeftNothing) {
  Connect();
  Launch(kA0);
  core_ = std::make_unique<AgentCore>(Options(), store_);
  EXPECT_THAT(Do(Restored{}), ElementsAre("sweep 0"));
  EXPECT_THAT(Do(StraysGone{kA0, "x"}), ElementsAre("store #1 gone 0", "ended 0"));
  EXPECT_EQ(core().unacked().back().gone().cause(), v1::CAUSE_SUPERVISOR_LOST);
  core_ = std::make_unique<AgentCore>(Options(), store_);
  EXPECT_THAT(Do(Restored{}), IsEmpty());
}

TEST_F(AgentCoreTest, FinalFileTellsOnlyWhatIsNew) {
  Connect();
  Launch(kA0);
  Event(kA0, 1, "started");
  core_ = std::make_unique<AgentCore>(Options(), store_);
  v1::ShimFinal final;
  final.set_job_id("c-1");
  final.add_events()->set_number(1);
  final.mutable_events(0)->mutable_started();
  final.add_events()->set_number(2);
  final.mutable_events(1)->mutable_exited();
  final.add_events()->set_number(3);
  final.mutable_events(2)->mutable_gone();
  EXPECT_THAT(Do(FinalFound{final}),
              ElementsAre("store #2 exited 0", "ack 2", "store #3 gone 0", "ack 3", "ended 0"));
  EXPECT_THAT(Do(FinalFound{final}), ElementsAre("ended 0"));
  EXPECT_THAT(Do(Restored{}), IsEmpty());
}

TEST_F(AgentCoreTest, ForgetKeepsTheTombstone) {
  Connect();
  Launch(kA0);
  EXPECT_THAT(Forget(), ElementsAre("stop 0 0"));  // something lives: it goes first
  EXPECT_THAT(Event(kA0, 1, "gone"), ElementsAre("store #1 gone 0", "send #1 gone 0", "ack 1", "ended 0",
                                                 "store job 0 0 0", "forget"));
  EXPECT_THAT(Launch(kA0), ElementsAre("store #2 refused 0", "send #2 refused 0"));
}

TEST_F(AgentCoreTest, ForgetTellsHowTheJobEndedOnce) {
  Connect();
  Launch(kA0);
  v1::ControllerMsg m;
  m.mutable_forget()->set_job_id("c-1");
  m.mutable_forget()->mutable_status()->set_exit_code(7);
  EXPECT_THAT(Say(m), ElementsAre("stop 0 0"));
  EXPECT_THAT(Event(kA0, 1, "gone"), Contains("forget: exit code 7"));
  EXPECT_THAT(Forget(), Contains("forget"));
}

TEST_F(AgentCoreTest, ForgottenJobsAreBounded) {
  Connect();
  size_t dropped = 0;
  for (size_t i = 0; i < AgentCore::kMaxForgotten + 5; ++i) {
    const AttemptKey key{JobId(absl::StrCat("j-", i)), AttemptNo(0)};
    Stop(key);
    v1::ControllerMsg m;
    m.mutable_forget()->set_job_id(key.job.str());
    for (const std::string& word : Say(m)) dropped += word.starts_with("drop job");
  }
  EXPECT_EQ(dropped, 5u);
}

TEST_F(AgentCoreTest, BadJobIdsAreIgnored) {
  Connect();
  for (const char* id : {"", "../x", "a/b", "."}) {
    EXPECT_THAT(Launch({JobId(id), AttemptNo(0)}), ElementsAre("note")) << id;
    EXPECT_THAT(Stop({JobId(id), AttemptNo(0)}), ElementsAre("note")) << id;
    EXPECT_THAT(Prepare({JobId(id), AttemptNo(0)}), ElementsAre("note")) << id;
  }
}

TEST_F(AgentCoreTest, TailsKnowWhetherMoreCanCome) {
  Connect();
  v1::ControllerMsg m;
  m.mutable_tail()->set_job_id("c-1");
  EXPECT_THAT(Say(m), ElementsAre("tail"));
  Launch(kA0);
  EXPECT_THAT(Say(m), ElementsAre("tail"));
  Event(kA0, 1, "gone");
  EXPECT_THAT(Say(m), ElementsAre("tail ended"));
}

TEST(ReportLogTest, NumbersHaveNoGapsOverARestart) {
  ReportLog log({}, 7);
  EXPECT_EQ(log.Add(v1::Report()).number(), 8u);
  EXPECT_EQ(log.Add(v1::Report()).number(), 9u);
  EXPECT_EQ(log.Ack(10), ReportLog::Acked::kNeverSent);
  EXPECT_EQ(log.Ack(8), ReportLog::Acked::kDropped);
  EXPECT_EQ(log.Ack(8), ReportLog::Acked::kNothingNew);
  EXPECT_EQ(log.oldest(), 9u);
  EXPECT_EQ(log.Ack(9), ReportLog::Acked::kDropped);
  EXPECT_EQ(log.oldest(), 0u);
  EXPECT_EQ(log.Add(v1::Report()).number(), 10u);
}

// ---- Peers mode ----

class PeerCoreTest : public AgentCoreTest {
 protected:
  PeerCoreTest() { core_ = std::make_unique<AgentCore>(PeerOptions(), StoredState()); }

  static AgentCoreOptions PeerOptions() {
    AgentCoreOptions options = Options();
    options.offer.emplace();
    options.offer->set_rdzv_id("none");
    return options;
  }
  std::vector<std::string> WelcomePeers(const std::string& cluster, uint64_t term) {
    v1::ControllerMsg m;
    m.mutable_welcome()->mutable_version()->set_major(1);
    m.mutable_welcome()->mutable_version()->set_minor(3);
    m.mutable_welcome()->set_cluster_id(cluster);
    m.mutable_welcome()->set_term(term);
    m.mutable_welcome()->set_heartbeat_ms(1000);
    m.mutable_welcome()->set_isolation_timeout_ms(10000);
    m.mutable_welcome()->set_peers(true);
    return Say(m);
  }
  void ConnectPeer(const std::string& cluster = "cid", uint64_t term = 5) {
    Do(LinkUp{});
    WelcomePeers(cluster, term);
  }
  std::vector<std::string> LaunchWithCapsule(const AttemptKey& key) {
    v1::ControllerMsg m;
    *m.mutable_launch() = MakeLaunch(key);
    m.mutable_launch()->mutable_capsule()->set_cluster_id("cid");
    m.mutable_launch()->mutable_capsule()->set_job_id(key.job.str());
    m.mutable_launch()->mutable_capsule()->set_attempt(key.attempt.value());
    return Say(m);
  }
  v1::Hello HelloSent() {
    Do(LinkDown{});
    Do(LinkUp{});
    return std::get<Send>(last_[0]).message.hello();
  }
};

TEST_F(PeerCoreTest, ACapsuleIsStoredBeforeItsLaunchAndToldWhileTheAttemptLives) {
  ConnectPeer();
  EXPECT_THAT(LaunchWithCapsule(kA0), ElementsAre("store job 0 -1 -1", "store capsule 0", "start 0"));
  EXPECT_EQ(HelloSent().capsules_size(), 1);
  core_ = std::make_unique<AgentCore>(PeerOptions(), store_);
  Do(Restored{{kA0}, {}});
  EXPECT_EQ(HelloSent().capsules_size(), 1) << "an agent that was restarted has it too";
  EXPECT_EQ(HelloSent().offer().rdzv_id(), "none");
  Event(kA0, 1, "gone");
  EXPECT_EQ(HelloSent().capsules_size(), 0) << "what lives nowhere is history";
}

TEST_F(PeerCoreTest, TheControllerMayBecomeAnotherWhileNothingLives) {
  ConnectPeer("fresh", 1);
  EXPECT_THAT(WelcomePeers("old", 7), ElementsAre("store cluster old 7"));
  EXPECT_EQ(core().cluster_id(), "old");
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(WelcomePeers("next", 1), ElementsAre("store cluster next 1", "set heartbeat"));
  LaunchWithCapsule(kA0);
  EXPECT_THAT(WelcomePeers("another", 9), ElementsAre("close"));
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(WelcomePeers("another", 9), ElementsAre("close")) << "and it may come again";
  Do(LinkDown{});
  Do(LinkUp{});
  EXPECT_THAT(Welcome("another", 9), ElementsAre("close")) << "a cluster that is none of peers";
}

TEST_F(PeerCoreTest, WhatADeadControllerHadAcknowledgedIsToldAgainWhenAsked) {
  ConnectPeer();
  LaunchWithCapsule(kA0);
  Event(kA0, 1, "gone");
  Ack(1);
  EXPECT_EQ(HelloSent().snapshot().attempts_size(), 0);
  WelcomePeers("cid", 6);
  EXPECT_THAT(LaunchWithCapsule(kA0), ElementsAre("store #2 gone 0", "send #2 gone 0"));
  EXPECT_THAT(Stop(kA0), ElementsAre("store job 0 0 0")) << "it is on its way";
  Ack(2);
  EXPECT_THAT(Stop(kA0), ElementsAre("store #3 gone 0", "send #3 gone 0"));
  // Also after a restart of the agent, though without the ranks.
  Ack(3);
  core_ = std::make_unique<AgentCore>(PeerOptions(), store_);
  ConnectPeer("cid", 7);
  EXPECT_THAT(LaunchWithCapsule(kA0), ElementsAre("store #4 gone 0", "send #4 gone 0"));
}

TEST_F(PeerCoreTest, TheNextAttemptAndTheEndDropWhatWasKept) {
  ConnectPeer();
  LaunchWithCapsule(kA0);
  Event(kA0, 1, "gone");
  Ack(1);
  EXPECT_THAT(LaunchWithCapsule(kA1), ElementsAre("store job 1 -1 0", "store capsule 1", "start 1"));
  Event(kA1, 1, "gone");
  EXPECT_THAT(Forget(), ElementsAre("drop capsule", "store job 1 1 1", "forget"));
}

TEST_F(PeerCoreTest, StopEverythingLeavesTombstonesAndNeedsNoController) {
  ConnectPeer();
  LaunchWithCapsule(kA0);
  Do(LinkDown{});
  EXPECT_THAT(Do(StopEverything{0, "left"}), ElementsAre("store job 0 0 -1", "stop 0 0"));
  EXPECT_TRUE(core().AnythingLives());
  Event(kA0, 1, "gone");
  EXPECT_FALSE(core().AnythingLives());
  EXPECT_THAT(Do(StopEverything{0, "left"}), IsEmpty());
}

}  // namespace
}  // namespace dgxrun::agent
