// Folding records into the state. Dull on purpose: no rule is decided here, so that a newer binary replays
// an old log to the same state.
#include <algorithm>

#include "controller/core/check.h"
#include "controller/core/core.h"
#include "controller/core/peers.h"

namespace dgxrun::core {
namespace {

absl::Time TimeOf(const v1::Record& record) { return absl::FromUnixNanos(record.at_unix_ns()); }

Job& JobOf(State* state, const std::string& id) {
  auto it = state->jobs.find(JobId(id));
  if (it == state->jobs.end()) Broken("Apply", "record of unknown job " + id);
  return it->second.Mutable();
}

Attempt& AttemptOf(Job* job, uint32_t number) {
  if (!job->attempt || job->attempt->number != AttemptNo(number) ||
      job->attempt->phase == Attempt::Phase::kEnded) {
    Broken("Apply", "record of attempt " + std::to_string(number) + " of job " + job->id.str() +
                        ", which is not the current one");
  }
  return *job->attempt;
}

AttemptNode& ShareOf(Attempt* attempt, const std::string& node) {
  for (auto& share : attempt->nodes) {
    if (share->node.str() == node) return share.Mutable();
  }
  Broken("Apply", "record of node " + node + ", on which the attempt has no share");
}

Node& NodeOf(State* state, const std::string& id) {
  auto it = state->nodes.find(NodeId(id));
  if (it == state->nodes.end()) Broken("Apply", "record of unknown node " + id);
  return it->second.Mutable();
}

// The first word about an exit stands; later ones only add what was not known.
void MergeRank(AttemptNode* share, const v1::RankReport& report, uint64_t order, bool by_gone) {
  RankInfo& info = share->ranks[report.rank()];
  if (info.report.state() == v1::RANK_STATE_EXITED) {
    if (report.stderr_tail_size() > 0) *info.report.mutable_stderr_tail() = report.stderr_tail();
    if (!report.error_message().empty()) info.report.set_error_message(report.error_message());
    if (report.oom_killed()) info.report.set_oom_killed(true);
    return;
  }
  const bool known = info.report.pid() != 0;
  const int32_t pid = info.report.pid(), inner_pid = info.report.inner_pid();
  info.report = report;
  if (known && report.pid() == 0) {
    info.report.set_pid(pid);
    info.report.set_inner_pid(inner_pid);
  }
  if (report.state() == v1::RANK_STATE_EXITED) {
    info.order = order;
    info.told_by_gone = by_gone;
  }
}

void OnNodeAdmitted(State* state, const v1::NodeAdmitted& r) {
  Node& node = state->nodes[NodeId(r.node_id())].Mutable();
  node.id = NodeId(r.node_id());
  node.name = r.name();
  node.boot_id = r.boot_id();
  node.peer_address = r.peer_address();
  node.inventory = r.inventory();
  node.agent_user = r.agent_user();
  node.release = r.release();
  node.witness = r.witness();
  node.offer.reset();
  if (r.has_offer()) node.offer = r.offer();
  node.phase = NodePhase::kUp;
}

void OnJobSubmitted(State* state, const v1::JobSubmitted& r, absl::Time at) {
  Job job;
  job.id = JobId(r.job_id());
  job.number = r.number();
  job.key = r.key();
  job.spec = r.spec();
  job.submitted_at = at;
  state->last_job_number = std::max(state->last_job_number, r.number());
  state->keys[{r.spec().owner().uid(), r.key()}] = job.id;
  const JobId id = job.id;
  if (!state->jobs.emplace(id, Cow<Job>(std::move(job))).second) {
    Broken("Apply", "job " + id.str() + " submitted twice");
  }
}

// A job keeps its nodes over most restarts, so this grows with changes of them, not with attempts.
void NotePlacement(Job* job, const v1::AttemptPlaced& r) {
  v1::Placement now;
  now.set_first_attempt(r.attempt());
  for (const auto& placed : r.nodes()) {
    v1::PlacedNodeName* node = now.add_nodes();
    node->set_node_id(placed.node_id());
    node->set_name(placed.name());
  }
  const auto same = [](const v1::PlacedNodeName& a, const v1::PlacedNodeName& b) {
    return a.node_id() == b.node_id() && a.name() == b.name();
  };
  if (!job->placements.empty()) {
    const auto& last = job->placements.back().nodes();
    if (std::equal(last.begin(), last.end(), now.nodes().begin(), now.nodes().end(), same)) return;
  }
  job->placements.push_back(std::move(now));
}

void OnAttemptPlaced(Job* job, const v1::AttemptPlaced& r, absl::Time at) {
  if (LiveAttempt(*job) != nullptr || r.attempt() < job->next_attempt.value()) {
    Broken("Apply",
           "attempt " + std::to_string(r.attempt()) + " of " + job->id.str() + " placed out of turn");
  }
  Attempt attempt;
  attempt.number = AttemptNo(r.attempt());
  attempt.placed_at = at;
  for (const auto& placed : r.nodes()) {
    AttemptNode share;
    share.node = NodeId(placed.node_id());
    share.name = placed.name();
    share.placed = placed;
    job->nodes_used.insert(share.node);
    attempt.nodes.emplace_back(std::move(share));
  }
  NotePlacement(job, r);
  job->attempt = std::move(attempt);
  job->phase = Job::Phase::kActive;
  job->next_attempt = AttemptNo(r.attempt()).Next();
}

void OnAttemptLaunched(Job* job, const v1::AttemptLaunched& r, absl::Time at) {
  Attempt* attempt = &AttemptOf(job, r.attempt());
  job->last_master_port = r.master_port();
  attempt->phase = Attempt::Phase::kLaunching;
  attempt->launched = true;
  attempt->launched_at = at;
  if (r.has_checkpoint()) attempt->checkpoint = r.checkpoint();
  attempt->master_addr = r.master_addr();
  attempt->master_port = r.master_port();
}

void OnNodeStarted(Attempt* attempt, const v1::NodeStarted& r, uint64_t order, absl::Time at) {
  AttemptNode& share = ShareOf(attempt, r.node_id());
  for (const auto& rank : r.ranks()) MergeRank(&share, rank, order, false);
  share.log_dir = r.log_dir();
  share.warnings.assign(r.warnings().begin(), r.warnings().end());
  if (share.phase != AttemptNode::Phase::kGone) share.phase = AttemptNode::Phase::kStarted;
  const bool all = std::all_of(attempt->nodes.begin(), attempt->nodes.end(), [](const auto& s) {
    return s->phase == AttemptNode::Phase::kStarted || s->phase == AttemptNode::Phase::kGone;
  });
  if (!all) return;
  attempt->started_at = at;
  if (attempt->phase == Attempt::Phase::kLaunching) attempt->phase = Attempt::Phase::kRunning;
}

void OnFaultSeen(Attempt* attempt, const v1::FaultSeen& r, uint64_t order, absl::Time at) {
  Fault fault;
  fault.cause = r.cause();
  fault.node = NodeId(r.node_id());
  fault.rank = r.rank();
  fault.detail = r.detail();
  fault.order = order;
  const absl::Time since = r.since_unix_ns() != 0 ? absl::FromUnixNanos(r.since_unix_ns()) : at;
  fault.after_stop = attempt->phase == Attempt::Phase::kStopping && since > attempt->stopping_at;
  attempt->faults.push_back(std::move(fault));
}

void OnAttemptStopping(Attempt* attempt, const v1::AttemptStopping& r, absl::Time at) {
  if (attempt->phase == Attempt::Phase::kStopping) {  // told again: only the grace gets shorter
    attempt->grace_ms = std::min(attempt->grace_ms, r.grace_ms());
    return;
  }
  attempt->phase = Attempt::Phase::kStopping;
  attempt->stop_cause = r.cause();
  attempt->grace_ms = r.grace_ms();
  attempt->stopping_at = at;
}

void OnNodeGone(Attempt* attempt, const v1::NodeGone& r, uint64_t order) {
  AttemptNode& share = ShareOf(attempt, r.node_id());
  for (const auto& rank : r.ranks()) MergeRank(&share, rank, order, true);
  if (!r.log_dir().empty()) share.log_dir = r.log_dir();
  share.fenced = r.fenced();
  share.gone_cause = r.cause();
  share.gone_detail = r.detail();
  if (r.has_lost()) share.lost = r.lost();
  share.phase = AttemptNode::Phase::kGone;
}

void OnAttemptEnded(Job* job, const v1::AttemptEnded& r, absl::Time at) {
  Attempt& attempt = AttemptOf(job, r.attempt());
  if (attempt.launched) {
    job->loaded_before = Loaded{attempt.checkpoint.value_or(v1::Checkpoint()), at - attempt.launched_at};
  } else if (r.why().cause() != v1::CAUSE_UNSPECIFIED) {
    job->loaded_before.reset();  // `why` is no longer that attempt's
  } else {
    job->never_launched++;
  }
  const absl::Time failed_at = attempt.stopping_at != absl::InfinitePast() ? attempt.stopping_at : at;
  attempt.phase = Attempt::Phase::kEnded;
  job->phase = Job::Phase::kQueued;
  job->short_failures = r.short_failures();
  if (r.why().cause() != v1::CAUSE_UNSPECIFIED) job->why = r.why();
  if (!r.restart()) return;
  job->restarts++;
  job->not_before = absl::FromUnixNanos(r.not_before_unix_ns());
  job->failed_at = failed_at;
}

void OnRestartDone(Job* job, absl::Time at) {
  if (job->failed_at == absl::InfinitePast()) return;
  job->restarts_took.push_back(at - job->failed_at);
  if (job->restarts_took.size() > kMaxRestartsTook) job->restarts_took.erase(job->restarts_took.begin());
  job->failed_at = absl::InfinitePast();
}

void OnJobEnded(Job* job, const v1::JobEnded& r, absl::Time at) {
  job->phase = Job::Phase::kEnded;
  job->end_state = r.state();
  if (r.why().cause() != v1::CAUSE_UNSPECIFIED) job->why = r.why();
  job->exit_code = r.exit_code();
  job->ended_at = at;
}

void OnJobArchived(State* state, const v1::JobArchived& r) {
  state->jobs.erase(JobId(r.job_id()));
  state->last_job_number = std::max(state->last_job_number, r.number());
  const std::pair<uint32_t, std::string> key{r.owner_uid(), r.key()};
  state->keys[key] = JobId(r.job_id());
  state->archived_keys.push_back(key);
  if (state->archived_keys.size() > kMaxArchivedKeys) {
    state->keys.erase(state->archived_keys.front());
    state->archived_keys.erase(state->archived_keys.begin());
  }
}

void OnStopRequested(Job* job, const v1::StopRequested& r, absl::Time at) {
  StopWish wish{r.user(), r.reason(), std::nullopt, at};
  if (r.has_grace()) wish.grace_ms = r.grace_ms();
  if (!job->stop) {
    job->stop = std::move(wish);
    return;
  }
  // Who asked first stands; only the grace gets shorter.
  if (wish.grace_ms && (!job->stop->grace_ms || *wish.grace_ms < *job->stop->grace_ms)) {
    job->stop->grace_ms = wish.grace_ms;
  }
}

void OnNodePrepared(Attempt* attempt, const v1::NodePrepared& r) {
  AttemptNode& share = ShareOf(attempt, r.node_id());
  share.notes.insert(share.notes.end(), r.notes().begin(), r.notes().end());
  if (share.phase == AttemptNode::Phase::kPrepared) {  // the second answer
    share.phase = AttemptNode::Phase::kReady;
    return;
  }
  share.phase = AttemptNode::Phase::kPrepared;
  if (r.has_checkpoint()) share.checkpoint = r.checkpoint();
  share.findings.assign(r.findings().begin(), r.findings().end());
}

// A committee that no node can still ask is of no account any more.
void DropUnheldCommittees(State* state) {
  if (state->committees.empty()) return;
  uint64_t oldest = state->committees.rbegin()->first;
  for (const auto& [id, node] : state->nodes) {
    if (node->phase != NodePhase::kFenced && !node->witness.empty())
      oldest = std::min(oldest, node->committee);
  }
  state->committees.erase(state->committees.begin(), state->committees.lower_bound(oldest));
}

void OnCommitteeNamed(State* state, const v1::Committee& committee) {
  state->committees[committee.number()] = committee;
  DropUnheldCommittees(state);
}

void OnCommitteeTaken(State* state, const v1::CommitteeTaken& taken) {
  NodeOf(state, taken.node_id()).committee = taken.number();
  DropUnheldCommittees(state);
}

}  // namespace

void Apply(State* state, const v1::Record& record) {
  const absl::Time at = TimeOf(record);
  const uint64_t order = ++state->record_count;
  auto attempt_of = [&](const auto& r) -> Attempt* {
    return &AttemptOf(&JobOf(state, r.job_id()), r.attempt());
  };
  switch (record.body_case()) {
    case v1::Record::kClusterCreated:
      state->cluster_id = record.cluster_created().cluster_id();
      return;
    case v1::Record::kTermRaised:
      state->term = record.term_raised().term();
      return;
    case v1::Record::kNodeAdmitted:
      return OnNodeAdmitted(state, record.node_admitted());
    case v1::Record::kNodeLost:
      NodeOf(state, record.node_lost().node_id()).phase = NodePhase::kLost;
      return;
    case v1::Record::kNodeFenced:
      NodeOf(state, record.node_fenced().node_id()).phase = NodePhase::kFenced;
      return;
    case v1::Record::kNodeRemoved:
      state->nodes.erase(NodeId(record.node_removed().node_id()));
      DropUnheldCommittees(state);
      return;
    case v1::Record::kCommitteeNamed:
      return OnCommitteeNamed(state, record.committee_named().committee());
    case v1::Record::kCommitteeTaken:
      return OnCommitteeTaken(state, record.committee_taken());
    case v1::Record::kJobSubmitted:
      return OnJobSubmitted(state, record.job_submitted(), at);
    case v1::Record::kStopRequested:
      return OnStopRequested(&JobOf(state, record.stop_requested().job_id()), record.stop_requested(), at);
    case v1::Record::kAttemptPlaced:
      return OnAttemptPlaced(&JobOf(state, record.attempt_placed().job_id()), record.attempt_placed(), at);
    case v1::Record::kNodePrepared:
      return OnNodePrepared(attempt_of(record.node_prepared()), record.node_prepared());
    case v1::Record::kAttemptLaunched:
      return OnAttemptLaunched(&JobOf(state, record.attempt_launched().job_id()), record.attempt_launched(),
                               at);
    case v1::Record::kNodeStarted:
      return OnNodeStarted(attempt_of(record.node_started()), record.node_started(), order, at);
    case v1::Record::kRankExited: {
      const v1::RankExited& r = record.rank_exited();
      return MergeRank(&ShareOf(attempt_of(r), r.node_id()), r.rank(), order, false);
    }
    case v1::Record::kFaultSeen:
      return OnFaultSeen(attempt_of(record.fault_seen()), record.fault_seen(), order, at);
    case v1::Record::kAttemptStopping:
      return OnAttemptStopping(attempt_of(record.attempt_stopping()), record.attempt_stopping(), at);
    case v1::Record::kNodeGone:
      return OnNodeGone(attempt_of(record.node_gone()), record.node_gone(), order);
    case v1::Record::kAttemptEnded:
      return OnAttemptEnded(&JobOf(state, record.attempt_ended().job_id()), record.attempt_ended(), at);
    case v1::Record::kJobEnded:
      return OnJobEnded(&JobOf(state, record.job_ended().job_id()), record.job_ended(), at);
    case v1::Record::kJobArchived:
      return OnJobArchived(state, record.job_archived());
    case v1::Record::kOutputWasLost: {
      const v1::OutputWasLost& r = record.output_was_lost();
      ShareOf(attempt_of(r), r.node_id()).lost = r.lost();
      return;
    }
    case v1::Record::kCheckpointPoisoned:
      JobOf(state, record.checkpoint_poisoned().job_id())
          .poisoned.push_back(record.checkpoint_poisoned().checkpoint());
      return;
    case v1::Record::kAlarmRaised: {
      Job& job = JobOf(state, record.alarm_raised().job_id());
      if (job.alarms.size() < kMaxAlarms) job.alarms.push_back(record.alarm_raised().alarm());
      return;
    }
    case v1::Record::kRestartDone:
      return OnRestartDone(&JobOf(state, record.restart_done().job_id()), at);
    case v1::Record::kClusterAdopted:
      state->cluster_id = record.cluster_adopted().cluster_id();
      return;
    case v1::Record::kJobAdopted:
      return ApplyJobAdopted(state, record.job_adopted());
    case v1::Record::kJobDropped:
      return ApplyJobDropped(state, record.job_dropped());
    case v1::Record::BODY_NOT_SET:
      Broken("Apply", "a record of a newer version, or an empty one; this binary is too old for its log");
  }
}

}  // namespace dgxrun::core
