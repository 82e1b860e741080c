// Whether, and when, a job whose attempt has failed is started again. The only place that decides so; the
// way back is always the same: stop, gone everywhere, attempt + 1.
#ifndef DGXRUN_CONTROLLER_CORE_RESTART_POLICY_H_
#define DGXRUN_CONTROLLER_CORE_RESTART_POLICY_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "controller/core/model.h"

namespace dgxrun::core {

struct RestartVerdict {
  bool restart = false;
  absl::Duration delay;         // from now to the next attempt
  uint32_t short_failures = 0;  // in a row, this one included
  std::string reason;           // for people: "restart 1 of 3", "no restart: ..."
};

// An attempt that failed sooner than this after its launch counts as a short one: less than any useful
// training step sequence, more than the start of an interpreter with torch.
inline constexpr absl::Duration kShortAttempt = absl::Seconds(10);
// Short failures in a row before restarts slow down: the first two come at once, since a port or a file
// that was in the way is often free again.
inline constexpr uint32_t kQuickRestarts = 2;
inline constexpr absl::Duration kFirstDelay = absl::Seconds(1);
// Longer than this and a person who mended the cause would wait for us.
inline constexpr absl::Duration kMaxDelay = absl::Seconds(30);

RestartVerdict DecideRestart(const Job& job, const Attempt& attempt, const v1::Why& why, absl::Time now);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_RESTART_POLICY_H_
