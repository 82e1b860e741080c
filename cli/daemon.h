// A process that outlives dgxrun and is found again by a file: "pid start-time boot-id".
//
// A pid alone may belong to somebody else by now; with its start time (field 22 of /proc/PID/stat, in
// ticks since boot) and the boot it does not. Nothing else is ever signalled.
#ifndef DGXRUN_CLI_DAEMON_H_
#define DGXRUN_CLI_DAEMON_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dgxrun::cli {

class Daemon {
 public:
  explicit Daemon(std::string pid_file) : pid_file_(std::move(pid_file)) {}

  // Its pid, or 0 when it does not live.
  int LivingPid() const;

  // In a session of its own, with no terminal, default signals and this environment only; output is
  // appended to `log_file`. Writes the pid file.
  absl::Status Start(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                     const std::string& log_file);

  // SIGTERM, and SIGKILL where that does not help within `grace`; returns when it is gone, and removes the
  // pid file. Not running: OK.
  absl::Status End(absl::Duration grace);

 private:
  // Waits until it is gone; false after `limit`.
  bool WaitGone(absl::Duration limit) const;

  std::string pid_file_;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_DAEMON_H_
