// Which format is it? In this order:
//   weights/ with context/ or a marker beside it           NeMo 2
//   metadata.json, or a name iter_N with shards or mp_rank_*  Megatron-LM
//   meta.pt beside shards, or checkpoint/ with DeepSpeed's files  Lightning
//   .metadata or .distcp right in it                          torch DCP
//   trainer_state.json or a name checkpoint-N                  transformers' Trainer
//   random_states_N.pkl or a name checkpoint_N                 accelerate
//   *_model_states.pt                                          DeepSpeed
//   mp_rank_*                                                  Megatron-LM's legacy format
//   weights of transformers or PEFT, or any files that hold tensors
#include "agent/ckpt/judge.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/judge_tree.h"
#include "agent/ckpt/names.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

bool HasNameBetween(const Tree& tree, std::string_view prefix, std::string_view suffix) {
  bool found = false;
  tree.ForEachIn("", [&](std::string_view name, const FileInfo&) {
    found = found || NumberBetween(name, prefix, suffix).has_value();
  });
  return found;
}

bool HasRankFolders(const Tree& tree) {
  const std::vector<std::string> folders = tree.FoldersIn("");
  return std::any_of(folders.begin(), folders.end(),
                     [](const std::string& name) { return name.starts_with("mp_rank_"); });
}

bool HasDataFiles(const Tree& tree) {
  return std::any_of(tree.files().begin(), tree.files().end(),
                     [](const auto& file) { return HasDataExtension(file.first); });
}

bool IsUniversal(const Tree& tree) {
  return tree.HasFolder("zero") && HasNameBetween(tree, "mp_rank_", "_model_states.pt");
}

bool JudgeMarkedFolder(Review& review) {
  const Tree& tree = review.tree();
  const bool dcp = LooksLikeDcp(tree, "");
  if (tree.HasFolder("weights") && (tree.HasFolder("context") || review.ExistsBeside("-unfinished"))) {
    JudgeNemo(review);
  } else if (tree.Has("metadata.json") ||
             (review.name().starts_with("iter_") && (dcp || HasRankFolders(tree)))) {
    JudgeMegatron(review, "");
  } else if ((dcp && tree.Has("meta.pt")) || LooksLikeDeepSpeed(tree, "checkpoint") ||
             (dcp && review.name().ends_with(".ckpt"))) {
    JudgeLightningFolder(review);
  } else if (dcp) {
    review.SetFormat(kDcp);
    JudgeDcp(review, "");
  } else {
    return false;
  }
  return true;
}

void JudgeFolder(Review& review) {
  const Tree& tree = review.tree();
  if (tree.files().empty()) {
    review.Fault(v1::VERDICT_PARTIAL, "", "an empty folder");
    return;
  }
  if (JudgeMarkedFolder(review)) return;
  if (tree.Has("trainer_state.json") || NumberBetween(review.name(), "checkpoint-", "").has_value()) {
    JudgeTrainer(review);
  } else if (HasNameBetween(tree, "random_states_", ".pkl") ||
             NumberBetween(review.name(), "checkpoint_", "").has_value()) {
    JudgeAccelerate(review);
  } else if (IsUniversal(tree)) {
    review.SetFormat(kDeepSpeedUniversal);
    JudgeDeepSpeed(review, "");
  } else if (LooksLikeDeepSpeed(tree, "")) {
    review.SetFormat(kDeepSpeed);
    JudgeDeepSpeed(review, "");
  } else if (HasRankFolders(tree)) {
    JudgeMegatron(review, "");
  } else if (HasDataFiles(tree) || LooksLikeWeights(tree, "")) {
    JudgeTorchFolder(review);
  } else {
    review.Fault(v1::VERDICT_UNVERIFIED, "", "not a format that is known");
  }
}

}  // namespace

v1::CheckpointFinding JudgeTree(Source& source, std::string_view path, const Tree& tree,
                                const JudgeOptions& options) {
  Review review(source, std::string(path), tree, options);
  review.SetStep(StepOfName(review.name()));
  if (tree.is_folder()) {
    JudgeFolder(review);
  } else if (const FileInfo* info = tree.Find(""); info->type == FileType::kLink) {
    review.Fault(v1::VERDICT_UNVERIFIED, "", "a symbolic link: name the folder where it points");
  } else if (info->type != FileType::kFile) {
    review.Fault(v1::VERDICT_UNVERIFIED, "", "neither a file nor a folder");
  } else if (review.name().ends_with(".ckpt")) {
    JudgeLightningFile(review);
  } else {
    JudgeTorchFile(review);
  }
  return review.Finish();
}

v1::CheckpointFinding UnreadableFinding(Source& source, std::string_view path, const absl::Status& status) {
  v1::CheckpointFinding finding;
  v1::Checkpoint& checkpoint = *finding.mutable_checkpoint();
  checkpoint.set_path(JoinPath(source.root(), path));
  checkpoint.set_step(StepOfName(path.substr(path.rfind('/') + 1)));
  checkpoint.set_verdict(v1::VERDICT_UNVERIFIED);
  checkpoint.set_reason(absl::IsNotFound(status) ? "there is no such file or folder"
                                                 : Cat({"cannot be read: ", std::string(status.message())}));
  return finding;
}

void SetBudgetOf(const JudgeOptions& options, Source& source) {
  Budget budget;
  if (!options.deep) budget = {options.max_calls, options.max_bytes};
  source.SetBudget(budget);
}

v1::CheckpointFinding Judge(Source& source, std::string_view path, const JudgeOptions& options) {
  SetBudgetOf(options, source);
  absl::StatusOr<Tree> tree = Tree::Read(source, path);
  v1::CheckpointFinding finding =
      tree.ok() ? JudgeTree(source, path, *tree, options) : UnreadableFinding(source, path, tree.status());
  source.SetBudget({});
  return finding;
}

}  // namespace dgxrun::agent::ckpt
