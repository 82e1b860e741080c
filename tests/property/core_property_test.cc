// Random inputs, most of them nonsense that a peer could send: whatever comes, the core does not abort, the
// invariants hold, replaying the log gives the same state, and deciding twice gives the same records.
// CoreKit checks the first three after every input.
#include <random>

#include "controller/core/peers.h"
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

// A state that holds this job alone, without what is known only where the attempt was prepared.
std::string DumpAtLaunch(Job job) {
  job.not_before = absl::InfinitePast();
  job.attempt->placed_at = job.attempt->launched_at;
  for (auto& share : job.attempt->nodes) share.Mutable().checkpoint.reset();
  State state;
  state.last_job_number = job.number;
  state.keys[{job.spec.owner().uid(), job.key}] = job.id;
  const JobId id = job.id;
  state.jobs[id] = Cow<Job>(std::move(job));
  return DumpState(state);
}

void ExpectCapsulesFold(const CoreKit& kit, size_t* launches, size_t* restarted) {
  for (const v1::Record& made : kit.last_records) {
    if (!made.has_attempt_launched()) continue;
    const Job& job = *FindJobById(kit.state, JobId(made.attempt_launched().job_id()));
    v1::Record capsule;
    ASSERT_TRUE(capsule.ParseFromString(BuildCapsule(kit.state, job).record()));
    State state;
    Apply(&state, capsule);
    EXPECT_TRUE(CheckInvariants(state).ok()) << CheckInvariants(state);
    EXPECT_EQ(DumpState(state), DumpAtLaunch(job));
    ++*launches;
    *restarted += job.restarts > 0;
  }
}

// Whatever had happened to a job before a launch: its capsule, folded onto nothing, is the job.
TEST(CoreProperty, ACapsuleIsTheJobAtItsLaunch) {
  size_t launches = 0, restarted = 0;
  for (uint64_t seed = 1; seed <= 40 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    CoreKit kit;
    kit.check_replay = false;
    const std::vector<std::string> names = {"a", "b", "c", "d"};
    for (const std::string& name : names) kit.Connect(KitNode{name, 4});
    v1::JobSpec spec = kit.Spec(static_cast<uint32_t>(1 + below(3)), static_cast<uint32_t>(1 + below(3)));
    spec.set_max_restarts(8);
    if (below(2) == 0) spec.set_device(v1::DEVICE_CPU);
    const JobId id = kit.Submit(spec);
    for (int i = 0; i < 12 && kit.Status(id).state() != v1::JOB_STATE_FAILED; ++i) {
      const Attempt attempt = *kit.state.jobs.at(id)->attempt;
      const auto at = [&](size_t n) { return attempt.nodes[n]->name; };
      const uint32_t number = attempt.number.value();
      for (size_t n = 0; n < attempt.nodes.size(); ++n) {
        kit.Prepared(at(n), id, number, below(2) == 0 ? below(1000) : -1);
        ExpectCapsulesFold(kit, &launches, &restarted);
      }
      const size_t bad = static_cast<size_t>(below(static_cast<int>(attempt.nodes.size())));
      const bool lost = below(4) == 0;
      if (lost) {
        std::vector<std::string> alive = names;
        std::erase(alive, at(bad));
        kit.Disconnect(at(bad));
        kit.Run(absl::Seconds(6), alive);
      } else {
        const uint32_t rank = static_cast<uint32_t>(bad) * spec.ranks_per_node();
        kit.Exited(at(bad), id, number, CoreKit::Exit(rank, 1 + below(100)));
      }
      for (size_t n = 0; n < attempt.nodes.size(); ++n) kit.Gone(at(n), id, number);
      for (int s = 0; s < 120 && LiveAttempt(*kit.state.jobs.at(id)) == nullptr; ++s) {
        if (lost && s == 10) kit.Connect(KitNode{at(bad), 4});
        kit.Run(absl::Seconds(1), names);
      }
      if (lost) kit.Connect(KitNode{at(bad), 4});
      if (kit.state.jobs.at(id)->phase == Job::Phase::kEnded) break;
      const Attempt* next = LiveAttempt(*kit.state.jobs.at(id));
      ASSERT_NE(next, nullptr) << kit.Status(id).waiting_for();
    }
  }
  EXPECT_GT(launches, 150u);
  EXPECT_GT(restarted, 100u);
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
