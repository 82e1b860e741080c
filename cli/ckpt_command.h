// `dgxrun ckpt`: looks at, pins and removes the checkpoints of a folder, here and now, with the caller's
// rights and without any daemon.
//
// Exit codes: 0; 1 when `verify` finds that the newest checkpoint is not COMPLETE (or finds none); else those
// of exit_codes.h (78: the folder cannot be read).
#ifndef DGXRUN_CLI_CKPT_COMMAND_H_
#define DGXRUN_CLI_CKPT_COMMAND_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::cli {

inline constexpr int kExitNotComplete = 1;

absl::StatusOr<int> CkptCommand(const CkptOptions& options);

// Pure; golden-tested. `pins`: names.
std::string RenderCheckpoints(const std::vector<v1::Checkpoint>& checkpoints,
                              const std::set<std::string>& pins, absl::Time now);
std::string CheckpointsJson(const std::vector<v1::Checkpoint>& checkpoints, const std::set<std::string>& pins,
                            absl::Time now);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CKPT_COMMAND_H_
