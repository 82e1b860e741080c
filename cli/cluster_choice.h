// Which cluster is meant: --cluster NAME|FILE, DGXRUN_CLUSTER, the user's file, the system's file, the dev
// cluster, in this order.
//
// NAME is <user config>/NAME.toml, then <system config>/NAME.toml; "dev" is the dev cluster where no file
// has that name. A word with a "/" or that ends in ".toml" is a FILE.
#ifndef DGXRUN_CLI_CLUSTER_CHOICE_H_
#define DGXRUN_CLI_CLUSTER_CHOICE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/paths.h"
#include "launcher/base/cluster_file.h"

namespace dgxrun::cli {

struct ClusterChoice {
  ClusterFile file;
  bool asked_for = false;  // by --cluster or DGXRUN_CLUSTER: not to answer is an error, not a remark
};

// Path of the file that a dev cluster that is up has (cli/dev_cluster.h).
std::string DevClusterFile(const Paths& paths);

// nullopt: there is none. Errors: the one asked for does not exist (NotFound names where was looked), or
// the file that was found is wrong.
absl::StatusOr<std::optional<ClusterChoice>> FindCluster(const std::string& asked, const EnvMap& env,
                                                         const Paths& paths);
// For a launch: none is an error that names the ways on.
absl::StatusOr<ClusterChoice> NeedCluster(const std::string& asked, const EnvMap& env, const Paths& paths,
                                          uint32_t nodes);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CLUSTER_CHOICE_H_
