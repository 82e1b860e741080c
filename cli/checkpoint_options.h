// The options of a launch that concern checkpoints. Pure: words in, values or one line of error out.
#ifndef DGXRUN_CLI_CHECKPOINT_OPTIONS_H_
#define DGXRUN_CLI_CHECKPOINT_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::cli {

struct CheckpointWords {  // as typed; empty: not given
  std::string on_reset, last_step, keep, elastic;
};
struct CheckpointOptions {
  v1::CheckpointPolicy policy;
  uint32_t min_nodes = 0;  // --elastic; 0: not given
};

// `ckpt_dir`: of the command, for what makes no sense without one. InvalidArgument with one line.
absl::StatusOr<CheckpointOptions> ParseCheckpointWords(const CheckpointWords& words,
                                                       const std::string& ckpt_dir);

// "2" or "2,1000": --ckpt-keep LAST[,EVERY].
absl::Status ParseKeep(const std::string& word, v1::CheckpointPolicy* policy);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CHECKPOINT_OPTIONS_H_
