// `dgxrun [options] script`: makes the submit, and stays attached to the job on this machine or a cluster.
#ifndef DGXRUN_CLI_LAUNCH_H_
#define DGXRUN_CLI_LAUNCH_H_

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"
#include "dgxrun/v1/control.pb.h"

namespace dgxrun::cli {

// What is submitted; `local`: paths are looked at here.
absl::StatusOr<v1::SubmitRequest> MakeSubmit(const LaunchOptions& options, const EnvMap& env, bool local);

// Returns dgxrun's exit code; an error is a line for the user (exit_codes.h maps it). Must be called while
// the process has one thread.
absl::StatusOr<int> Launch(const LaunchOptions& options, const EnvMap& env, const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LAUNCH_H_
