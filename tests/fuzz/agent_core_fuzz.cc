// The agent's core under any order of anything that a controller, a shim or a run folder may say: it does not
// abort, and keeps what it promises (agent_core.h). Some messages are made of few ids and numbers, so that
// they meet; some are raw bytes.
#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "agent/agent_core.h"
#include "tests/fuzz/require.h"

namespace dgxrun::agent {
namespace {

constexpr size_t kMaxSteps = 200;  // deep enough for several attempts of several jobs
constexpr int64_t kNsPerMs = 1000000;

v1::WireVersion Version(uint32_t major, uint32_t minor) {
  v1::WireVersion version;
  version.set_major(major);
  version.set_minor(minor);
  return version;
}

AgentCoreOptions Options() {
  AgentCoreOptions options;
  options.version = Version(1, 1);
  options.node_id = NodeId("n-1");
  options.node_name = "node1";
  options.boot_id = "boot";
  options.agent_user = "root";
  return options;
}

// Holds the agent to its promises, action by action.
class Watch {
 public:
  void See(const Action& action) {
    std::visit([&](const auto& a) { On(a); }, action);
  }
  void Stopped(const AttemptKey& key) {
    auto [it, fresh] = tombstones_.emplace(key.job, key.attempt.value());
    if (!fresh) it->second = std::max(it->second, int64_t{key.attempt.value()});
  }

 private:
  template <class A>
  void On(const A& action) {
    if constexpr (std::is_same_v<A, StoreReport>) {
      Require(action.report.number() == last_report_ + 1, "report numbers have a gap");
      last_report_ = action.report.number();
    } else if constexpr (std::is_same_v<A, StoreJob>) {
      StoredJob& kept = jobs_[action.job];
      Require(action.stored.launched >= kept.launched && action.stored.tombstone >= kept.tombstone,
              "a highest attempt fell");
      kept = action.stored;
    } else if constexpr (std::is_same_v<A, DropJob>) {
      jobs_.erase(action.job);
      tombstones_.erase(action.job);
    } else if constexpr (std::is_same_v<A, StoreCluster>) {
      Require(action.term >= term_, "the term fell");
      Require(cluster_.empty() || cluster_ == action.cluster_id, "the cluster changed");
      term_ = action.term;
      cluster_ = action.cluster_id;
    } else if constexpr (std::is_same_v<A, StartShimFor>) {
      const JobId job(action.launch.job_id());
      const int64_t attempt = action.launch.attempt();
      Require(jobs_[job].launched == attempt, "started before it was stored");
      Require(started_[job] < attempt + 1, "an attempt was started twice, or an older one");
      started_[job] = attempt + 1;
      const auto stopped = tombstones_.find(job);
      Require(stopped == tombstones_.end() || stopped->second < attempt, "a stopped attempt was started");
    } else if constexpr (std::is_same_v<A, Send>) {
      if (action.message.has_report()) {
        Require(action.message.report().number() <= last_report_, "sent before it was stored");
      }
    }
  }

  uint64_t last_report_ = 0;
  uint64_t term_ = 0;
  std::string cluster_;
  std::map<JobId, StoredJob> jobs_;
  std::map<JobId, int64_t> started_;     // highest started, plus one
  std::map<JobId, int64_t> tombstones_;  // of the Stops that were heard
};

class Driver {
 public:
  Driver(FuzzedDataProvider* input) : input_(*input), core_(Options(), {}) {}

  void Run() {
    Feed(Restored{});
    for (size_t i = 0; i < kMaxSteps && input_.remaining_bytes() > 0; ++i) Step();
  }

 private:
  template <class Body>
  void Feed(Body body) {
    for (const Action& action : core_.Handle(Input{now_ns_, std::move(body)})) watch_.See(action);
  }

  AttemptKey Key() {
    static const char* const kJobs[] = {"c-1", "c-2", "../c"};
    return {JobId(input_.PickValueInArray(kJobs)), AttemptNo(input_.ConsumeIntegralInRange<uint32_t>(0, 4))};
  }

  void Step() {
    now_ns_ += input_.ConsumeIntegralInRange<int64_t>(0, 3000) * kNsPerMs;
    switch (input_.ConsumeIntegralInRange<int>(0, 10)) {
      case 0:
        return Feed(LinkUp{});
      case 1:
        return Feed(LinkDown{});
      case 2:
        return Feed(HeartbeatDue{});
      case 3:
        return Feed(PreparedHere{Key(), Parse<v1::Prepared>()});
      case 4:
        return Feed(StartFailed{Key(), "no shim"});
      case 5:
        return Feed(ShimDisconnected{Key()});
      case 6:
        return Feed(StraysGone{Key(), "swept"});
      case 7: {
        v1::ShimFinal final = Parse<v1::ShimFinal>();
        const AttemptKey key = Key();
        final.set_job_id(key.job.str());
        final.set_attempt(key.attempt.value());
        return Feed(FinalFound{std::move(final)});
      }
      case 8:
        return Feed(ShimSaid{Key(), ShimMessage()});
      case 9: {
        v1::ControllerMsg message = Parse<v1::ControllerMsg>();
        if (message.has_stop() && core_.welcomed()) NoteStop(message.stop());
        return Feed(FromController{std::move(message)});
      }
      default:
        return Controller();
    }
  }

  template <class Message>
  Message Parse() {
    Message message;
    // What does not parse leaves what came before the fault: as good as any.
    (void)message.ParseFromString(input_.ConsumeRandomLengthString(200));
    return message;
  }

  void NoteStop(const v1::StopAttempt& stop) {
    if (IsValidName(stop.job_id())) watch_.Stopped({JobId(stop.job_id()), AttemptNo(stop.attempt())});
  }

  void Controller() {
    v1::ControllerMsg message;
    const AttemptKey key = Key();
    switch (input_.ConsumeIntegralInRange<int>(0, 6)) {
      case 0: {
        v1::Welcome* welcome = message.mutable_welcome();
        *welcome->mutable_version() = Version(1, input_.ConsumeIntegralInRange<uint32_t>(0, 3));
        welcome->set_cluster_id(input_.ConsumeBool() ? "cluster" : "other");
        welcome->set_term(input_.ConsumeIntegralInRange<uint64_t>(1, 4));
        welcome->set_heartbeat_ms(1000);
        welcome->set_isolation_timeout_ms(10000);
        break;
      }
      case 1:
        message.mutable_prepare()->set_job_id(key.job.str());
        message.mutable_prepare()->set_attempt(key.attempt.value());
        break;
      case 2:
        message.mutable_launch()->set_job_id(key.job.str());
        message.mutable_launch()->set_attempt(key.attempt.value());
        break;
      case 3:
        message.mutable_stop()->set_job_id(key.job.str());
        message.mutable_stop()->set_attempt(key.attempt.value());
        message.mutable_stop()->set_grace_ms(input_.ConsumeIntegralInRange<uint64_t>(0, 3));
        if (core_.welcomed()) NoteStop(message.stop());
        break;
      case 4:
        message.mutable_forget()->set_job_id(key.job.str());
        break;
      case 5:
        message.mutable_ack()->set_number(input_.ConsumeIntegralInRange<uint64_t>(0, 40));
        break;
      default:
        message.mutable_answer()->set_number(input_.ConsumeIntegralInRange<uint64_t>(0, 20));
        break;
    }
    Feed(FromController{std::move(message)});
  }

  v1::ShimMsg ShimMessage() {
    v1::ShimMsg message;
    v1::ShimEvent* event = message.mutable_event();
    switch (input_.ConsumeIntegralInRange<int>(0, 4)) {
      case 0:
        message.mutable_hello()->set_version(1);
        *message.mutable_hello()->mutable_snapshot() = Parse<v1::AttemptSnapshot>();
        return message;
      case 1:
        event->mutable_started()->add_ranks()->set_rank(0);
        break;
      case 2:
        event->mutable_exited()->set_state(v1::RANK_STATE_EXITED);
        break;
      case 3:
        event->mutable_gone();
        break;
      default:
        return Parse<v1::ShimMsg>();
    }
    event->set_number(input_.ConsumeIntegralInRange<uint64_t>(0, 5));
    return message;
  }

  FuzzedDataProvider& input_;
  AgentCore core_;
  Watch watch_;
  int64_t now_ns_ = 1000 * kNsPerMs;
};

}  // namespace
}  // namespace dgxrun::agent

// Protobuf would print a line for each string that is no UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  dgxrun::agent::Driver(&input).Run();
  return 0;
}
