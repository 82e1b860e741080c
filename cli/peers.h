// Peers mode, torchrun's way: the same `dgxrun --nnodes N --rdzv-endpoint HOST:PORT ...` on every node.
//
// Each process embeds an agent; the one that owns the endpoint embeds the controller too:
//
//   --node-rank 0, or HOST is this machine's and nobody of ours listens at PORT -> endpoint
//   else -> peer: waits until the endpoint answers with the same key, then says hello
//
//   waiting for the nodes -> attached to the job, as any dgxrun -> all processes end with the job's exit code
//
// A process that is killed leaves ranks that live until the orphan timeout; started again within it, it takes
// them up: a peer attaches to its shims, the endpoint's process reads its log, or begins with an empty one
// and learns the job from the capsules. A process that leaves by itself before the job's end takes its ranks
// along.
#ifndef DGXRUN_CLI_PEERS_H_
#define DGXRUN_CLI_PEERS_H_

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"

namespace dgxrun::cli {

// options.peers is set. Returns dgxrun's exit code; an error is a line for the user. Must be called while the
// process has one thread.
absl::StatusOr<int> LaunchPeers(const LaunchOptions& options, const EnvMap& env, const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_PEERS_H_
