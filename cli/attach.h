// `dgxrun attach`: the console of a cluster's job, for a client that did not start it or went away.
#ifndef DGXRUN_CLI_ATTACH_H_
#define DGXRUN_CLI_ATTACH_H_

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"

namespace dgxrun::cli {

// Returns the job's exit code, or an error line for the user. Must be called while the process has one
// thread, since it takes the signals.
absl::StatusOr<int> AttachCommand(const AttachOptions& options, const EnvMap& env, const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_ATTACH_H_
