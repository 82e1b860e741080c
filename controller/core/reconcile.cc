// What should be sent. Stateless and idempotent: it looks at the state and says everything that should be
// true out there, however often it was said before; the outbox knows what this connection has had.
#include <algorithm>
#include <set>

#include "controller/core/checkpoints.h"
#include "controller/core/core.h"
#include "controller/core/peers.h"
#include "controller/core/plan.h"
#include "controller/core/strays.h"
#include "controller/core/tidy.h"

namespace dgxrun::core {
namespace {

using Kind = SendToNode::Kind;

SendToNode Message(const Contacts& contacts, Kind kind, const NodeId& node) {
  SendToNode send;
  send.kind = kind;
  send.node = node;
  send.connection = contacts.nodes.at(node).connection;
  return send;
}

SendToNode Stop(const Contacts& contacts, const NodeId& node, const JobId& job, AttemptNo attempt,
                uint64_t grace_ms, const std::string& reason) {
  SendToNode send = Message(contacts, Kind::kStop, node);
  send.job = job;
  send.attempt = attempt;
  v1::StopAttempt* stop = send.message.mutable_stop();
  stop->set_job_id(job.str());
  stop->set_attempt(attempt.value());
  stop->set_grace_ms(grace_ms);
  stop->set_reason(reason);
  return send;
}

SendToNode Forget(const Contacts& contacts, const NodeId& node, const JobId& job) {
  SendToNode send = Message(contacts, Kind::kForget, node);
  send.job = job;
  send.message.mutable_forget()->set_job_id(job.str());
  return send;
}

void ReconcileNode(const State& state, const Contacts& contacts, const NodeId& node,
                   std::vector<Effect>* out) {
  if (!IsConnected(contacts, node)) return;
  const Contact& contact = contacts.nodes.at(node);
  const Config& config = contacts.config;
  SendToNode welcome = Message(contacts, Kind::kWelcome, node);
  v1::Welcome* body = welcome.message.mutable_welcome();
  *body->mutable_version() = config.version;
  body->set_cluster_id(state.cluster_id);
  body->set_term(state.term);
  body->set_heartbeat_ms(absl::ToInt64Milliseconds(config.heartbeat));
  body->set_node_lease_ms(absl::ToInt64Milliseconds(config.node_lease));
  body->set_isolation_timeout_ms(absl::ToInt64Milliseconds(config.isolation_timeout));
  body->set_peers(config.peers.has_value());
  body->set_orphan_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(config.orphan_timeout)));
  out->push_back(std::move(welcome));
  const Node& known = *FindNode(state, node);
  if (!known.witness.empty() && !state.committees.empty() &&
      known.committee < state.committees.rbegin()->first) {
    SendToNode committee = Message(contacts, Kind::kCommittee, node);
    *committee.message.mutable_committee() = state.committees.rbegin()->second;
    out->push_back(std::move(committee));
  }
  if (contact.heartbeat != 0) {
    SendToNode answer = Message(contacts, Kind::kHeartbeatAnswer, node);
    answer.message.mutable_answer()->set_number(contact.heartbeat);
    out->push_back(std::move(answer));
  }
  if (contact.last_report != 0) {
    SendToNode ack = Message(contacts, Kind::kAck, node);
    ack.message.mutable_ack()->set_number(contact.last_report);
    out->push_back(std::move(ack));
  }
  for (const auto& [key, phase] : contact.attempts) {
    const auto& [job, attempt] = key;
    const AttemptKind kind = ClassifyAttempt(state, node, job, attempt);
    // Its time ran out long ago, so it gets none.
    const bool of_another_run = config.peers && kind == AttemptKind::kAhead;
    const bool has_to_go = kind == AttemptKind::kOutlived || kind == AttemptKind::kArchived || of_another_run;
    if (has_to_go && phase != v1::ATTEMPT_PHASE_GONE) {
      out->push_back(Stop(contacts, node, job, attempt, 0, "it outlived its attempt"));
    }
    if (kind == AttemptKind::kArchived) out->push_back(Forget(contacts, node, job));
  }
}

void ReconcileRejected(const Contacts& contacts, const NodeId& node, std::vector<Effect>* out) {
  for (const auto& [connection, rejection] : contacts.rejected) {
    if (rejection.node != node) continue;
    SendToNode refuse;
    refuse.kind = Kind::kRefuse;
    refuse.node = node;
    refuse.connection = connection;
    *refuse.message.mutable_refused() = rejection.refused;
    out->push_back(std::move(refuse));
  }
}

void ReconcileShare(const State& state, const Contacts& contacts, const Job& job, const Attempt& attempt,
                    size_t index, std::vector<Effect>* out) {
  const AttemptNode& share = *attempt.nodes[index];
  if (share.phase == AttemptNode::Phase::kGone || !IsConnected(contacts, share.node)) return;
  switch (attempt.phase) {
    case Attempt::Phase::kPreparing: {
      const bool second =
          share.phase == AttemptNode::Phase::kPrepared && HasSecondRound(share) && AllFound(attempt);
      if (share.phase != AttemptNode::Phase::kPlaced && !second) return;
      SendToNode send = Message(contacts, Kind::kPrepare, share.node);
      send.job = job.id;
      send.attempt = attempt.number;
      *send.message.mutable_prepare() = BuildPrepare(AsOnNode(state, job, share.node), attempt, second);
      out->push_back(std::move(send));
      return;
    }
    case Attempt::Phase::kLaunching: {
      const Contact& contact = contacts.nodes.at(share.node);
      const bool lives = contact.attempts.count({job.id, attempt.number}) > 0;
      const bool waits =
          share.phase == AttemptNode::Phase::kPrepared || share.phase == AttemptNode::Phase::kReady;
      if (!waits || lives) return;
      SendToNode send = Message(contacts, Kind::kLaunch, share.node);
      send.job = job.id;
      send.attempt = attempt.number;
      v1::Launch* launch = send.message.mutable_launch();
      launch->set_job_id(job.id.str());
      launch->set_attempt(attempt.number.value());
      *launch->mutable_plan() =
          BuildNodePlan(contacts.config, AsOnNode(state, job, share.node), attempt, index);
      if (contacts.config.peers) *launch->mutable_capsule() = BuildCapsule(state, job);
      out->push_back(std::move(send));
      return;
    }
    case Attempt::Phase::kStopping:
      out->push_back(Stop(contacts, share.node, job.id, attempt.number, attempt.grace_ms,
                          v1::Cause_Name(attempt.stop_cause)));
      return;
    case Attempt::Phase::kRunning:
    case Attempt::Phase::kEnded:
      return;
  }
}

// Every node has been told to forget the job, or will say nothing of it any more.
bool MayArchive(const State& state, const Contacts& contacts, const Job& job) {
  return std::all_of(job.nodes_used.begin(), job.nodes_used.end(), [&](const NodeId& id) {
    const Node* node = FindNode(state, id);
    return node == nullptr || node->phase != NodePhase::kUp || IsConnected(contacts, id);
  });
}

void ReconcileJob(const State& state, const Contacts& contacts, const Job& job, std::vector<Effect>* out) {
  if (contacts.ahead.count(job.id) > 0) return;
  if (job.phase == Job::Phase::kEnded) {
    out->push_back(DeleteEnvironment{job.id});
    for (const NodeId& node : job.nodes_used) {
      if (!IsConnected(contacts, node)) continue;
      SendToNode forget = Forget(contacts, node, job.id);
      if (contacts.config.peers) {
        *forget.message.mutable_forget()->mutable_status() =
            DescribeJob(state, contacts, job.id, job.ended_at);
      }
      out->push_back(std::move(forget));
    }
    if (MayArchive(state, contacts, job)) out->push_back(ArchiveJob{job.id});
    return;
  }
  const Attempt* attempt = LiveAttempt(job);
  if (attempt == nullptr) return;
  for (size_t i = 0; i < attempt->nodes.size(); ++i) ReconcileShare(state, contacts, job, *attempt, i, out);
  for (auto& [node, remove] : WhatGoes(contacts, job)) {
    if (!IsConnected(contacts, node)) continue;
    SendToNode send = Message(contacts, Kind::kRemove, node);
    send.job = job.id;
    send.attempt = attempt->number;
    *send.message.mutable_remove() = std::move(remove);
    out->push_back(std::move(send));
  }
}

void TouchNode(const State& state, const NodeId& node, std::set<JobId>* jobs, std::set<NodeId>* nodes) {
  nodes->insert(node);
  for (const auto& [id, job] : state.jobs) {
    if (job->nodes_used.count(node) > 0) jobs->insert(id);
  }
}

// Node records touch the node and every job that used it; records of a job touch that job.
void TouchRecord(const State& state, const v1::Record& record, std::set<JobId>* jobs,
                 std::set<NodeId>* nodes) {
  if (record.has_node_admitted())
    return TouchNode(state, NodeId(record.node_admitted().node_id()), jobs, nodes);
  if (record.has_node_lost()) return TouchNode(state, NodeId(record.node_lost().node_id()), jobs, nodes);
  if (record.has_node_fenced()) return TouchNode(state, NodeId(record.node_fenced().node_id()), jobs, nodes);
  if (record.has_node_removed())
    return TouchNode(state, NodeId(record.node_removed().node_id()), jobs, nodes);
  if (const JobId job = JobOfRecord(record); !job.empty()) jobs->insert(job);
}

}  // namespace

JobId JobOfRecord(const v1::Record& record) {
  switch (record.body_case()) {
    case v1::Record::kJobSubmitted:
      return JobId(record.job_submitted().job_id());
    case v1::Record::kStopRequested:
      return JobId(record.stop_requested().job_id());
    case v1::Record::kAttemptPlaced:
      return JobId(record.attempt_placed().job_id());
    case v1::Record::kNodePrepared:
      return JobId(record.node_prepared().job_id());
    case v1::Record::kAttemptLaunched:
      return JobId(record.attempt_launched().job_id());
    case v1::Record::kNodeStarted:
      return JobId(record.node_started().job_id());
    case v1::Record::kRankExited:
      return JobId(record.rank_exited().job_id());
    case v1::Record::kFaultSeen:
      return JobId(record.fault_seen().job_id());
    case v1::Record::kAttemptStopping:
      return JobId(record.attempt_stopping().job_id());
    case v1::Record::kNodeGone:
      return JobId(record.node_gone().job_id());
    case v1::Record::kAttemptEnded:
      return JobId(record.attempt_ended().job_id());
    case v1::Record::kJobEnded:
      return JobId(record.job_ended().job_id());
    case v1::Record::kOutputWasLost:
      return JobId(record.output_was_lost().job_id());
    case v1::Record::kCheckpointPoisoned:
      return JobId(record.checkpoint_poisoned().job_id());
    case v1::Record::kAlarmRaised:
      return JobId(record.alarm_raised().job_id());
    case v1::Record::kRestartDone:
      return JobId(record.restart_done().job_id());
    case v1::Record::kJobAdopted:
      return JobId(record.job_adopted().job_id());
    case v1::Record::kJobDropped:
      return JobId(record.job_dropped().job_id());
    case v1::Record::kClusterCreated:
    case v1::Record::kTermRaised:
    case v1::Record::kClusterAdopted:
    case v1::Record::kNodeAdmitted:
    case v1::Record::kNodeLost:
    case v1::Record::kNodeFenced:
    case v1::Record::kNodeRemoved:
    case v1::Record::kCommitteeNamed:
    case v1::Record::kCommitteeTaken:
    case v1::Record::kJobArchived:
    case v1::Record::BODY_NOT_SET:
      return JobId();
  }
  return JobId();
}

Scope Touched(const State& state, const Input& input, const std::vector<v1::Record>& records) {
  Scope scope;
  if (std::holds_alternative<ControllerStarted>(input.body)) {
    scope.everything = true;
    return scope;
  }
  std::set<JobId> jobs;
  std::set<NodeId> nodes;
  for (const v1::Record& record : records) {
    // Every node has to be told (peers mode; else the term is raised at the start only).
    if (record.has_cluster_adopted() || record.has_term_raised() || record.has_committee_named()) {
      scope.everything = true;
    }
    TouchRecord(state, record, &jobs, &nodes);
  }
  if (const auto* connected = std::get_if<NodeConnected>(&input.body)) {
    TouchNode(state, NodeId(connected->hello.node_id()), &jobs, &nodes);
  } else if (const auto* disconnected = std::get_if<NodeDisconnected>(&input.body)) {
    TouchNode(state, disconnected->node, &jobs, &nodes);
  } else if (const auto* heartbeat = std::get_if<NodeHeartbeat>(&input.body)) {
    nodes.insert(heartbeat->node);
    for (const v1::AttemptProgress& news : heartbeat->heartbeat.progress()) {
      const Job* job = FindJobById(state, JobId(news.job_id()));
      if (news.has_checkpoints() && job != nullptr && KeepsFew(*job)) jobs.insert(job->id);
    }
  } else if (const auto* report = std::get_if<NodeReport>(&input.body)) {
    nodes.insert(report->node);
    jobs.insert(JobId(report->report.job_id()));
  } else if (const auto* stop = std::get_if<StopJob>(&input.body)) {
    jobs.insert(stop->job);
  }
  for (const JobId& job : jobs) {
    if (state.jobs.count(job) > 0) scope.jobs.push_back(job);
  }
  scope.nodes.assign(nodes.begin(), nodes.end());
  return scope;
}

std::vector<Effect> Reconcile(const State& state, const Contacts& contacts, const Scope& scope) {
  std::vector<Effect> effects;
  if (scope.everything) {
    for (const auto& [id, node] : state.nodes) ReconcileNode(state, contacts, id, &effects);
    for (const auto& [connection, rejection] : contacts.rejected) {
      ReconcileRejected(contacts, rejection.node, &effects);
    }
    for (const auto& [id, job] : state.jobs) ReconcileJob(state, contacts, *job, &effects);
    return effects;
  }
  for (const NodeId& node : scope.nodes) {
    ReconcileRejected(contacts, node, &effects);
    ReconcileNode(state, contacts, node, &effects);
  }
  for (const JobId& id : scope.jobs) {
    if (const Job* job = FindJobById(state, id)) ReconcileJob(state, contacts, *job, &effects);
  }
  return effects;
}

}  // namespace dgxrun::core
