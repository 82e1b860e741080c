// Certificates and first files of a cluster over the network.
//
// In DIR, flat: ca.crt and ca.key (the authority), and a .crt/.key pair each for "controller", "agent" and
// "user-NAME". Common names are what proto/rpc/credentials.h expects; all keys are ECDSA P-256, mode 0600.
// The controller's certificate carries kControllerName and the given hosts as alternative names.
#ifndef DGXRUN_CLI_CLUSTER_INIT_H_
#define DGXRUN_CLI_CLUSTER_INIT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dgxrun::cli {

// Makes `dir` if it is missing. FailedPrecondition, naming the file, when one of them exists: nothing is
// overwritten. `hosts`: names or addresses of the controller; `users`: account names.
absl::Status MakeClusterCertificates(const std::string& dir, const std::vector<std::string>& hosts,
                                     const std::vector<std::string>& users);

// MakeClusterCertificates, then controller.toml, agent.toml and cluster.toml (clients; the first user's
// certificate). Returns what to do next, for people.
absl::StatusOr<std::string> InitCluster(const std::string& dir, const std::string& name,
                                        const std::vector<std::string>& hosts,
                                        const std::vector<std::string>& users);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CLUSTER_INIT_H_
