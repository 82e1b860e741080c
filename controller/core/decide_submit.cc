// What callers ask for: SubmitJob, StopJob.
#include "absl/strings/str_cat.h"
#include "controller/core/decide.h"
#include "controller/core/placement.h"

namespace dgxrun::core {
namespace {

// A key is a UUID or a person's word; it stays in the log.
constexpr size_t kMaxKeyLength = 128;

JobId NewJobId(const State& state) {
  return JobId(absl::StrCat(state.cluster_id.substr(0, 6), "-", state.last_job_number + 1));
}

// A repeated wish that asks for nothing new leaves no record.
bool AddsToWish(const Job& job, const StopJob& input) {
  if (!job.stop) return true;
  if (!input.has_grace) return false;
  const uint64_t grace = absl::ToInt64Milliseconds(input.grace);
  return !job.stop->grace_ms || grace < *job.stop->grace_ms;
}

}  // namespace

void DecideSubmit(Draft* draft, const SubmitJob& input) {
  auto answer = [&](absl::Status status, JobId job) {
    draft->AddAnswer(input.request, std::move(status), std::move(job));
  };
  if (absl::Status allowed = Authorize(input.caller, Verb::kSubmit, nullptr); !allowed.ok()) {
    return answer(allowed, JobId());
  }
  if (draft->contacts().config.peers) {
    return answer(
        absl::FailedPreconditionError("this is the endpoint of a job in peers mode; it takes no other"),
        JobId());
  }
  if (input.key.empty() || input.key.size() > kMaxKeyLength) {
    return answer(absl::InvalidArgumentError("the submit key must have 1 to 128 characters"), JobId());
  }
  const auto known = draft->state().keys.find({input.caller.uid, input.key});
  if (known != draft->state().keys.end()) return answer(absl::OkStatus(), known->second);
  v1::JobSpec spec = input.spec;
  // Whoever asks is whom it runs as, whatever the request says.
  spec.mutable_owner()->set_user(input.caller.user);
  spec.mutable_owner()->set_uid(input.caller.uid);
  spec.mutable_owner()->set_gid(input.caller.gid);
  if (absl::Status resolved = ResolveSpec(draft->state(), draft->contacts(), &spec); !resolved.ok()) {
    return answer(resolved, JobId());
  }
  const JobId id = NewJobId(draft->state());
  v1::Record record;
  v1::JobSubmitted* submitted = record.mutable_job_submitted();
  submitted->set_job_id(id.str());
  submitted->set_number(draft->state().last_job_number + 1);
  submitted->set_key(input.key);
  *submitted->mutable_spec() = std::move(spec);
  draft->Add(std::move(record));
  answer(absl::OkStatus(), id);
}

void DecideStop(Draft* draft, const StopJob& input) {
  auto answer = [&](absl::Status status) { draft->AddAnswer(input.request, std::move(status), input.job); };
  const Job* job = FindJobById(draft->state(), input.job);
  if (job == nullptr) return answer(absl::NotFoundError(absl::StrCat("no job '", input.job.str(), "'")));
  if (absl::Status allowed = Authorize(input.caller, Verb::kStop, &job->spec.owner()); !allowed.ok()) {
    return answer(allowed);
  }
  if (job->phase == Job::Phase::kEnded || !AddsToWish(*job, input)) return answer(absl::OkStatus());
  v1::Record record;
  v1::StopRequested* stop = record.mutable_stop_requested();
  stop->set_job_id(input.job.str());
  stop->set_user(input.caller.user);
  stop->set_reason(input.reason);
  stop->set_has_grace(input.has_grace);
  if (input.has_grace) stop->set_grace_ms(absl::ToInt64Milliseconds(input.grace));
  draft->Add(std::move(record));
  answer(absl::OkStatus());
}

}  // namespace dgxrun::core
