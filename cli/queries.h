// The subcommands that look at jobs and nodes, or stop a job.
//
// A job is looked for among this user's local jobs, running and ended, and in the cluster that is set
// (cluster_choice.h); the newest match wins. With --cluster: in that cluster only.
#ifndef DGXRUN_CLI_QUERIES_H_
#define DGXRUN_CLI_QUERIES_H_

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"

namespace dgxrun::cli {

// Each prints to stdout and returns the exit code, or an error line for the user.
absl::StatusOr<int> ShowStatus(const StatusOptions& options, const EnvMap& env, const Paths& paths);
absl::StatusOr<int> ShowNodes(const NodesOptions& options, const EnvMap& env, const Paths& paths);
absl::StatusOr<int> ShowLogs(const LogsOptions& options, const EnvMap& env, const Paths& paths);
absl::StatusOr<int> ShowWhy(const WhyOptions& options, const EnvMap& env, const Paths& paths);
absl::StatusOr<int> StopJobCommand(const StopOptions& options, const EnvMap& env, const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_QUERIES_H_
