// `--nccl-timeout S`: what it means. NCCL has no time limit of a collective, and NCCL_TIMEOUT is read by
// neither NCCL nor PyTorch; so the supervisor keeps the limit (a collective without progress for S is a
// hang), and the environment is set so that nothing below it contradicts: network errors come out sooner,
// PyTorch's own monitor does not kill earlier, scripts that read a limit get the same one. docs/network.md
// says which variable does what. The controller calls this when it makes a plan.
#ifndef DGXRUN_LAUNCHER_NCCL_TIMEOUTS_H_
#define DGXRUN_LAUNCHER_NCCL_TIMEOUTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/nccl/name_list.h"

namespace dgxrun::nccl {

struct TimeoutPlan {
  Environment env;  // without what `set` names already
  absl::Duration hang_limit;
  std::vector<std::string> notes;
};

// Shorter than any step with a checkpoint in it, and longer than a person waits.
inline constexpr absl::Duration kMinNcclTimeout = absl::Seconds(10);
inline constexpr absl::Duration kMaxNcclTimeout = absl::Hours(7 * 24);

// `set`: of the user and of the cluster file; it wins. InvalidArgument: outside the bounds, or not whole
// seconds.
absl::StatusOr<TimeoutPlan> PlanTimeouts(absl::Duration timeout, const Environment& set);

// NCCL_IB_TIMEOUT's n: the network card gives up after 7 tries of 4.096 us * 2^n. The largest that gives up
// within half of `timeout`, so that the network's error is seen and not the hang that follows from it.
int IbTimeoutExponent(absl::Duration timeout);
absl::Duration IbGivesUpAfter(int exponent);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_TIMEOUTS_H_
