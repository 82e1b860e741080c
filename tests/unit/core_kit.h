// Drives the core the way the engine does (observe, decide, apply, reconcile), on a clock that the test
// sets, and after every input checks the invariants and that replaying the log gives the same state.
#ifndef DGXRUN_TESTS_UNIT_CORE_KIT_H_
#define DGXRUN_TESTS_UNIT_CORE_KIT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/core/core.h"
#include "controller/core/invariants.h"
#include "gtest/gtest.h"

namespace dgxrun::core {

struct KitNode {
  std::string name;
  int gpus = 0;
  std::string peer = "";  // "" is a unix socket
  std::string boot = "boot-1";
  std::string user = "root";
  std::string gpu_error;
  uint32_t pci_gpus = 0;
  std::vector<v1::AttemptSnapshot> snapshot;
  std::optional<v1::PeerOffer> offer;
  std::vector<v1::JobCapsule> capsules;
  std::string cluster_id;
  uint64_t term = 0;
};

class CoreKit {
 public:
  explicit CoreKit(const std::string& fresh_cluster_id = "abcdef00-0000-4000-8000-000000000000") {
    contacts.config.cluster_name = "test";
    contacts.config.version.set_major(1);
    contacts.config.version.set_release("test");
    Feed(ControllerStarted{fresh_cluster_id});
  }

  template <class Body>
  std::vector<Effect> Feed(Body body) {
    Input input{now, std::move(body)};
    Observe(&contacts, state, input);
    Decision decision = Decide(state, contacts, input);
    for (const v1::Record& record : decision.records) {
      Apply(&state, record);
      log.push_back(record);
    }
    last_records = decision.records;
    answers = decision.answers;
    effects = Reconcile(state, contacts, Touched(state, input, decision.records));
    Check();
    return effects;
  }

  void Check() {
    EXPECT_TRUE(CheckInvariants(state).ok()) << CheckInvariants(state);
    if (!check_replay) return;
    State again;
    for (const v1::Record& record : log) Apply(&again, record);
    EXPECT_EQ(DumpState(again), DumpState(state));
  }

  // As a controller that was killed and came back: only the log is left.
  void Restart() {
    state = State();
    for (const v1::Record& record : log) Apply(&state, record);
    Contacts fresh;
    fresh.config = contacts.config;
    contacts = fresh;
    Feed(ControllerStarted{"11111111-0000-4000-8000-000000000000"});
  }

  NodeId Id(const std::string& name) const { return NodeId("id-" + name); }

  std::vector<Effect> Connect(const KitNode& node) {
    NodeConnected input;
    input.connection = ++last_connection;
    input.peer_address = node.peer;
    v1::Hello& hello = input.hello;
    *hello.mutable_version() = contacts.config.version;
    hello.set_node_id(Id(node.name).str());
    hello.set_node_name(node.name);
    hello.set_boot_id(node.boot);
    hello.set_agent_user(node.user);
    hello.add_free_ports(40001);
    hello.add_free_ports(40002);
    v1::Inventory* inventory = hello.mutable_inventory();
    inventory->set_allowed_cores(8);
    inventory->set_pci_gpus(node.pci_gpus != 0 ? node.pci_gpus : node.gpus);
    inventory->set_gpu_error(node.gpu_error);
    inventory->add_addresses("10.0.0." + std::to_string(last_connection));
    for (int i = 0; i < node.gpus; ++i) {
      v1::Gpu* gpu = inventory->add_gpus();
      gpu->set_index(i);
      gpu->set_uuid(absl::StrCat("GPU-", node.name, "-", i));
    }
    for (const auto& attempt : node.snapshot) *hello.mutable_snapshot()->add_attempts() = attempt;
    if (node.offer) *hello.mutable_offer() = *node.offer;
    for (const auto& capsule : node.capsules) *hello.add_capsules() = capsule;
    hello.set_cluster_id(node.cluster_id);
    hello.set_term(node.term);
    connection[node.name] = input.connection;
    report_number[node.name] = 0;
    return Feed(std::move(input));
  }

  void Disconnect(const std::string& name) { Feed(NodeDisconnected{Id(name), connection[name]}); }

  void Beat(const std::string& name) {
    NodeHeartbeat input{Id(name), connection[name], {}};
    input.heartbeat.set_number(++beat);
    input.heartbeat.add_free_ports(40001);
    input.heartbeat.add_free_ports(40002);
    Feed(std::move(input));
  }

  // Ticks every 250 ms, with heartbeats of `alive` each second.
  void Run(absl::Duration time, const std::vector<std::string>& alive) {
    const absl::Time end = now + time;
    for (int i = 0; now < end; ++i) {
      now += absl::Milliseconds(250);
      if (i % 4 == 0) {
        for (const std::string& name : alive) Beat(name);
      }
      Feed(Tick{});
    }
  }

  v1::JobSpec Spec(uint32_t nodes, uint32_t ranks) const {
    v1::JobSpec spec;
    spec.set_nodes(nodes);
    spec.set_ranks_per_node(ranks);
    spec.set_device(v1::DEVICE_AUTO);
    spec.add_argv("python3");
    spec.add_argv("train.py");
    spec.set_cwd("/data");
    spec.set_grace_ms(10000);
    spec.set_max_restarts(3);
    return spec;
  }

  JobId Submit(const v1::JobSpec& spec, const std::string& key = "") {
    SubmitJob input;
    input.request = ++last_request;
    input.caller = ada;
    input.key = key.empty() ? absl::StrCat("key-", last_request) : key;
    input.spec = spec;
    Feed(std::move(input));
    EXPECT_EQ(answers.size(), 1u);
    return answers[0].job;
  }
  absl::Status SubmitStatus(const v1::JobSpec& spec) {
    Submit(spec);
    return answers[0].status;
  }

  void Stop(const JobId& job, const std::string& reason = "dgxrun stop") {
    StopJob input;
    input.request = ++last_request;
    input.caller = ada;
    input.job = job;
    input.reason = reason;
    Feed(std::move(input));
  }

  v1::Report ReportOf(const std::string& node, const JobId& job, uint32_t attempt) {
    v1::Report report;
    report.set_number(++report_number[node]);
    report.set_job_id(job.str());
    report.set_attempt(attempt);
    return report;
  }
  void Send(const std::string& node, const v1::Report& report) {
    Feed(NodeReport{Id(node), connection[node], report});
  }
  void Prepared(const std::string& node, const JobId& job, uint32_t attempt, int64_t step = -1,
                const std::string& error = "") {
    v1::Report report = ReportOf(node, job, attempt);
    report.mutable_prepared();
    if (step >= 0) {
      report.mutable_prepared()->mutable_checkpoint()->set_path(absl::StrCat("/ckpt/", step));
      report.mutable_prepared()->mutable_checkpoint()->set_step(step);
    }
    if (!error.empty()) report.mutable_prepared()->add_errors(error);
    Send(node, report);
  }
  void Started(const std::string& node, const JobId& job, uint32_t attempt, std::vector<uint32_t> ranks) {
    v1::Report report = ReportOf(node, job, attempt);
    for (uint32_t rank : ranks) {
      v1::RankReport* r = report.mutable_started()->add_ranks();
      r->set_rank(rank);
      r->set_pid(1000 + static_cast<int>(rank));
      r->set_state(v1::RANK_STATE_RUNNING);
    }
    Send(node, report);
  }
  static v1::RankReport Exit(uint32_t rank, int code, int signal = 0, const std::string& tail = "") {
    v1::RankReport r;
    r.set_rank(rank);
    r.set_state(v1::RANK_STATE_EXITED);
    r.mutable_exit()->set_code(signal != 0 ? 128 + signal : code);
    r.mutable_exit()->set_signal(signal);
    if (!tail.empty()) r.add_stderr_tail(tail);
    return r;
  }
  void Exited(const std::string& node, const JobId& job, uint32_t attempt, const v1::RankReport& rank) {
    v1::Report report = ReportOf(node, job, attempt);
    *report.mutable_exited() = rank;
    Send(node, report);
  }
  void Gone(const std::string& node, const JobId& job, uint32_t attempt,
            std::vector<v1::RankReport> ranks = {}, v1::Cause cause = v1::CAUSE_UNSPECIFIED) {
    v1::Report report = ReportOf(node, job, attempt);
    report.mutable_gone()->set_cause(cause);
    for (const auto& rank : ranks) *report.mutable_gone()->add_ranks() = rank;
    Send(node, report);
  }

  v1::JobStatus Status(const JobId& job) const { return DescribeJob(state, contacts, job, now); }

  std::vector<SendToNode> Sent(SendToNode::Kind kind) const {
    std::vector<SendToNode> out;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<SendToNode>(&effect);
      if (send != nullptr && send->kind == kind) out.push_back(*send);
    }
    return out;
  }
  template <class E>
  size_t Count() const {
    size_t n = 0;
    for (const Effect& effect : effects) n += std::holds_alternative<E>(effect);
    return n;
  }

  Caller ada{"ada", 1000, 1000, false};
  absl::Time now = absl::FromUnixSeconds(1700000000);
  State state;
  Contacts contacts;
  std::vector<v1::Record> log, last_records;
  std::vector<Answer> answers;
  std::vector<Effect> effects;
  std::map<std::string, ConnectionId> connection;
  std::map<std::string, uint64_t> report_number;
  ConnectionId last_connection = 0;
  RequestId last_request = 0;
  uint64_t beat = 0;
  bool check_replay = true;
};

}  // namespace dgxrun::core

#endif  // DGXRUN_TESTS_UNIT_CORE_KIT_H_
