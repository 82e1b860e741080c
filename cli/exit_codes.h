// What dgxrun exits with when it is not a rank's own code (0..255) or 128 + a signal.
//
// Stable and documented in docs/states.md; the values of sysexits.h where one fits.
#ifndef DGXRUN_CLI_EXIT_CODES_H_
#define DGXRUN_CLI_EXIT_CODES_H_

#include "absl/status/status.h"

namespace dgxrun::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 64;        // the command line is wrong, or names a job that is not there
inline constexpr int kExitUnreachable = 69;  // no controller answers, a node was lost or fenced
inline constexpr int kExitInternal = 70;     // a fault of ours: a supervisor died, a rank could not be forked
inline constexpr int kExitPreempted = 75;
inline constexpr int kExitHang = 76;
inline constexpr int kExitDenied = 77;
inline constexpr int kExitConfiguration =
    78;  // a file, folder, program, device or cluster file is not as needed
inline constexpr int kExitInterrupted = 130;  // Ctrl-C
inline constexpr int kExitTerminated = 143;   // SIGTERM, `dgxrun stop`

// The code for an error of ours or of the controller.
inline int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status)) return kExitUsage;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return kExitUnreachable;
  if (absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status)) return kExitDenied;
  if (absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status) ||
      absl::IsUnimplemented(status)) {
    return kExitConfiguration;
  }
  return kExitInternal;
}

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_EXIT_CODES_H_
