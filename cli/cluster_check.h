// `dgxrun cluster check`: is this cluster file right, and does what it names exist? Dials nobody.
#ifndef DGXRUN_CLI_CLUSTER_CHECK_H_
#define DGXRUN_CLI_CLUSTER_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"
#include "launcher/base/cluster_file.h"

namespace dgxrun::cli {

// Names resolve, certificates and key can be read, belong together and are in force. FailedPrecondition
// names the file and what is wrong.
absl::Status CheckClusterFile(const ClusterFile& file);

// Prints "ok" and what was read. An error is a line for the user.
absl::StatusOr<int> CheckClusterCommand(const ClusterCheckOptions& options, const EnvMap& env,
                                        const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CLUSTER_CHECK_H_
