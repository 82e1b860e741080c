#include "controller/core/strays.h"

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace dgxrun::core {

std::optional<uint64_t> JobNumber(const State& state, const JobId& job) {
  const std::string prefix = state.cluster_id.substr(0, 6) + "-";
  if (state.cluster_id.empty() || job.str().compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  uint64_t number = 0;
  if (!absl::SimpleAtoi(job.str().substr(prefix.size()), &number)) return std::nullopt;
  return number;
}

AttemptKind ClassifyAttempt(const State& state, const NodeId& node, const JobId& id, AttemptNo number) {
  const Job* job = FindJobById(state, id);
  if (job == nullptr) {
    const std::optional<uint64_t> n = JobNumber(state, id);
    return n && *n <= state.last_job_number ? AttemptKind::kArchived : AttemptKind::kAhead;
  }
  if (number >= job->next_attempt) return AttemptKind::kAhead;
  const Attempt* live = LiveAttempt(*job);
  if (live != nullptr && live->number == number && HoldsNode(*job, node)) return AttemptKind::kPlaced;
  return AttemptKind::kOutlived;
}

}  // namespace dgxrun::core
