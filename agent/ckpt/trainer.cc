// transformers' Trainer: checkpoint-N, also with DeepSpeed, FSDP or PEFT inside. Written in this order:
// weights, training_args.bin, optimizer.pt, scheduler.pt, scaler.pt, random states, trainer_state.json; there
// is no barrier, so other ranks' random states may come later.
#include <algorithm>
#include <optional>
#include <vector>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/per_rank.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr std::string_view kState = "trainer_state.json";
// Ranks that do not write the state may come this much later with their random states: there is no barrier.
constexpr int64_t kRankLagNs = int64_t{600} * 1'000'000'000;

bool CheckIfThere(Review& review, std::string_view file) {
  if (!review.tree().Has(file)) return false;
  if (CheckDataFile(review, file).kind != DataKind::kBad) review.Sound(file);
  return true;
}

void CheckState(Review& review) {
  const std::optional<int64_t> named = NumberBetween(review.name(), "checkpoint-", "");
  if (!review.tree().Has(kState)) {
    review.Missing(kState, 0, "missing: the Trainer writes it last, so the save did not reach its end");
    return;
  }
  std::optional<int64_t> step;
  const bool sound =
      review.CheckJson(kState, [&](const std::vector<std::string>& keys, const JsonScalar& scalar) {
        if (keys.size() == 1 && keys[0] == "global_step") step = scalar.integer;
        return true;
      });
  if (!sound) return;
  if (!step.has_value() || *step < 0) {
    review.Fault(v1::VERDICT_CORRUPT, kState, "holds no global_step");
    return;
  }
  review.SetStep(*step);
  if (named.has_value() && *named != *step) {
    review.Fault(
        v1::VERDICT_CORRUPT, kState,
        Cat({"says step ", Str(*step), ", but the folder is ", review.name(), ": files of two saves"}));
    return;
  }
  review.Sound(kState);
}

// optimizer_0/ and pytorch_model_fsdp_0/ of FSDP's sharded saves.
bool JudgeFsdp(Review& review, std::string_view stem) {
  bool found = false;
  for (const std::string& folder : review.tree().FoldersIn("")) {
    if (!NumberBetween(folder, stem, "").has_value()) continue;
    JudgeDcp(review, folder);
    review.CheckOrder(JoinPath(folder, ".metadata"), kState);
    found = true;
  }
  return found;
}

void CheckRandomStates(Review& review, bool wanted) {
  RankFiles ranks(review.tree(), "", "rng_state_", ".pth");
  const bool single = CheckIfThere(review, "rng_state.pth");
  if (ranks.empty()) {
    if (!single && wanted) review.Missing("rng_state.pth", 0, "missing: the state of the random generators");
    return;
  }
  for (const std::string& file : ranks.files()) {
    CheckIfThere(review, file);
    review.CheckOrder(file, kState, file == "rng_state_0.pth" ? 0 : kRankLagNs);
  }
  ranks.NoteMissing(review, "missing: the random state of this rank");
}

void CheckOrders(Review& review) {
  std::vector<std::string> weights;
  for (const std::string& name : review.tree().NamesIn("")) {
    if (IsWeightsName(name)) weights.push_back(name);
  }
  for (const std::string& file : weights) {
    review.CheckOrder("config.json", file);
    for (std::string_view later :
         {std::string_view("optimizer.pt"), std::string_view("scheduler.pt"), kState}) {
      review.CheckOrder(file, later);
    }
  }
  review.CheckOrder("optimizer.pt", "scheduler.pt");
  for (std::string_view file :
       {"optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "training_args.bin", "config.json",
        "generation_config.json", "rng_state.pth"}) {
    review.CheckOrder(file, kState);
  }
}

}  // namespace

void JudgeTrainer(Review& review) {
  review.SetFormat(kTrainer);
  const Tree& tree = review.tree();
  if (tree.Has("checkpoint-is-incomplete.txt")) {
    review.Fault(v1::VERDICT_PARTIAL, "checkpoint-is-incomplete.txt",
                 "the save says that it is not finished");
  }
  CheckState(review);
  bool weights = JudgeWeights(review, "") == Weights::kSome;
  bool optimizer = CheckIfThere(review, "optimizer.pt");
  optimizer = CheckIfThere(review, "optimizer.bin") || optimizer;
  const bool scheduler = CheckIfThere(review, "scheduler.pt");
  CheckIfThere(review, "scaler.pt");
  if (JudgeFsdp(review, "pytorch_model_fsdp_")) {
    review.SetFormat(kTrainerFsdp);
    weights = true;
  }
  if (JudgeFsdp(review, "optimizer_")) {
    review.SetFormat(kTrainerFsdp);
    optimizer = true;
  }
  bool deepspeed = tree.Has("latest") || tree.Has("zero_to_fp32.py");
  const std::string tag = DeepSpeedTagIn(review, "");
  if (!tag.empty()) {
    deepspeed = weights = optimizer = true;
    JudgeDeepSpeed(review, tag);
    review.CheckOrder("latest", kState);
    if (!tree.Has("latest")) review.Missing("latest", 0, "missing: DeepSpeed's pointer to its tag");
  }
  if (deepspeed) review.SetFormat(kTrainerDeepSpeed);
  if (!weights) review.Missing("model.safetensors", 0, "no weights");
  if (tree.Has("generation_config.json") && !tree.Has("config.json")) {
    review.Missing("config.json", 0, "missing: the model's configuration");
  }
  if (!CheckIfThere(review, "training_args.bin")) {
    review.Missing("training_args.bin", 0, "missing: the Trainer writes it with the weights");
  }
  const RankFiles random(tree, "", "rng_state_", ".pth");
  const bool has_random = tree.Has("rng_state.pth") || !random.empty();
  const bool training = optimizer || scheduler || deepspeed || has_random;
  if (training) {
    if (!optimizer) review.Missing("optimizer.pt", 0, "missing: the optimizer's state");
    if (!scheduler && !deepspeed) review.Missing("scheduler.pt", 0, "missing: the scheduler's state");
  }
  CheckRandomStates(review, training);
  review.CheckJsonFiles("");
  CheckOrders(review);
  // save_only_model: neither optimizer, scheduler nor random states are saved.
  if (!training)
    review.Fault(v1::VERDICT_WEIGHTS_ONLY, "", "weights, but no optimizer, scheduler and random states");
}

}  // namespace dgxrun::agent::ckpt
