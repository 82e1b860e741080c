// A child process that outlives dgxrun to remove the run folder of a local job, also when dgxrun is killed:
// the folder holds the job's environment and a socket, which must not stay.
//
// Forked while the process has one thread. Has its own session, no open files but a pipe whose other end
// only dgxrun holds, and none of dgxrun's environment (which may hold secrets). Told to by Finish(), it
// removes the folder at once. When the pipe just ends, dgxrun was killed: it removes everything but the
// shims' folders at once, and the rest when each shim has removed its own, or after kJanitorLimit.
#ifndef DGXRUN_CLI_JANITOR_H_
#define DGXRUN_CLI_JANITOR_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {

// A shim whose agent died kills at once and removes its folder; this is for a loaded machine.
inline constexpr absl::Duration kJanitorLimit = absl::Seconds(10);
inline constexpr char kShimsFolder[] = "shims";

class Janitor {
 public:
  // `folder` need not exist yet.
  static absl::StatusOr<Janitor> Start(const std::string& folder);
  Janitor(Janitor&&) = default;

  // Tells it to begin and waits for its end. Everything that uses the folder must be closed.
  void Finish();

 private:
  Janitor(UniqueFd pipe, pid_t pid) : pipe_(std::move(pipe)), pid_(pid) {}

  UniqueFd pipe_;
  pid_t pid_;  // an unreaped child of ours
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_JANITOR_H_
