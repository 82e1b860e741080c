// Random inputs, most of them nonsense that a peer could send: whatever comes, the core does not abort, the
// invariants hold, replaying the log gives the same state, and deciding twice gives the same records.
// CoreKit checks the first three after every input.
#include <random>

#include "gtest/gtest.h"
#include "tests/unit/core_kit.h"

namespace dgxrun::core {
namespace {

class RandomInputs {
 public:
  explicit RandomInputs(uint64_t seed) : random_(seed) {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  void Step(CoreKit* kit) {
    kit->now += absl::Milliseconds(Below(900));
    switch (Below(12)) {
      case 0:
        return Connect(kit);
      case 1:
        kit->Disconnect(Name());
        return;
      case 2:
      case 3:
        kit->Beat(Name());
        return;
      case 4:
        kit->Feed(Tick{});
        return;
      case 5: {
        v1::JobSpec spec = kit->Spec(static_cast<uint32_t>(Below(4)), static_cast<uint32_t>(Below(4)));
        spec.set_max_restarts(static_cast<uint32_t>(Below(3)));
        if (Below(3) == 0) spec.set_device(v1::DEVICE_CPU);
        kit->Submit(spec, "key-" + std::to_string(Below(30)));
        return;
      }
      case 6:
        kit->Stop(SomeJob(*kit));
        return;
      case 7:
        if (Below(10) == 0) kit->Restart();
        if (Below(20) == 0) kit->now += absl::Seconds(Below(40));
        return;
      default:
        return Report(kit);
    }
  }

 private:
  std::string Name() { return std::string(1, static_cast<char>('a' + Below(4))); }

  JobId SomeJob(const CoreKit& kit) {
    if (kit.state.jobs.empty() || Below(20) == 0) return JobId("abcdef-" + std::to_string(Below(99)));
    auto it = kit.state.jobs.begin();
    std::advance(it, Below(static_cast<int>(kit.state.jobs.size())));
    return it->first;
  }

  uint32_t SomeAttempt(const CoreKit& kit, const JobId& job) {
    const Job* found = FindJobById(kit.state, job);
    if (found == nullptr || !found->attempt || Below(8) == 0) return static_cast<uint32_t>(Below(4));
    return found->attempt->number.value();
  }

  void Connect(CoreKit* kit) {
    KitNode node{Name()};
    node.gpus = node.name == "d" ? 0 : 3;
    if (Below(6) == 0) node.boot = "boot-" + std::to_string(Below(3));
    for (const auto& [id, job] : kit->state.jobs) {
      if (!job->attempt || Below(2) == 0) continue;
      v1::AttemptSnapshot held;
      held.set_job_id(id.str());
      held.set_attempt(SomeAttempt(*kit, id));
      held.set_phase(static_cast<v1::AttemptPhase>(1 + Below(4)));
      // A newer attempt than the log's would have the job left alone for the rest of the run.
      if (AttemptNo(held.attempt()) < job->next_attempt) node.snapshot.push_back(held);
    }
    kit->Connect(node);
  }

  v1::RankReport SomeExit() {
    v1::RankReport rank = CoreKit::Exit(static_cast<uint32_t>(Below(9)), Below(3), Below(3) == 0 ? 6 : 0,
                                        Below(2) == 0 ? "Connection closed by peer" : "");
    rank.set_after_stop(Below(4) == 0);
    rank.set_state(static_cast<v1::RankState>(Below(5)));
    return rank;
  }

  void Report(CoreKit* kit) {
    const JobId job = SomeJob(*kit);
    const uint32_t attempt = SomeAttempt(*kit, job);
    const std::string node = Name();
    switch (Below(7)) {
      case 0:
      case 1:
        return kit->Prepared(node, job, attempt, Below(3) == 0 ? Below(100) : -1,
                             Below(40) == 0 ? "no folder" : "");
      case 2:
        return kit->Started(node, job, attempt, {0, 1, 2, 3, 4, 5, 6, 7, 8});
      case 3:
        return kit->Exited(node, job, attempt, SomeExit());
      case 4: {
        const v1::Cause causes[] = {v1::CAUSE_UNSPECIFIED, v1::CAUSE_UNSPECIFIED, v1::CAUSE_FENCED,
                                    v1::CAUSE_SUPERVISOR_LOST};
        return kit->Gone(node, job, attempt, {SomeExit(), SomeExit()}, causes[Below(4)]);
      }
      case 5: {
        v1::Report report = kit->ReportOf(node, job, attempt);
        report.mutable_spawn_failed()->set_rank(static_cast<uint32_t>(Below(9)));
        return kit->Send(node, report);
      }
      default: {
        v1::Report report = kit->ReportOf(node, job, attempt);
        if (Below(2) == 0) report.mutable_refused()->set_reason("no port");
        return kit->Send(node, report);  // or an empty one, as of a newer agent
      }
    }
  }

  std::mt19937_64 random_;
};

TEST(CoreProperty, AnyInputsInAnyOrder) {
  size_t records = 0, ended = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    CoreKit kit;
    kit.check_replay = false;
    RandomInputs inputs(seed);
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) {
      inputs.Step(&kit);
      if (i % 20 == 0) {
        kit.check_replay = true;
        kit.Check();
        kit.check_replay = false;
      }
    }
    records += kit.log.size();
    for (const auto& [id, job] : kit.state.jobs) {
      ended += job->phase == Job::Phase::kEnded;
      DescribeJob(kit.state, kit.contacts, id, kit.now);
    }
  }
  // The inputs must reach deep enough to mean something.
  EXPECT_GT(records, 3000u);
  EXPECT_GT(ended, 100u);
}

TEST(CoreProperty, DecideIsAFunction) {
  CoreKit one, two;
  RandomInputs a(7), b(7);
  for (int i = 0; i < 300; ++i) {
    a.Step(&one);
    b.Step(&two);
  }
  ASSERT_EQ(one.log.size(), two.log.size());
  for (size_t i = 0; i < one.log.size(); ++i) {
    EXPECT_EQ(one.log[i].SerializeAsString(), two.log[i].SerializeAsString());
  }
}

TEST(CoreProperty, EveryPrefixOfALogReplays) {
  CoreKit kit;
  kit.check_replay = false;
  RandomInputs inputs(3);
  for (int i = 0; i < 400; ++i) inputs.Step(&kit);
  State state;
  for (const v1::Record& record : kit.log) {
    // What is on the disk after a crash in the middle of a batch.
    v1::Record read;
    ASSERT_TRUE(read.ParseFromString(record.SerializeAsString()));
    Apply(&state, read);
    EXPECT_TRUE(CheckInvariants(state).ok()) << CheckInvariants(state);
  }
  EXPECT_EQ(DumpState(state), DumpState(kit.state));
}

}  // namespace
}  // namespace dgxrun::core
