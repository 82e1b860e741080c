#include "controller/core/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dgxrun::core {
namespace {

// Causes that the same job meets again at once, or that nobody is left to wait for.
const char* Hopeless(const Attempt& attempt, v1::Cause cause) {
  switch (cause) {
    case v1::CAUSE_LAUNCH_REFUSED:
      // Refused after the checks had passed (a port that was taken meanwhile): another attempt may do.
      return attempt.launched ? nullptr : "a check before the start failed";
    case v1::CAUSE_STOPPED:
      return "it was stopped";
    case v1::CAUSE_CLIENT_LOST:
      return "its client is gone";
    case v1::CAUSE_UNSPECIFIED:
    case v1::CAUSE_EXIT_CODE:
    case v1::CAUSE_SIGNAL:
    case v1::CAUSE_OOM_KILL:
    case v1::CAUSE_GPU_FAULT:
    case v1::CAUSE_NODE_LOST:
    case v1::CAUSE_HANG:
    case v1::CAUSE_SPAWN_FAILED:
    case v1::CAUSE_SUPERVISOR_LOST:
    case v1::CAUSE_FENCED:
    case v1::CAUSE_PREEMPTED:
    case v1::Cause_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Cause_INT_MAX_SENTINEL_DO_NOT_USE_:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

RestartVerdict DecideRestart(const Job& job, const Attempt& attempt, const v1::Why& why, absl::Time now) {
  RestartVerdict verdict;
  const absl::Time began = attempt.launched ? attempt.launched_at : attempt.placed_at;
  verdict.short_failures = now - began < kShortAttempt ? job.short_failures + 1 : 0;
  if (const char* reason = Hopeless(attempt, why.cause())) {
    verdict.reason = absl::StrCat("no restart: ", reason);
    return verdict;
  }
  if (job.restarts >= job.spec.max_restarts()) {
    verdict.reason = job.spec.max_restarts() == 0
                         ? "no restart: none allowed"
                         : absl::StrCat("no restart: all ", job.spec.max_restarts(), " were used");
    return verdict;
  }
  verdict.restart = true;
  if (verdict.short_failures > kQuickRestarts) {
    const uint32_t doublings = std::min<uint32_t>(verdict.short_failures - kQuickRestarts - 1, 5);
    verdict.delay = std::min(kFirstDelay * (1 << doublings), kMaxDelay);
  }
  verdict.reason = absl::StrCat("restart ", job.restarts + 1, " of ", job.spec.max_restarts());
  if (verdict.delay > absl::ZeroDuration()) {
    absl::StrAppend(&verdict.reason, " in ", absl::FormatDuration(verdict.delay), ": ",
                    verdict.short_failures, " short attempts in a row");
  }
  return verdict;
}

}  // namespace dgxrun::core
