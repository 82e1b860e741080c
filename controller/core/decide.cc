#include "controller/core/decide.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/core/alarms.h"
#include "controller/core/check.h"
#include "controller/core/checkpoints.h"
#include "controller/core/committee.h"
#include "controller/core/peers.h"
#include "controller/core/placement.h"
#include "controller/core/plan.h"
#include "controller/core/restart_policy.h"
#include "controller/core/verdict.h"

namespace dgxrun::core {
namespace {

// queued -> placed -> launched -> stopping -> ended -> queued again, each at most once per input; the
// rest is slack. More steps would mean that two rules undo each other.
constexpr int kMaxSteps = 16;

bool Every(const Attempt& attempt, AttemptNode::Phase phase) {
  return std::all_of(attempt.nodes.begin(), attempt.nodes.end(),
                     [phase](const auto& share) { return share->phase == phase; });
}

void EndJob(Draft* draft, const JobId& id, v1::JobState state, const v1::Why& why) {
  const Job* job = FindJobById(draft->state(), id);
  v1::Record record;
  v1::JobEnded* ended = record.mutable_job_ended();
  ended->set_job_id(id.str());
  ended->set_state(state);
  if (why.cause() != v1::CAUSE_UNSPECIFIED) *ended->mutable_why() = why;
  ended->set_exit_code(ExitCodeOf(state, why, job->stop));
  draft->Add(std::move(record));
}

void AddAttemptEnded(Draft* draft, const JobId& id, const v1::Why& why, const RestartVerdict& verdict) {
  const Job* job = FindJobById(draft->state(), id);
  v1::Record record;
  v1::AttemptEnded* ended = record.mutable_attempt_ended();
  ended->set_job_id(id.str());
  ended->set_attempt(job->attempt->number.value());
  if (why.cause() != v1::CAUSE_UNSPECIFIED) *ended->mutable_why() = why;
  ended->set_restart(verdict.restart);
  if (verdict.restart) ended->set_not_before_unix_ns(absl::ToUnixNanos(draft->now() + verdict.delay));
  ended->set_reason(verdict.reason);
  ended->set_short_failures(verdict.short_failures);
  draft->Add(std::move(record));
}

// All ranks exited with 0, and before anybody had told them to stop.
bool CompletedByItself(const Job& job, const Attempt& attempt) {
  size_t ranks = 0;
  for (const auto& share : attempt.nodes) {
    for (const auto& [number, info] : share->ranks) {
      if (info.report.state() != v1::RANK_STATE_EXITED || info.report.after_stop()) return false;
      ++ranks;
    }
  }
  return ranks == attempt.nodes.size() * job.spec.ranks_per_node();
}

// A checkpoint that two attempts did not survive is not given to a third.
void PoisonWhatFailed(Draft* draft, const Job& job, const Attempt& attempt, const v1::Why& why) {
  const AttemptProgress* progress = ProgressOf(draft->contacts(), job);
  std::optional<v1::Checkpoint> newest;
  if (progress != nullptr && progress->summary.has_newest()) newest = progress->summary.newest();
  const std::optional<Poison> poison = PoisonAfter(job, attempt, why, draft->now(), newest);
  if (!poison) return;
  const JobId id = job.id;
  if (poison->last) {
    return RaiseAlarm(draft, id, v1::ALARM_KIND_CHECKPOINT_BAD,
                      absl::StrCat(poison->reason, ": ", poison->checkpoint.path(),
                                   "; it is the last complete one, so it is loaded again"));
  }
  v1::Record record;
  record.mutable_checkpoint_poisoned()->set_job_id(id.str());
  *record.mutable_checkpoint_poisoned()->mutable_checkpoint() = poison->checkpoint;
  record.mutable_checkpoint_poisoned()->set_reason(poison->reason);
  draft->Add(std::move(record));
  RaiseAlarm(draft, id, v1::ALARM_KIND_CHECKPOINT_BAD,
             absl::StrCat(poison->reason, ": ", poison->checkpoint.path(), "; the one before it is used"));
}

// Nothing of the attempt lives anywhere: the verdict over all facts, and what comes next.
void EndAttempt(Draft* draft, const Job& job, const Attempt& attempt) {
  const JobId id = job.id;
  std::optional<v1::Why> failure = Judge(attempt);
  if (!failure && attempt.launched && CompletedByItself(job, attempt)) {
    RestartVerdict done;
    done.reason = "all ranks exited with 0";
    DecideSuccess(draft, id);
    AddAttemptEnded(draft, id, v1::Why(), done);
    EndJob(draft, id, v1::JOB_STATE_SUCCEEDED, v1::Why());
    return;
  }
  if (job.stop) {
    const v1::Why why = StoppedBy(*job.stop, attempt.number);
    RestartVerdict stopped;
    stopped.reason = "no restart: it was stopped";
    AddAttemptEnded(draft, id, why, stopped);
    EndJob(draft, id, v1::JOB_STATE_STOPPED, why);
    return;
  }
  if (!failure) {
    // Neither failed nor complete, and nobody here had them stopped: the node ended them on its own.
    failure.emplace();
    failure->set_cause(v1::CAUSE_SUPERVISOR_LOST);
    failure->set_rank(-1);
    failure->set_attempt(attempt.number.value());
    failure->set_detail("ranks ended with 0 before their work was done, stopped by their node");
  }
  const RestartVerdict verdict = DecideRestart(job, attempt, *failure, draft->now());
  if (verdict.restart) PoisonWhatFailed(draft, job, attempt, *failure);
  AddAttemptEnded(draft, id, *failure, verdict);
  if (!verdict.restart) EndJob(draft, id, v1::JOB_STATE_FAILED, *failure);
}

uint64_t GraceOf(const Job& job) {
  uint64_t grace = job.spec.grace_ms();
  if (job.stop && job.stop->grace_ms) grace = std::min(grace, *job.stop->grace_ms);
  return grace;
}

void StopAll(Draft* draft, const Job& job, const Attempt& attempt, v1::Cause cause) {
  v1::Record record;
  v1::AttemptStopping* stopping = record.mutable_attempt_stopping();
  stopping->set_job_id(job.id.str());
  stopping->set_attempt(attempt.number.value());
  stopping->set_cause(cause);
  stopping->set_grace_ms(GraceOf(job));
  draft->Add(std::move(record));
}

// The newest complete one that was known lay on the disk of a node that is gone.
void SayWhatIsAway(Draft* draft, const JobId& id, const Attempt& attempt, const CheckpointChoice& choice) {
  const Job* job = FindJobById(draft->state(), id);
  std::optional<v1::Checkpoint> known;
  if (job->loaded_before && !job->loaded_before->checkpoint.path().empty())
    known = job->loaded_before->checkpoint;
  auto before = draft->contacts().progress.find(id);
  if (before != draft->contacts().progress.end() && before->second.summary.has_newest())
    known = before->second.summary.newest();
  if (!known || known->verdict() != v1::VERDICT_COMPLETE) return;
  for (const auto& share : attempt.nodes) {
    for (const auto& finding : share->findings) {
      if (finding.checkpoint().path() == known->path()) return;  // the choice's own lines tell of it
    }
  }
  if (choice.checkpoint && choice.checkpoint->step() >= known->step()) return;
  RaiseAlarm(draft, id, v1::ALARM_KIND_CHECKPOINT_BAD,
             absl::StrCat("checkpoint ", known->path(), " was complete, and none of these nodes has it now: ",
                          choice.checkpoint ? absl::StrCat("resuming from ", choice.checkpoint->path())
                                            : "training begins anew"));
}

// What was passed over, repaired or moved aside; nodes that share a folder may say the same.
void SayAboutCheckpoints(Draft* draft, const JobId& id, const Attempt& attempt,
                         const CheckpointChoice& choice) {
  SayWhatIsAway(draft, id, attempt, choice);
  std::vector<std::pair<std::string, std::string>> notes;
  for (const auto& share : attempt.nodes) {
    for (const std::string& note : share->notes) notes.emplace_back(note, share->name);
  }
  for (const std::string& line : choice.lines) {
    RaiseAlarm(draft, id, v1::ALARM_KIND_CHECKPOINT_BAD, line);
  }
  for (const auto& [note, node] : notes) {
    RaiseAlarm(draft, id, v1::ALARM_KIND_CHECKPOINT_BAD, note, node);
  }
}

bool Launch(Draft* draft, const Job& job, const Attempt& attempt) {
  const uint32_t port = MasterPort(draft->state(), draft->contacts(), job, attempt);
  if (port == 0) return false;  // the next heartbeat may bring one; status says so
  const auto& peers = draft->contacts().config.peers;
  const std::string address = MasterAddress(draft->state(), attempt, peers ? peers->endpoint_host : "");
  if (address.empty()) {
    AddFault(draft, job.id, attempt.nodes[0]->node, v1::CAUSE_LAUNCH_REFUSED, -1,
             absl::StrCat("node ", attempt.nodes[0]->name, " has no address that other nodes can reach"));
    return true;
  }
  if (const std::optional<std::string> why = WhyNotSmaller(job, attempt)) {
    // Placement knew of no such checkpoint; the nodes have one. Nothing has failed: placement, which now
    // knows, waits for all nodes.
    RestartVerdict not_so;
    not_so.short_failures = job.short_failures;
    not_so.reason = absl::StrCat("not launched: ", *why);
    AddAttemptEnded(draft, job.id, v1::Why(), not_so);
    return true;
  }
  const CheckpointChoice choice = ChooseCheckpoint(job, attempt);
  v1::Record record;
  v1::AttemptLaunched* launched = record.mutable_attempt_launched();
  launched->set_job_id(job.id.str());
  launched->set_attempt(attempt.number.value());
  if (choice.checkpoint) *launched->mutable_checkpoint() = *choice.checkpoint;
  launched->set_master_addr(address);
  launched->set_master_port(port);
  const JobId id = job.id;
  const Attempt before = attempt;  // Add moves the state
  draft->Add(std::move(record));
  SayAboutCheckpoints(draft, id, before, choice);
  return true;
}

bool PlaceNext(Draft* draft, const Job& job) {
  if (draft->now() < job.not_before) return false;
  Placement placement = Place(draft->state(), draft->contacts(), job);
  if (placement.nodes.empty()) return false;
  v1::Record record;
  v1::AttemptPlaced* placed = record.mutable_attempt_placed();
  placed->set_job_id(job.id.str());
  placed->set_attempt(job.next_attempt.value());
  for (auto& node : placement.nodes) *placed->add_nodes() = std::move(node);
  draft->Add(std::move(record));
  return true;
}

bool StepQueued(Draft* draft, const Job& job) {
  if (job.stop) {
    const v1::Why why = StoppedBy(*job.stop, job.attempt ? job.attempt->number : AttemptNo());
    EndJob(draft, job.id, v1::JOB_STATE_STOPPED, why);
    return true;
  }
  if (PlaceNext(draft, job)) return true;
  const std::optional<v1::Why> away = NodesStayedAway(draft->state(), draft->contacts(), job, draft->now());
  if (!away) return false;
  EndJob(draft, job.id, v1::JOB_STATE_FAILED, *away);
  return true;
}

bool StepStopping(Draft* draft, const Job& job, const Attempt& attempt) {
  if (!attempt.launched || Every(attempt, AttemptNode::Phase::kGone)) {
    EndAttempt(draft, job, attempt);
    return true;
  }
  if (GraceOf(job) < attempt.grace_ms) {
    StopAll(draft, job, attempt, attempt.stop_cause);
    return true;
  }
  return false;
}

// One rule at a time; false: the job is at rest.
bool Step(Draft* draft, const JobId& id) {
  const Job* job = FindJobById(draft->state(), id);
  if (job == nullptr || job->phase == Job::Phase::kEnded) return false;
  const Attempt* attempt = LiveAttempt(*job);
  if (attempt == nullptr) return StepQueued(draft, *job);
  if (attempt->phase == Attempt::Phase::kStopping) return StepStopping(draft, *job, *attempt);
  if (job->stop) {
    StopAll(draft, *job, *attempt, v1::CAUSE_STOPPED);
    return true;
  }
  if (auto failure = Judge(*attempt)) {
    StopAll(draft, *job, *attempt, failure->cause());
    return true;
  }
  switch (attempt->phase) {
    case Attempt::Phase::kPreparing:
      return IsPrepared(*attempt) && Launch(draft, *job, *attempt);
    case Attempt::Phase::kLaunching:
    case Attempt::Phase::kRunning:
      if (!Every(*attempt, AttemptNode::Phase::kGone)) return false;
      EndAttempt(draft, *job, *attempt);
      return true;
    case Attempt::Phase::kStopping:
    case Attempt::Phase::kEnded:
      break;
  }
  Broken("Step", absl::StrCat("no rule for ", id.str()));
}

}  // namespace

void Draft::Add(v1::Record record) {
  if (!scratch_) scratch_ = base_;
  record.set_at_unix_ns(absl::ToUnixNanos(now_));
  // The record that raises the term carries the new one.
  record.set_term(record.has_term_raised() ? record.term_raised().term() : scratch_->term);
  Apply(&*scratch_, record);
  decision_.records.push_back(std::move(record));
}

void Draft::AddAnswer(RequestId request, absl::Status status, JobId job) {
  decision_.answers.push_back(Answer{request, std::move(status), std::move(job)});
}

void AddFault(Draft* draft, const JobId& id, const NodeId& node, v1::Cause cause, int32_t rank,
              const std::string& detail, absl::Time since) {
  const Job* job = FindJobById(draft->state(), id);
  const Attempt* attempt = job != nullptr ? LiveAttempt(*job) : nullptr;
  if (attempt == nullptr) return;
  for (const Fault& fault : attempt->faults) {
    if (fault.node == node && fault.cause == cause && fault.rank == rank) return;
  }
  v1::Record record;
  v1::FaultSeen* seen = record.mutable_fault_seen();
  seen->set_job_id(id.str());
  seen->set_attempt(attempt->number.value());
  seen->set_node_id(node.str());
  seen->set_cause(cause);
  seen->set_rank(rank);
  seen->set_detail(detail);
  if (since != absl::InfinitePast()) seen->set_since_unix_ns(absl::ToUnixNanos(since));
  draft->Add(std::move(record));
}

void Advance(Draft* draft, const JobId& id) {
  // A node holds a newer attempt of it than this log knows: whatever we did might kill a healthy job.
  if (draft->contacts().ahead.count(id) > 0) return;
  for (int i = 0; i < kMaxSteps; ++i) {
    if (!Step(draft, id)) return;
  }
  Broken("Advance", absl::StrCat(id.str(), " does not come to rest"));
}

void AdvanceAll(Draft* draft) {
  std::vector<std::pair<bool, std::pair<uint64_t, JobId>>> order;
  for (const auto& [id, job] : draft->state().jobs) {
    if (job->phase == Job::Phase::kEnded) continue;
    const bool first_attempt = job->next_attempt == AttemptNo();
    order.push_back({first_attempt, {job->number, id}});
  }
  std::sort(order.begin(), order.end());
  for (const auto& [first_attempt, job] : order) Advance(draft, job.second);
}

Decision Decide(const State& state, const Contacts& contacts, const Input& input) {
  Draft draft(state, contacts, input.now);
  if (const auto* started = std::get_if<ControllerStarted>(&input.body)) {
    DecideStarted(&draft, *started);
  } else if (std::holds_alternative<Tick>(input.body)) {
    DecideTick(&draft);
  } else if (const auto* connected = std::get_if<NodeConnected>(&input.body)) {
    DecideConnected(&draft, *connected);
  } else if (const auto* heartbeat = std::get_if<NodeHeartbeat>(&input.body)) {
    TakeCommittee(&draft, *heartbeat);
  } else if (const auto* report = std::get_if<NodeReport>(&input.body)) {
    DecideReport(&draft, *report);
  } else if (const auto* submit = std::get_if<SubmitJob>(&input.body)) {
    DecideSubmit(&draft, *submit);
  } else if (const auto* stop = std::get_if<StopJob>(&input.body)) {
    DecideStop(&draft, *stop);
  } else if (const auto* fence = std::get_if<FenceNode>(&input.body)) {
    DecideFence(&draft, *fence);
  }
  // NodeDisconnected decides nothing: silence is judged by Tick.
  // Anything that was decided may have freed what another job waits for.
  if (draft.HasRecords()) AdvanceAll(&draft);
  return draft.Take();
}

}  // namespace dgxrun::core
