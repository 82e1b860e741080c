// What was heard, and nothing more: who is connected, since when, and what they say they hold.
#include "controller/core/committee.h"
#include "controller/core/core.h"
#include "controller/core/hello.h"
#include "controller/core/progress.h"
#include "controller/core/strays.h"

namespace dgxrun::core {
namespace {

// The engine ticks every 250 ms. A longer pause than this means that the controller itself did not run
// (a suspended machine, SIGSTOP, a starved CPU): messages wait in its queue, and nobody was silent.
constexpr absl::Duration kPause = absl::Seconds(1);

// Refused streams whose end was not yet seen; agents that keep coming must not fill memory.
constexpr size_t kMaxRejected = 256;

Contact* ContactOf(Contacts* contacts, const NodeId& node, ConnectionId connection) {
  auto it = contacts->nodes.find(node);
  if (it == contacts->nodes.end() || it->second.connection != connection || connection == 0) return nullptr;
  return &it->second;
}

void On(Contacts* contacts, const State& state, const NodeConnected& input, absl::Time now) {
  const NodeId node(input.hello.node_id());
  if (auto refused = JudgeHello(state, *contacts, input.hello)) {
    contacts->rejected[input.connection] = Rejection{node, *refused};
    if (contacts->rejected.size() > kMaxRejected) contacts->rejected.erase(contacts->rejected.begin());
    return;
  }
  Contact contact;
  contact.connection = input.connection;
  contact.last_heard = now;
  ObservePing(&contact, 0, 0, now);
  // What it knew on an earlier stream it still knows.
  if (auto before = contacts->nodes.find(node); before != contacts->nodes.end()) {
    contact.knew_us = before->second.knew_us;
  }
  contact.free_ports.assign(input.hello.free_ports().begin(), input.hello.free_ports().end());
  for (const auto& attempt : input.hello.snapshot().attempts()) {
    const JobId job(attempt.job_id());
    const AttemptNo number(attempt.attempt());
    contact.attempts[{job, number}] = attempt.phase();
    // In peers mode it is adopted, or it has to go: the log may start empty.
    if (!contacts->config.peers && ClassifyAttempt(state, node, job, number) == AttemptKind::kAhead) {
      contacts->ahead.insert(job);
    }
  }
  contacts->nodes[node] = std::move(contact);
}

void On(Contacts* contacts, const NodeDisconnected& input) {
  contacts->rejected.erase(input.connection);
  if (Contact* contact = ContactOf(contacts, input.node, input.connection)) contact->connection = 0;
}

void On(Contacts* contacts, const State& state, const NodeHeartbeat& input, absl::Time now) {
  Contact* contact = ContactOf(contacts, input.node, input.connection);
  if (contact == nullptr) return;
  contact->last_heard = now;
  contact->heartbeat = input.heartbeat.number();
  ObservePing(contact, input.heartbeat.number(), input.heartbeat.last_answer(), now);
  contact->free_ports.assign(input.heartbeat.free_ports().begin(), input.heartbeat.free_ports().end());
  ObserveProgress(contacts, state, input.node, input.heartbeat, now);
}

void On(Contacts* contacts, const NodeReport& input, absl::Time now) {
  Contact* contact = ContactOf(contacts, input.node, input.connection);
  if (contact == nullptr) return;
  contact->last_heard = now;
  contact->last_report = std::max(contact->last_report, input.report.number());
  const std::pair<JobId, AttemptNo> key{JobId(input.report.job_id()), AttemptNo(input.report.attempt())};
  switch (input.report.body_case()) {
    case v1::Report::kStarted:
      // The snapshot may have told already that it is gone; its older reports come again before that one.
      if (v1::AttemptPhase& phase = contact->attempts[key]; phase != v1::ATTEMPT_PHASE_GONE) {
        phase = v1::ATTEMPT_PHASE_RUNNING;
      }
      return;
    case v1::Report::kGone:
      contact->attempts.erase(key);
      return;
    case v1::Report::kPrepared:
    case v1::Report::kRefused:
    case v1::Report::kExited:
    case v1::Report::kSpawnFailed:
    case v1::Report::kOutputLost:
    case v1::Report::BODY_NOT_SET:
      return;
  }
}

}  // namespace

void Observe(Contacts* contacts, const State& state, const Input& input) {
  if (contacts->awake_since == absl::InfinitePast() || input.now - contacts->last_input > kPause) {
    contacts->awake_since = input.now;
  }
  contacts->last_input = input.now;
  if (std::holds_alternative<ControllerStarted>(input.body)) {
    contacts->started_at = input.now;
  } else if (const auto* connected = std::get_if<NodeConnected>(&input.body)) {
    On(contacts, state, *connected, input.now);
  } else if (const auto* disconnected = std::get_if<NodeDisconnected>(&input.body)) {
    On(contacts, *disconnected);
  } else if (const auto* heartbeat = std::get_if<NodeHeartbeat>(&input.body)) {
    On(contacts, state, *heartbeat, input.now);
  } else if (const auto* report = std::get_if<NodeReport>(&input.body)) {
    On(contacts, *report, input.now);
  }
  if (std::holds_alternative<Tick>(input.body)) {
    ObserveCommittees(contacts, state, input.now);
    std::erase_if(contacts->progress, [&](const auto& entry) { return state.jobs.count(entry.first) == 0; });
  }
  // Tick, SubmitJob, StopJob: nothing was heard of a node.
}

}  // namespace dgxrun::core
