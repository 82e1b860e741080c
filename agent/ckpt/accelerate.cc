// accelerate's save_state: models, optimizers, schedulers, samplers and one random state per rank. Nothing
// marks its end.
#include <optional>
#include <vector>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/per_rank.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

// "optimizer.bin", "optimizer_1.bin": one for each that was prepared.
bool IsNumbered(std::string_view name, std::string_view stem, std::string_view end) {
  return name == Cat({stem, end}) || NumberBetween(name, Cat({stem, "_"}), end).has_value();
}

bool JudgeFolders(Review& review, std::string_view stem) {
  bool found = false;
  for (const std::string& folder : review.tree().FoldersIn("")) {
    if (!NumberBetween(folder, stem, "").has_value() || !LooksLikeDcp(review.tree(), folder)) continue;
    JudgeDcp(review, folder);
    found = true;
  }
  return found;
}

// Engines are saved as pytorch_model, pytorch_model_1, ...: each a folder with one tag, which is the folder
// itself.
bool JudgeEngines(Review& review) {
  bool found = false;
  for (const std::string& folder : review.tree().FoldersIn("")) {
    if (LooksLikeDeepSpeed(review.tree(), folder)) {
      JudgeDeepSpeed(review, folder);
      found = true;
    } else if (const std::string tag = DeepSpeedTagIn(review, folder); !tag.empty()) {
      JudgeDeepSpeed(review, tag);
      found = true;
    }
  }
  return found;
}

}  // namespace

void JudgeAccelerate(Review& review) {
  review.SetFormat(kAccelerate);
  review.SetUnmarked();
  bool weights = JudgeWeights(review, "") == Weights::kSome;
  bool optimizer = false;
  for (const std::string& name : review.tree().NamesIn("")) {
    const bool is_optimizer = IsNumbered(name, "optimizer", ".bin");
    const bool other = IsNumbered(name, "scheduler", ".bin") || IsNumbered(name, "sampler", ".bin") ||
                       IsNumbered(name, "dl_state_dict", ".bin") || name == "scaler.pt" ||
                       NumberBetween(name, "custom_checkpoint_", ".pkl").has_value();
    if (!is_optimizer && !other) continue;
    optimizer = optimizer || is_optimizer;
    if (CheckDataFile(review, name).kind != DataKind::kBad) review.Sound(name);
  }
  if (JudgeFolders(review, "pytorch_model_fsdp_")) {
    review.SetFormat(kAccelerateFsdp);
    weights = true;
  }
  if (JudgeFolders(review, "optimizer_")) {
    review.SetFormat(kAccelerateFsdp);
    optimizer = true;
  }
  if (JudgeEngines(review)) {
    review.SetFormat(kAccelerateDeepSpeed);
    weights = optimizer = true;
  }
  if (!weights) review.Missing("model.safetensors", 0, "no weights");
  if (!optimizer) review.Missing("optimizer.bin", 0, "missing: the optimizer's state");
  review.CheckJsonFiles("");
  const RankFiles random(review.tree(), "", "random_states_", ".pkl");
  if (random.empty()) review.Missing("random_states_0.pkl", 0, "missing: the state of the random generators");
  for (const std::string& file : random.files()) {
    if (CheckDataFile(review, file).kind != DataKind::kBad) review.Sound(file);
  }
  random.NoteMissing(review, "missing: the random state of this rank");
}

}  // namespace dgxrun::agent::ckpt
