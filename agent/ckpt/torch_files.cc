// Loose files of torch.save and safetensors: one, or a folder of them in a layout that only the script knows.
#include <optional>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/names.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

std::string_view FormatOf(DataKind kind, std::string_view name) {
  switch (kind) {
    case DataKind::kZip:
    case DataKind::kPickle:
      return kTorch;
    case DataKind::kLegacy:
      return kTorchLegacy;
    case DataKind::kSafetensors:
      return kSafetensors;
    case DataKind::kUnknown:
      return "";
    case DataKind::kBad:
      break;
  }
  return name.ends_with(".safetensors") ? kSafetensors : kTorch;
}

// A script's own words for its step, in the order of how usual they are.
void PeekStep(Review& review, DataFile& data) {
  if (review.step() >= 0) return;
  std::optional<LoadedPickle> loaded = ReadDataPickle(data);
  if (!loaded.has_value()) return;
  for (std::string_view key : {"global_step", "step", "iteration", "iter"}) {
    const std::optional<int64_t> step = NumberOf(data, loaded->root().Get(key));
    if (!step.has_value() || *step < 0) continue;
    review.SetStep(*step);
    return;
  }
}

}  // namespace

void JudgeTorchFile(Review& review) {
  DataFile data = CheckDataFile(review, "");
  review.SetFormat(FormatOf(data.kind, review.name()));
  PeekStep(review, data);
}

void JudgeTorchFolder(Review& review) {
  const Tree& tree = review.tree();
  std::string_view format;
  if (JudgeWeights(review, "") != Weights::kNone) format = kSafetensors;
  for (const auto& [path, info] : tree.files()) {
    if (!HasDataExtension(path)) continue;
    const bool weights = path.find('/') == std::string::npos && IsWeightsName(path);
    if (weights) continue;
    DataFile data = CheckDataFile(review, path);
    if (data.kind != DataKind::kBad) review.Sound(path);
    const std::string_view its = FormatOf(data.kind, path);
    if (!its.empty() && (format.empty() || its == kTorch)) format = its;
    PeekStep(review, data);
  }
  review.CheckJsonFiles("");
  review.SetFormat(format);
  if (format != kSafetensors) review.SetUnmarked();
}

}  // namespace dgxrun::agent::ckpt
