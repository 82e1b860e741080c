// The controller's core under any order of anything that agents and clients may say: it does not abort, its
// invariants hold after each input, and its log gives the same state again. Some messages are made of few ids
// and numbers, so that they meet; some are raw bytes.
#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "controller/core/core.h"
#include "controller/core/invariants.h"
#include "tests/fuzz/require.h"

namespace dgxrun::core {
namespace {

constexpr size_t kMaxSteps = 120;

class Driver {
 public:
  explicit Driver(FuzzedDataProvider* input) : input_(*input) {
    contacts_.config.cluster_name = "fuzz";
    contacts_.config.version.set_major(1);
    contacts_.config.version.set_minor(1);
    Feed(ControllerStarted{"abcdef00-0000-4000-8000-000000000000"});
  }

  void Run() {
    for (size_t i = 0; i < kMaxSteps && input_.remaining_bytes() > 0; ++i) Step();
    Describe();
    State again;
    for (const v1::Record& record : log_) {
      v1::Record read;
      Require(read.ParseFromString(record.SerializeAsString()), "a record does not parse");
      Apply(&again, read);
    }
    Require(DumpState(again) == DumpState(state_), "replay gives another state");
  }

 private:
  template <class Body>
  void Feed(Body body) {
    const Input input{now_, std::move(body)};
    Observe(&contacts_, state_, input);
    const Decision decision = Decide(state_, contacts_, input);
    for (const v1::Record& record : decision.records) {
      Apply(&state_, record);
      log_.push_back(record);
    }
    const absl::Status status = CheckInvariants(state_);
    Require(status.ok(), status.ToString());
    for (const Effect& effect : Reconcile(state_, contacts_, Touched(state_, input, decision.records))) {
      const auto* archive = std::get_if<ArchiveJob>(&effect);
      if (archive != nullptr) archive_.push_back(archive->job);
    }
    for (const JobId& job : std::exchange(archive_, {})) {
      if (FindJobById(state_, job) == nullptr) continue;
      const v1::Record record = ArchivedRecord(state_, job, now_);
      Apply(&state_, record);
      // The engine drops the job's other records in the same commit.
      std::erase_if(log_, [&](const v1::Record& r) { return JobOfRecord(r) == job; });
      log_.push_back(record);
    }
  }

  NodeId Node() { return NodeId(std::string("n-") + static_cast<char>('a' + Below(3))); }
  uint32_t Below(uint32_t n) { return input_.ConsumeIntegralInRange<uint32_t>(0, n - 1); }

  JobId SomeJob() {
    if (state_.jobs.empty() || Below(16) == 0) return JobId("abcdef-" + std::to_string(Below(5)));
    auto it = state_.jobs.begin();
    std::advance(it, Below(static_cast<uint32_t>(state_.jobs.size())));
    return it->first;
  }

  template <class Message>
  Message Parse() {
    Message message;
    // What does not parse leaves what came before the fault: as good as any.
    (void)message.ParseFromString(input_.ConsumeRandomLengthString(200));
    return message;
  }

  void Step() {
    now_ += absl::Milliseconds(Below(900));
    switch (Below(9)) {
      case 0:
        return Connect();
      case 1: {
        const NodeId node = Node();
        return Feed(NodeDisconnected{node, connection_[node]});
      }
      case 2: {
        NodeHeartbeat beat{Node(), 0, Parse<v1::Heartbeat>()};
        beat.connection = connection_[beat.node];
        beat.heartbeat.add_free_ports(40001);
        return Feed(std::move(beat));
      }
      case 3:
        if (Below(8) == 0) now_ += absl::Seconds(Below(40));
        return Feed(Tick{});
      case 4:
        return Submit();
      case 5: {
        StopJob stop;
        stop.request = ++request_;
        stop.caller = Caller{"ada", 1000, 1000, Below(2) == 0};
        stop.job = SomeJob();
        return Feed(std::move(stop));
      }
      case 6:
        if (Below(10) == 0) Restart();
        return;
      default:
        return Report();
    }
  }

  void Restart() {
    Contacts fresh;
    fresh.config = contacts_.config;
    contacts_ = fresh;
    Feed(ControllerStarted{"11111111-0000-4000-8000-000000000000"});
  }

  void Connect() {
    const NodeId node = Node();
    NodeConnected connected;
    connected.connection = connection_[node] = ++last_connection_;
    if (Below(4) == 0) connected.hello = Parse<v1::Hello>();
    v1::Hello& hello = connected.hello;
    *hello.mutable_version() = contacts_.config.version;
    hello.mutable_version()->set_minor(Below(4));
    hello.set_node_id(node.str());
    hello.set_node_name(node.str());
    hello.set_agent_user(Below(2) == 0 ? "root" : "ada");
    hello.add_free_ports(40001);
    hello.mutable_inventory()->set_allowed_cores(4);
    for (uint32_t i = 0; hello.inventory().gpus_size() < 2; ++i)
      hello.mutable_inventory()->add_gpus()->set_index(i);
    Feed(std::move(connected));
  }

  void Submit() {
    SubmitJob submit;
    submit.request = ++request_;
    submit.caller = Caller{"ada", 1000, 1000, false};
    submit.key = "key-" + std::to_string(Below(6));
    if (Below(4) == 0) submit.spec = Parse<v1::JobSpec>();
    v1::JobSpec& spec = submit.spec;
    spec.set_nodes(Below(3) + 1);
    spec.set_ranks_per_node(Below(3));
    spec.set_device(Below(2) == 0 ? v1::DEVICE_CPU : v1::DEVICE_AUTO);
    spec.add_argv("true");
    spec.set_cwd("/");
    spec.set_max_restarts(Below(3));
    Feed(std::move(submit));
  }

  v1::RankReport Rank() {
    v1::RankReport rank;
    rank.set_rank(Below(7));
    rank.set_state(static_cast<v1::RankState>(Below(5)));
    rank.mutable_exit()->set_code(static_cast<int32_t>(Below(3)));
    return rank;
  }

  void Report() {
    const NodeId node = Node();
    const JobId job = SomeJob();
    const Job* known = FindJobById(state_, job);
    v1::Report report;
    if (Below(6) == 0) report = Parse<v1::Report>();
    report.set_number(++report_number_[node]);
    report.set_job_id(job.str());
    const bool live = known != nullptr && known->attempt.has_value() && Below(8) != 0;
    report.set_attempt(live ? known->attempt->number.value() : Below(4));
    switch (Below(8)) {
      case 0:
      case 1:
        report.mutable_prepared();
        break;
      case 2:
        for (uint32_t rank = 0; rank < 7; ++rank) report.mutable_started()->add_ranks()->set_rank(rank);
        break;
      case 3:
        *report.mutable_exited() = Rank();
        break;
      case 4:
        *report.mutable_gone()->add_ranks() = Rank();
        break;
      case 5:
        report.mutable_spawn_failed()->set_rank(Below(7));
        break;
      case 6:
        report.mutable_refused()->set_reason("no port");
        break;
      default:  // as it was parsed, or empty, as of a newer agent
        break;
    }
    Feed(NodeReport{node, connection_[node], std::move(report)});
  }

  void Describe() {
    for (const auto& [id, job] : state_.jobs) DescribeJob(state_, contacts_, id, now_);
    for (const auto& [id, node] : state_.nodes) DescribeNode(state_, contacts_, id, now_);
  }

  FuzzedDataProvider& input_;
  absl::Time now_ = absl::FromUnixSeconds(1700000000);
  State state_;
  Contacts contacts_;
  std::vector<v1::Record> log_;
  std::vector<JobId> archive_;
  std::map<NodeId, ConnectionId> connection_;
  std::map<NodeId, uint64_t> report_number_;
  ConnectionId last_connection_ = 0;
  RequestId request_ = 0;
};

}  // namespace
}  // namespace dgxrun::core

// Protobuf would print a line for each string that is no UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  dgxrun::core::Driver(&input).Run();
  return 0;
}
