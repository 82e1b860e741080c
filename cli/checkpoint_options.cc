#include "cli/checkpoint_options.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun::cli {

absl::Status ParseKeep(const std::string& word, v1::CheckpointPolicy* policy) {
  const std::vector<std::string> parts = absl::StrSplit(word, ',');
  uint32_t last = 0;
  uint64_t every = 0;
  const bool good = parts.size() <= 2 && absl::SimpleAtoi(parts[0], &last) && last > 0 &&
                    (parts.size() < 2 || (absl::SimpleAtoi(parts[1], &every) && every > 0));
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat(word, ": write LAST or LAST,EVERY, as 2,1000: the newest 2, and each 1000th step"));
  }
  policy->set_keep_last(last);
  policy->set_keep_every(every);
  return absl::OkStatus();
}

absl::StatusOr<CheckpointOptions> ParseCheckpointWords(const CheckpointWords& words,
                                                       const std::string& ckpt_dir) {
  CheckpointOptions options;
  const auto needs_folder = [&](const char* option) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " needs --ckpt-dir, the folder in which checkpoints are found"));
  };
  if (!words.on_reset.empty()) {
    if (ckpt_dir.empty()) return needs_folder("--on-reset");
    if (words.on_reset != "warn" && words.on_reset != "stop") {
      return absl::InvalidArgumentError(absl::StrCat("--on-reset ", words.on_reset, ": write warn or stop"));
    }
    options.policy.set_stop_on_reset(words.on_reset == "stop");
  }
  if (!words.last_step.empty()) {
    uint64_t step = 0;
    if (!absl::SimpleAtoi(words.last_step, &step) || step == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--last-step ", words.last_step, ": write the step at which training is done"));
    }
    options.policy.set_last_step(step);
  }
  if (!words.keep.empty()) {
    if (ckpt_dir.empty()) return needs_folder("--ckpt-keep");
    if (absl::Status kept = ParseKeep(words.keep, &options.policy); !kept.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--ckpt-keep ", kept.message()));
    }
  }
  if (!words.elastic.empty() &&
      (!absl::SimpleAtoi(words.elastic, &options.min_nodes) || options.min_nodes == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--elastic ", words.elastic, ": write the least number of nodes to go on with"));
  }
  return options;
}

}  // namespace dgxrun::cli
