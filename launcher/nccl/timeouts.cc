#include "launcher/nccl/timeouts.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dgxrun::nccl {
namespace {

constexpr int kIbTries = 7;         // NCCL_IB_RETRY_CNT's default
constexpr int kMinIbExponent = 14;  // NCCL's own until 2.13
constexpr int kMaxIbExponent = 22;  // two minutes; a link that flaps is back by then
constexpr absl::Duration kTorchHeartbeat = absl::Seconds(480);  // PyTorch's default
// PyTorch's watchdog, after its own limit: 4 times WAIT_TIMEOUT_DUMP_MILSEC (15 s) for the dumps of others.
constexpr absl::Duration kTorchDump = absl::Seconds(60);
constexpr absl::Duration kTorchDefault = absl::Seconds(600);  // init_process_group's timeout=

}  // namespace

absl::Duration IbGivesUpAfter(int exponent) {
  return absl::Nanoseconds(4096) * (int64_t{1} << exponent) * kIbTries;
}

int IbTimeoutExponent(absl::Duration timeout) {
  int exponent = kMaxIbExponent;
  while (exponent > kMinIbExponent && IbGivesUpAfter(exponent) > timeout / 2) --exponent;
  return exponent;
}

absl::StatusOr<TimeoutPlan> PlanTimeouts(absl::Duration timeout, const Environment& set) {
  if (timeout < kMinNcclTimeout || timeout > kMaxNcclTimeout ||
      timeout != absl::Trunc(timeout, absl::Seconds(1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the NCCL timeout is whole seconds from ", absl::ToInt64Seconds(kMinNcclTimeout), " to ",
                     absl::ToInt64Seconds(kMaxNcclTimeout), ", not ", absl::FormatDuration(timeout)));
  }
  const int64_t seconds = absl::ToInt64Seconds(timeout);
  TimeoutPlan plan;
  plan.hang_limit = timeout;
  plan.env["NCCL_TIMEOUT"] = absl::StrCat(seconds);
  plan.env["DEEPSPEED_TIMEOUT"] = absl::StrCat((seconds + 59) / 60);  // minutes
  plan.env["NCCL_IB_TIMEOUT"] = absl::StrCat(IbTimeoutExponent(timeout));
  // The monitor kills a rank whose watchdog thread stands still. Not sooner than we would, with time for
  // dumps.
  plan.env["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] =
      absl::StrCat(absl::ToInt64Seconds(std::max(kTorchHeartbeat, timeout + kTorchDump)));
  for (const auto& [name, value] : set) plan.env.erase(name);
  if (timeout > kTorchDefault) {
    plan.notes.push_back(
        absl::StrCat("PyTorch ends a collective after its own limit (", absl::ToInt64Seconds(kTorchDefault),
                     " s) unless the script passes timeout= to init_process_group and to each new_group"));
  }
  return plan;
}

}  // namespace dgxrun::nccl
