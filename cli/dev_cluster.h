// `dgxrun dev`: a cluster of real processes on this machine: one dgxrun-controller and agents node1..nodeN.
//
//   <state>/dev/cluster.toml          what clients and the controller read; there while the cluster is up
//   <state>/dev/nodeI.toml            of each agent
//   <state>/dev/*.pid, *.log          processes (cli/daemon.h) and what they wrote
//   <state>/dev/controller/, nodeI/   their state; logs of jobs in nodeI/logs
//   <run>/dev-<hash>/                 the controller's socket and the agents' run folders; the hash is of the
//                                     state folder, so that two of them never meet
//
// `up` starts what does not live and waits until every agent is up. `down` stops all jobs first, through
// the controller (which it brings back for that if it must), then ends agents and controller.
#ifndef DGXRUN_CLI_DEV_CLUSTER_H_
#define DGXRUN_CLI_DEV_CLUSTER_H_

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"

namespace dgxrun::cli {

absl::StatusOr<int> DevCommand(const DevOptions& options, const EnvMap& env, const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_DEV_CLUSTER_H_
