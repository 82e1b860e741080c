// Attempts: commands of the controller and facts of the shims.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/agent_core.h"

namespace dgxrun::agent {
namespace {

constexpr uint32_t kShimProtocol = 1;

int64_t Number(AttemptNo attempt) { return attempt.value(); }

// Ids become file names: nothing else is taken from a peer.
bool Usable(const std::string& job_id, Actions* out) {
  if (IsValidName(job_id)) return true;
  out->push_back(Note{"the controller sent a job id that is no valid name; ignored"});
  return false;
}

v1::ShimStop MakeStop(uint64_t grace_ms, const std::string& reason) {
  v1::ShimStop stop;
  stop.set_grace_ms(grace_ms);
  stop.set_reason(reason);
  return stop;
}

}  // namespace

bool AgentCore::Lives(const AttemptKey& key) const {
  auto it = attempts_.find(key);
  return it != attempts_.end() && it->second.phase != v1::ATTEMPT_PHASE_GONE;
}

bool AgentCore::AnythingLives() const {
  return std::any_of(attempts_.begin(), attempts_.end(),
                     [](const auto& entry) { return entry.second.phase != v1::ATTEMPT_PHASE_GONE; });
}

bool AgentCore::AnyLives(const JobId& job, int64_t up_to) const {
  for (auto it = attempts_.lower_bound({job, AttemptNo(0)}); it != attempts_.end() && it->first.job == job;
       ++it) {
    if (Number(it->first.attempt) <= up_to && it->second.phase != v1::ATTEMPT_PHASE_GONE) return true;
  }
  return false;
}

bool AgentCore::TooOld(const Job& job, int64_t attempt) const {
  return attempt < job.stored.launched || attempt <= job.stored.tombstone;
}

// ---- Commands ----

void AgentCore::OnPrepare(const v1::Prepare& prepare, Actions* out) {
  if (!Usable(prepare.job_id(), out)) return;
  const AttemptKey key{JobId(prepare.job_id()), AttemptNo(prepare.attempt())};
  Job& job = jobs_[key.job];
  if (TooOld(job, Number(key.attempt))) {
    return Refuse(key, absl::StrCat("attempt ", prepare.attempt(), " was stopped or replaced here"), out);
  }
  if (!prepare.resume().empty() && Number(key.attempt) == job.stored.launched) {
    // Late: its ranks may have saved anew under a name that was to be moved aside. What was asked is done.
    v1::Report done;
    done.mutable_prepared()->mutable_checkpoint()->set_path(prepare.resume());
    return AddReport(key, std::move(done), out);
  }
  // Asked again after a reconnect: the answer is on its way. An answer to the first question is none to the
  // second one.
  if (job.checking == Number(key.attempt) && job.checking_resume == prepare.resume()) return;
  const bool answered =
      std::any_of(reports_.unacked().begin(), reports_.unacked().end(), [&](const v1::Report& report) {
        return report.has_prepared() && report.job_id() == key.job.str() &&
               report.attempt() == key.attempt.value() &&
               (prepare.resume().empty() || (report.prepared().findings_size() == 0 &&
                                             report.prepared().checkpoint().path() == prepare.resume()));
      });
  if (answered) return;
  job.checking = Number(key.attempt);
  job.checking_resume = prepare.resume();
  out->push_back(CheckPaths{prepare});
}

void AgentCore::On(const PreparedHere& input, int64_t, Actions* out) {
  Job& job = jobs_[input.key.job];
  if (job.checking != Number(input.key.attempt) || job.checking_resume != input.resume) return;  // replaced
  job.checking = -1;
  if (TooOld(job, Number(input.key.attempt))) return;  // stopped meanwhile; its gone was reported
  v1::Report report;
  *report.mutable_prepared() = input.prepared;
  AddReport(input.key, std::move(report), out);
}

void AgentCore::OnRemove(const v1::RemoveCheckpoints& remove, Actions* out) {
  if (!Usable(remove.job_id(), out)) return;
  const AttemptKey key{JobId(remove.job_id()), AttemptNo(remove.attempt())};
  // Of an ended one nobody asks any more: the next attempt's listing tells anew what lies there.
  if (Lives(key)) out->push_back(TidyCheckpoints{key, remove});
}

void AgentCore::On(const ProgressHere& input, int64_t, Actions*) {
  const v1::AttemptProgress& news = input.progress;
  auto it = attempts_.find({JobId(news.job_id()), AttemptNo(news.attempt())});
  if (it == attempts_.end() || it->second.phase == v1::ATTEMPT_PHASE_GONE) return;
  v1::AttemptProgress& known = it->second.progress;
  if (news.has_step()) {
    known.set_has_step(true);
    known.set_first_step(news.first_step());
    known.set_step(news.step());
    known.set_step_unix_ns(news.step_unix_ns());
  }
  if (news.has_checkpoints()) {
    known.set_has_checkpoints(true);
    known.set_free_bytes(news.free_bytes());
    std::vector<v1::CheckpointFinding> findings(news.checkpoints().begin(), news.checkpoints().end());
    *known.mutable_held() = news.held();
    for (const v1::CheckpointFinding& old : known.checkpoints()) {
      const bool replaced = std::any_of(findings.begin(), findings.end(), [&](const auto& finding) {
        return finding.checkpoint().path() == old.checkpoint().path();
      });
      if (!replaced && findings.size() < static_cast<size_t>(kMaxCheckpoints)) findings.push_back(old);
    }
    known.clear_checkpoints();
    for (const v1::CheckpointFinding& finding : findings) *known.add_checkpoints() = finding;
  }
  for (const std::string& note : news.notes()) {
    if (known.notes_size() < kMaxNotes) known.add_notes(note);
  }
  for (const std::string& path : news.removed()) {
    while (known.removed_size() >= kMaxRemoved) known.mutable_removed()->DeleteSubrange(0, 1);
    known.add_removed(path);
  }
  it->second.progress_is_news = true;
}

void AgentCore::Refuse(const AttemptKey& key, const std::string& reason, Actions* out) {
  if (reports_.Has(key.job.str(), key.attempt.value(), v1::Report::kRefused)) return;
  v1::Report report;
  report.mutable_refused()->set_reason(reason);
  AddReport(key, std::move(report), out);
}

void AgentCore::OnLaunch(const v1::Launch& launch, Actions* out) {
  if (!Usable(launch.job_id(), out)) return;
  const AttemptKey key{JobId(launch.job_id()), AttemptNo(launch.attempt())};
  Job& job = jobs_[key.job];
  const int64_t number = Number(key.attempt);
  if (options_.offer && number <= job.stored.gone) return TellGoneAgain(key, out);
  if (TooOld(job, number)) {
    return Refuse(key, absl::StrCat("attempt ", number, " was stopped or replaced here"), out);
  }
  if (number == job.stored.launched) {
    if (job.refused == number)
      Refuse(key, absl::StrCat("attempt ", number, " could not be started here"), out);
    return;  // it lives, or its end is reported
  }
  if (AnyLives(key.job, number - 1)) {
    // A fence let the controller go on before this node's ranks were seen gone. They go first.
    job.waiting = launch;
    job.stored.tombstone = number - 1;
    out->push_back(StoreJob{key.job, job.stored});
    for (auto& [other, attempt] : attempts_) {
      if (other.job != key.job || attempt.phase == v1::ATTEMPT_PHASE_GONE || attempt.stop.has_value())
        continue;
      StopLiving(other, &attempt, MakeStop(launch.plan().grace_ms(), "replaced by a later attempt"), out);
    }
    return;
  }
  Start(launch, out);
}

void AgentCore::Start(const v1::Launch& launch, Actions* out) {
  const AttemptKey key{JobId(launch.job_id()), AttemptNo(launch.attempt())};
  Job& job = jobs_[key.job];
  std::erase(forgotten_, key.job);
  job.stored.launched = Number(key.attempt);
  job.stored.last_event = 0;
  out->push_back(StoreJob{key.job, job.stored});
  std::erase_if(attempts_, [&](const auto& entry) {
    return entry.first.job == key.job && entry.second.acknowledged;  // the job goes on: history
  });
  if (launch.has_capsule()) {
    capsules_[key.job] = launch.capsule();
    out->push_back(StoreCapsule{launch.capsule()});
  }
  Attempt attempt;
  attempt.first_connection = true;
  attempts_[key] = std::move(attempt);
  out->push_back(StartShimFor{launch, LeaseDeadline()});
}

void AgentCore::On(const StartFailed& input, int64_t, Actions* out) {
  auto it = attempts_.find(input.key);
  if (it == attempts_.end() || it->second.phase == v1::ATTEMPT_PHASE_GONE) return;
  const bool stopped = it->second.stop.has_value();
  jobs_[input.key.job].refused = Number(input.key.attempt);
  if (stopped) {  // the Stop waits for a gone, not for a reason
    v1::AttemptGone gone;
    gone.set_detail(input.reason);
    return Gone(input.key, std::move(gone), 0, out);
  }
  attempts_.erase(it);
  Refuse(input.key, input.reason, out);
  out->push_back(AttemptEnded{input.key});
  AfterGone(input.key.job, out);
}

void AgentCore::StopLiving(const AttemptKey& key, Attempt* attempt, const v1::ShimStop& stop, Actions* out) {
  attempt->phase = v1::ATTEMPT_PHASE_STOPPING;
  attempt->stop = stop;
  v1::ShimCommand command;
  *command.mutable_stop() = stop;
  out->push_back(ToShim{key, std::move(command)});
}

void AgentCore::OnStop(const v1::StopAttempt& stop, Actions* out) {
  if (!Usable(stop.job_id(), out)) return;
  const AttemptKey key{JobId(stop.job_id()), AttemptNo(stop.attempt())};
  Job& job = jobs_[key.job];
  const int64_t number = Number(key.attempt);
  if (number > job.stored.tombstone) {
    job.stored.tombstone = number;
    out->push_back(StoreJob{key.job, job.stored});
  }
  if (job.waiting.has_value() && int64_t{job.waiting->attempt()} <= number) job.waiting.reset();
  for (auto& [other, attempt] : attempts_) {
    if (other.job != key.job || other.attempt > key.attempt) continue;
    if (attempt.phase == v1::ATTEMPT_PHASE_GONE) continue;
    StopLiving(other, &attempt, MakeStop(stop.grace_ms(), stop.reason()), out);
  }
  if (number <= job.stored.gone) return TellGoneAgain(key, out);
  if (Lives(key)) return;  // the shim will say it
  if (AnyLives(key.job, number)) {
    job.owed_gone = std::max(job.owed_gone, number);
    return;
  }
  Gone(key, v1::AttemptGone(), 0, out);
}

void AgentCore::OnForget(const v1::Forget& forget, Actions* out) {
  if (!Usable(forget.job_id(), out)) return;
  const JobId id(forget.job_id());
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  if (forget.has_status()) it->second.end = forget.status();
  if (!AnyLives(id, INT64_MAX)) return FinishForget(id, out);
  // The controller thinks that nothing lives (a fence by time): make it so.
  it->second.forget = true;
  for (auto& [key, attempt] : attempts_) {
    if (key.job != id || attempt.phase == v1::ATTEMPT_PHASE_GONE) continue;
    StopLiving(key, &attempt, MakeStop(0, "the job has ended"), out);
  }
}

void AgentCore::FinishForget(const JobId& id, Actions* out) {
  Job& job = jobs_[id];
  job.stored.tombstone = std::max(job.stored.tombstone, job.stored.launched);
  job.waiting.reset();
  job.checking = -1;
  job.forget = false;
  std::erase_if(attempts_,
                [&](const auto& entry) { return entry.first.job == id && entry.second.acknowledged; });
  if (capsules_.erase(id) > 0) out->push_back(DropCapsule{id});
  out->push_back(StoreJob{id, job.stored});
  out->push_back(ForgetJob{id, std::exchange(job.end, std::nullopt)});
  if (std::find(forgotten_.begin(), forgotten_.end(), id) == forgotten_.end()) forgotten_.push_back(id);
  while (forgotten_.size() > kMaxForgotten) {
    out->push_back(DropJob{forgotten_.front()});
    jobs_.erase(forgotten_.front());
    forgotten_.pop_front();
  }
}

void AgentCore::OnTail(const v1::TailRequest& request, Actions* out) {
  if (!Usable(request.job_id(), out)) return;
  const AttemptKey key{JobId(request.job_id()), AttemptNo(request.attempt())};
  auto it = jobs_.find(key.job);
  const int64_t number = Number(key.attempt);
  // A job that was never heard of here may be about to start; TailCancel ends the wait.
  const bool over = it != jobs_.end() && (TooOld(it->second, number) || number <= it->second.stored.gone ||
                                          number <= it->second.refused);
  out->push_back(StartTail{request, over && !Lives(key)});
}

// ---- Facts ----

AgentCore::Attempt* AgentCore::Adopt(const AttemptKey& key) {
  auto it = attempts_.find(key);
  if (it != attempts_.end()) return &it->second;
  std::erase(forgotten_, key.job);  // a row of something that lives is never dropped
  Attempt& attempt = attempts_[key];
  const Job& job = jobs_[key.job];
  if (Number(key.attempt) == job.stored.launched) attempt.last_event = job.stored.last_event;
  return &attempt;
}

// An agent that lost its state folder meets attempts that it does not know.
void AgentCore::NoteLaunched(const AttemptKey& key, Actions* out) {
  Job& job = jobs_[key.job];
  if (Number(key.attempt) <= job.stored.launched) return;
  job.stored.launched = Number(key.attempt);
  job.stored.last_event = 0;
  out->push_back(StoreJob{key.job, job.stored});
}

void AgentCore::On(const Restored& input, int64_t, Actions* out) {
  for (const AttemptKey& key : input.living) {
    NoteLaunched(key, out);
    Adopt(key);
  }
  for (const AttemptKey& key : input.dead) {
    NoteLaunched(key, out);
    // Of an older attempt only the folder is left to remove.
    if (Number(key.attempt) < jobs_[key.job].stored.launched) out->push_back(AttemptEnded{key});
  }
  for (const auto& [id, job] : jobs_) {
    if (job.stored.launched < 0 || job.stored.launched <= job.stored.gone) continue;
    const AttemptKey key{id, AttemptNo(static_cast<uint32_t>(job.stored.launched))};
    if (Lives(key)) continue;
    Adopt(key);  // counts as living until its strays are gone
    out->push_back(Sweep{key});
  }
}

void AgentCore::On(const ShimDisconnected& input, int64_t, Actions*) {
  auto it = attempts_.find(input.key);
  if (it != attempts_.end()) it->second.first_connection = false;
}

void AgentCore::On(const ShimSaid& input, int64_t, Actions* out) {
  switch (input.message.body_case()) {
    case v1::ShimMsg::kHello:
      return OnShimHello(input.key, input.message.hello(), out);
    case v1::ShimMsg::kEvent:
      return OnShimEvent(input.key, input.message.event(), out);
    case v1::ShimMsg::BODY_NOT_SET:
      out->push_back(Note{absl::StrCat("the shim of ", input.key.job.str(), " said something unknown")});
      return;
  }
}

void AgentCore::OnShimHello(const AttemptKey& key, const v1::ShimHello& hello, Actions* out) {
  Attempt* attempt = Adopt(key);
  if (!attempt->first_connection) {
    v1::ShimCommand command;
    command.mutable_attach()->set_version(kShimProtocol);
    command.mutable_attach()->set_last_event(attempt->last_event);
    out->push_back(ToShim{key, std::move(command)});
  }
  if (attempt->phase == v1::ATTEMPT_PHASE_GONE) return;  // its ack follows when it resends the gone
  for (const v1::RankReport& rank : hello.snapshot().ranks()) {
    v1::RankReport& kept = attempt->ranks[rank.rank()];
    if (kept.state() != v1::RANK_STATE_EXITED) kept = rank;  // an exit that was reported carries more
  }
  if (!attempt->stop.has_value()) {
    const v1::AttemptPhase phase = hello.snapshot().phase();
    // Gone is believed only as an event, since that is what is reported.
    if (phase == v1::ATTEMPT_PHASE_GONE) {
      attempt->phase = v1::ATTEMPT_PHASE_STOPPING;
    } else if (phase != v1::ATTEMPT_PHASE_UNSPECIFIED) {
      attempt->phase = phase;
    }
  }
  if (options_.leases && isolation_ns_ > 0) {
    v1::ShimCommand command;
    command.mutable_lease()->set_deadline_ns(LeaseDeadline());
    out->push_back(ToShim{key, std::move(command)});
  }
  // After a restart of the agent only the controller knows the grace of an earlier Stop; it says it again.
  if (attempt->stop.has_value()) StopLiving(key, attempt, v1::ShimStop(*attempt->stop), out);
}

void AgentCore::OnShimEvent(const AttemptKey& key, const v1::ShimEvent& event, Actions* out) {
  Attempt* attempt = Adopt(key);
  Job& job = jobs_[key.job];
  v1::ShimCommand ack;
  if (event.number() <= attempt->last_event) {  // it did not get our ack
    ack.mutable_ack()->set_number(attempt->last_event);
    out->push_back(ToShim{key, std::move(ack)});
    return;
  }
  if (attempt->phase == v1::ATTEMPT_PHASE_GONE) return;
  if (event.number() != attempt->last_event + 1) {
    out->push_back(Note{absl::StrCat("shim of ", key.job.str(), ".", Number(key.attempt), ": event ",
                                     event.number(), " after ", attempt->last_event)});
  }
  attempt->last_event = event.number();
  if (Number(key.attempt) == job.stored.launched) job.stored.last_event = event.number();
  v1::Report report;
  switch (event.body_case()) {
    case v1::ShimEvent::kStarted:
      for (const v1::RankReport& rank : event.started().ranks()) attempt->ranks[rank.rank()] = rank;
      if (attempt->phase == v1::ATTEMPT_PHASE_STARTING) attempt->phase = v1::ATTEMPT_PHASE_RUNNING;
      *report.mutable_started() = event.started();
      AddReport(key, std::move(report), out);
      break;
    case v1::ShimEvent::kSpawnFailed:
      *report.mutable_spawn_failed() = event.spawn_failed();
      AddReport(key, std::move(report), out);
      break;
    case v1::ShimEvent::kOutputLost:
      *report.mutable_output_lost() = event.output_lost();
      AddReport(key, std::move(report), out);
      break;
    case v1::ShimEvent::kExited:
      attempt->ranks[event.exited().rank()] = event.exited();
      *report.mutable_exited() = event.exited();
      AddReport(key, std::move(report), out);
      break;
    case v1::ShimEvent::kGone:
      return Gone(key, event.gone(), event.number(), out);
    case v1::ShimEvent::BODY_NOT_SET:  // of a newer shim: counted, so that it is not sent for ever
      out->push_back(StoreJob{key.job, job.stored});
      break;
  }
  ack.mutable_ack()->set_number(event.number());
  out->push_back(ToShim{key, std::move(ack)});
}

void AgentCore::Gone(const AttemptKey& key, v1::AttemptGone gone, uint64_t shim_event, Actions* out) {
  Job& job = jobs_[key.job];
  Attempt& attempt = attempts_[key];
  for (const v1::RankReport& rank : gone.ranks()) attempt.ranks[rank.rank()] = rank;
  // The last word about its progress goes before the word of its end.
  if (attempt.progress_is_news && link_ == Link::kWelcomed) SendHeartbeat(now_ns_, out);
  attempt.progress_is_news = false;
  attempt.phase = v1::ATTEMPT_PHASE_GONE;
  if (options_.offer) attempt.gone = gone;
  job.stored.gone = std::max(job.stored.gone, Number(key.attempt));
  v1::Report report;
  *report.mutable_gone() = std::move(gone);
  AddReport(key, std::move(report), out);
  attempt.gone_report = reports_.last();
  if (shim_event > 0) {
    v1::ShimCommand ack;
    ack.mutable_ack()->set_number(shim_event);
    out->push_back(ToShim{key, std::move(ack)});
  }
  out->push_back(AttemptEnded{key});
  AfterGone(key.job, out);
}

// The controller asks for an attempt that is gone. Where the report of that is still on its way, it says so;
// else an earlier controller had it, and took it along.
void AgentCore::TellGoneAgain(const AttemptKey& key, Actions* out) {
  if (!options_.offer || reports_.Has(key.job.str(), key.attempt.value(), v1::Report::kGone)) return;
  v1::Report report;
  report.mutable_gone()->set_detail("its end was told to a controller that is gone");
  auto known = attempts_.find(key);
  if (known != attempts_.end()) *report.mutable_gone() = known->second.gone;
  AddReport(key, std::move(report), out);
  if (known == attempts_.end()) return;
  known->second.gone_report = reports_.last();
  known->second.acknowledged = false;
}

void AgentCore::AfterGone(const JobId& id, Actions* out) {
  Job& job = jobs_[id];
  if (job.owed_gone > job.stored.gone && !AnyLives(id, job.owed_gone)) {
    const AttemptNo owed(static_cast<uint32_t>(std::exchange(job.owed_gone, -1)));
    return Gone({id, owed}, v1::AttemptGone(), 0, out);  // comes here again
  }
  if (job.waiting.has_value() && !AnyLives(id, INT64_MAX)) {
    const v1::Launch launch = *std::exchange(job.waiting, std::nullopt);
    return Start(launch, out);
  }
  if (job.forget && !AnyLives(id, INT64_MAX)) FinishForget(id, out);
}

void AgentCore::On(const FinalFound& input, int64_t, Actions* out) {
  const v1::ShimFinal& final = input.final;
  if (!IsValidName(final.job_id())) {
    out->push_back(Note{"a final file without a valid job id was ignored"});
    return;
  }
  const AttemptKey key{JobId(final.job_id()), AttemptNo(final.attempt())};
  Job& job = jobs_[key.job];
  if (Number(key.attempt) <= job.stored.gone) {  // reported before the agent could remove the folder
    out->push_back(AttemptEnded{key});
    return;
  }
  NoteLaunched(key, out);
  const uint64_t seen = Adopt(key)->last_event;
  for (const v1::ShimEvent& event : final.events()) {
    if (event.number() > seen && Lives(key)) OnShimEvent(key, event, out);
  }
  if (!Lives(key)) return;
  v1::AttemptGone gone;
  gone.set_cause(v1::CAUSE_SUPERVISOR_LOST);
  gone.set_detail("the shim's final file tells no end");
  gone.set_log_dir(final.log_dir());
  Gone(key, std::move(gone), 0, out);
}

void AgentCore::On(const StopEverything& input, int64_t, Actions* out) {
  for (auto& [key, attempt] : attempts_) {
    if (attempt.phase == v1::ATTEMPT_PHASE_GONE) continue;
    Job& job = jobs_[key.job];
    job.waiting.reset();
    job.stored.tombstone = std::max(job.stored.tombstone, Number(key.attempt));
    out->push_back(StoreJob{key.job, job.stored});
    StopLiving(key, &attempt, MakeStop(input.grace_ms, input.reason), out);
  }
}

void AgentCore::On(const StraysGone& input, int64_t, Actions* out) {
  auto it = attempts_.find(input.key);
  if (it == attempts_.end() || it->second.phase == v1::ATTEMPT_PHASE_GONE) return;
  v1::AttemptGone gone;
  gone.set_cause(v1::CAUSE_SUPERVISOR_LOST);
  gone.set_detail(input.detail);
  for (const auto& [rank, report] : it->second.ranks) {
    v1::RankReport* last = gone.add_ranks();
    *last = report;
    // Dead, but nobody saw how.
    if (report.state() != v1::RANK_STATE_EXITED) last->set_state(v1::RANK_STATE_UNKNOWN);
  }
  Gone(input.key, std::move(gone), 0, out);
}

}  // namespace dgxrun::agent
