// `dgxrun [options] script`: makes the submit, and stays attached to the job on this machine or a cluster.
#ifndef DGXRUN_CLI_LAUNCH_H_
#define DGXRUN_CLI_LAUNCH_H_

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"

namespace dgxrun::cli {

// Returns dgxrun's exit code; an error is a line for the user (exit_codes.h maps it). Must be called while
// the process has one thread.
absl::StatusOr<int> Launch(const LaunchOptions& options, const EnvMap& env, const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LAUNCH_H_
