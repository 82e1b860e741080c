#include "tests/sim/sim_controller.h"

#include "absl/strings/str_cat.h"
#include "controller/core/invariants.h"
#include "tests/sim/coverage.h"

namespace dgxrun::sim {

void SimController::Start() {
  if (up_) return;
  up_ = true;
  ++epoch_;
  world_->Trace("controller starts");
  state_ = core::State();
  for (const v1::Record& record : disk_) Apply(record);
  if (!dump_.empty()) host_->Replayed(dump_, core::DumpState(state_));
  contacts_ = core::Contacts();
  contacts_.config.cluster_name = "sim";
  contacts_.config.version.set_major(1);
  contacts_.config.version.set_release("sim");
  contacts_.config.peers = peers_;
  // The wait for a fence is isolation_timeout + allowance + margin; this one ends before the lease.
  if (mutation_ == Mutation::kNoFenceWait) contacts_.config.isolation_timeout = absl::Seconds(2);
  sent_.clear();
  // Of peers, each run that begins with an empty log is a cluster of its own.
  const std::string first = peers_ ? absl::StrCat(absl::Hex(++starts_, absl::kZeroPad6)) : "abcdef";
  Feed(core::ControllerStarted{first + "00-0000-4000-8000-000000000000"});
  ScheduleTick();
}

void SimController::Crash() {
  if (!up_) return;
  world_->Trace("controller dies");
  up_ = false;
  ++epoch_;
  crash_in_ = 0;
  dump_ = core::DumpState(state_);
  host_->Crashed();
}

void SimController::LoseLog() {
  if (up_) return;
  world_->Trace("the log is lost");
  disk_.clear();
  dump_.clear();
}

void SimController::ScheduleTick() {
  world_->In(250 * kMs, [this, epoch = epoch_] {
    if (epoch != epoch_) return;
    Feed(core::Tick{});
    if (epoch == epoch_) ScheduleTick();
  });
}

// The mutation: no word of the node is waited for.
void SimController::FreeWhatStops(core::Decision* decision) {
  std::vector<v1::Record> gone;
  for (const v1::Record& record : decision->records) {
    if (!record.has_attempt_stopping()) continue;
    const core::Job* job = core::FindJobById(state_, JobId(record.attempt_stopping().job_id()));
    if (job == nullptr || !job->attempt) continue;
    for (const auto& share : job->attempt->nodes) {
      if (share->phase == core::AttemptNode::Phase::kGone) continue;
      v1::Record free = record;
      free.mutable_node_gone()->set_job_id(job->id.str());
      free.mutable_node_gone()->set_attempt(job->attempt->number.value());
      free.mutable_node_gone()->set_node_id(share->node.str());
      gone.push_back(free);
    }
  }
  // Only where nothing follows in the same decision, so that the records still agree with each other.
  if (!decision->records.empty() && decision->records.back().has_attempt_stopping()) {
    decision->records.insert(decision->records.end(), gone.begin(), gone.end());
  }
}

bool SimController::Point() {
  if (crash_in_ > 0 && --crash_in_ == 0) Crash();
  return !up_;
}

void SimController::Apply(const v1::Record& record) {
  core::Apply(&state_, record);
  if (mutation_ == Mutation::kReuseAttempt && record.attempt_ended().restart()) {
    core::Job& job = state_.jobs.at(JobId(record.attempt_ended().job_id())).Mutable();
    job.next_attempt = job.attempt->number;
  }
}

bool SimController::Persist(const std::vector<v1::Record>& records) {
  if (!records.empty() && Point()) return false;
  for (const v1::Record& record : records) {
    disk_.push_back(record);
    history_.push_back(record);
    Apply(record);
    world_->Trace("record", record);
  }
  // Of a mutant only what it does out there counts.
  const absl::Status status = mutation_ == Mutation::kNone ? core::CheckInvariants(state_) : absl::OkStatus();
  if (!status.ok()) host_->Broken(std::string(status.message()));
  return records.empty() || !Point();
}

bool SimController::Leave(const core::Input& input, const core::Decision& decision) {
  for (const core::Effect& effect :
       core::Reconcile(state_, contacts_, core::Touched(state_, input, decision.records))) {
    if (Point()) return false;
    Perform(effect);
  }
  for (const core::Answer& answer : decision.answers) {
    if (Point()) return false;
    host_->Answered(answer, history_);
  }
  return true;
}

void SimController::Feed(decltype(core::Input::body) body) {
  if (!up_) return;
  const core::Input input{world_->wall(), std::move(body)};
  Cover(input);
  core::Observe(&contacts_, state_, input);
  if (mutation_ == Mutation::kNoCommittee) {
    for (const auto& [number, committee] : state_.committees) {
      contacts_.committee_since[number] = absl::InfinitePast();
    }
  }
  core::Decision decision = core::Decide(state_, contacts_, input);
  if (mutation_ == Mutation::kFreeBeforeGone) FreeWhatStops(&decision);
  if (mutation_ == Mutation::kAnswerFirst) {
    const core::State before = state_;
    for (const v1::Record& record : decision.records) core::Apply(&state_, record);
    const bool left = Leave(input, decision);
    state_ = before;
    if (left) Persist(decision.records);
    return;
  }
  if (Persist(decision.records)) Leave(input, decision);
}

void SimController::Perform(const core::Effect& effect) {
  if (const auto* send = std::get_if<core::SendToNode>(&effect)) {
    if (mutation_ == Mutation::kForgetAck && send->kind == core::SendToNode::Kind::kAck) return;
    const auto identity =
        std::make_tuple(static_cast<int>(send->kind), send->job.str(), send->attempt.value());
    std::string& last = sent_[send->connection][identity];
    std::string bytes = send->message.SerializeAsString();
    if (last == bytes) return;
    last = std::move(bytes);
    core::SendToNode out = *send;
    // The mutation is the controller's alone: agents keep the true timeout.
    if (out.message.has_welcome()) out.message.mutable_welcome()->set_isolation_timeout_ms(10000);
    host_->ToNode(out, history_);
  } else if (const auto* archive = std::get_if<core::ArchiveJob>(&effect)) {
    Archive(archive->job);
  }
  // DeleteEnvironment: blobs are the engine's.
}

void SimController::Cover(const core::Input& input) { CoverInput(state_, contacts_, input, &covered_); }

// One transaction, as the engine does it.
void SimController::Archive(const JobId& job) {
  if (core::FindJobById(state_, job) == nullptr) return;
  archive_[job.str()] = core::DescribeJob(state_, contacts_, job, world_->wall());
  const v1::Record archived = core::ArchivedRecord(state_, job, world_->wall());
  std::erase_if(disk_, [&](const v1::Record& r) { return core::JobOfRecord(r) == job; });
  disk_.push_back(archived);
  history_.push_back(archived);
  core::Apply(&state_, archived);
  world_->Trace("archived " + job.str());
}

std::vector<v1::JobStatus> SimController::Jobs() const {
  std::vector<v1::JobStatus> jobs;
  for (const auto& [id, status] : archive_) jobs.push_back(status);
  for (const auto& [id, job] : state_.jobs) {
    jobs.push_back(core::DescribeJob(state_, contacts_, id, world_->wall()));
  }
  return jobs;
}

}  // namespace dgxrun::sim
