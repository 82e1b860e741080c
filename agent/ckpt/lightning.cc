// Lightning: one .ckpt file; or a folder of shards with meta.pt written last; or a folder with DeepSpeed's
// files.
#include <optional>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

// What Lightning's own keys say. Not everything with the extension .ckpt is Lightning's.
void PeekStep(Review& review, DataFile& data, bool by_name) {
  std::optional<LoadedPickle> loaded = ReadDataPickle(data);
  if (!loaded.has_value()) {
    if (by_name) review.SetFormat(kLightning);
    return;
  }
  const Pickle::Value root = loaded->root();
  if (root.Get("pytorch-lightning_version").absent()) return;
  review.SetFormat(kLightning);
  const std::optional<int64_t> step = NumberOf(data, root.Get("global_step"));
  if (step.has_value() && *step >= 0 && review.step() < 0) review.SetStep(*step);
}

}  // namespace

void JudgeLightningFile(Review& review) {
  review.SetFormat(kTorch);
  const bool by_name = review.name().find("step=") != std::string_view::npos;
  DataFile data = CheckDataFile(review, "");
  if (data.kind == DataKind::kBad && by_name) review.SetFormat(kLightning);
  if (data.kind == DataKind::kLegacy) review.SetFormat(kTorchLegacy);
  PeekStep(review, data, by_name);
}

void JudgeLightningFolder(Review& review) {
  const Tree& tree = review.tree();
  if (LooksLikeDeepSpeed(tree, "checkpoint") || !DeepSpeedTagIn(review, "").empty()) {
    review.SetFormat(kLightningDeepSpeed);
    const std::string tag = DeepSpeedTagIn(review, "");
    JudgeDeepSpeed(review, tag.empty() ? "checkpoint" : tag);
    if (!tree.Has("latest")) review.Missing("latest", 0, "missing: DeepSpeed writes it last");
    return;
  }
  review.SetFormat(kLightningSharded);
  JudgeDcp(review, "");
  if (!tree.Has("meta.pt")) {
    review.Missing("meta.pt", 0, "missing: Lightning writes it last, so the save did not reach its end");
    return;
  }
  DataFile meta = CheckDataFile(review, "meta.pt");
  if (meta.kind == DataKind::kBad) return;
  review.Sound("meta.pt");
  review.CheckOrder(".metadata", "meta.pt");
  std::optional<LoadedPickle> loaded = ReadDataPickle(meta);
  if (!loaded.has_value()) return;
  const std::optional<int64_t> step = NumberOf(meta, loaded->root().Get("global_step"));
  if (step.has_value() && *step >= 0) review.SetStep(*step);
}

}  // namespace dgxrun::agent::ckpt
