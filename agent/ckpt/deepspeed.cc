// DeepSpeed: one folder per tag. ZeRO 0 to 3, mixture of experts, pipelines.
//   mp_rank_XX_model_states.pt                          one per model parallel rank (ZeRO 0 to 2)
//   zero_pp_rank_D_mp_rank_XX_model_states.pt           and per data parallel rank (ZeRO 3)
//   [bf16_|fp16_]zero_pp_rank_D_mp_rank_XX_optim_states.pt
//   layer_LL-model_XX-model_states.pt                   pipelines
//   layer_L_expert_E_mp_rank_XX_model_states.pt, expp_rank_E_mp_rank_XX_optim_states.pt   experts
// All ranks write at once, and nothing in the folder marks the end: counts come from the model states.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/text.h"
#include "agent/ckpt/tracker.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

// Model states whose numbers are compared when only structure is judged. ZeRO 3 has one per rank.
constexpr size_t kPeekedStates = 64;
// Rank 0 writes `latest` when its own files are done; other ranks may still be writing theirs.
constexpr int64_t kRankLagNs = int64_t{300} * 1'000'000'000;
// Ranks that are named one by one; a larger number in a name is no rank's.
constexpr int64_t kMaxRanks = 65536;

enum class Part { kModel, kZeroModel, kOptimizer, kLayer, kExpert, kExpertOptimizer };

struct Piece {
  Part part;
  std::string family;   // what all pieces of one grid share: prefix, layer
  int64_t replica = 0;  // data parallel rank, or the expert
  int64_t model = 0;    // model parallel rank
};

// Matches text with digits where the pattern has '#'; the numbers in order.
std::optional<std::vector<int64_t>> Match(std::string_view text, std::string_view pattern) {
  std::vector<int64_t> numbers;
  size_t at = 0;
  for (char c : pattern) {
    if (c != '#') {
      if (at >= text.size() || text[at++] != c) return std::nullopt;
      continue;
    }
    size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    const std::optional<int64_t> number = ParseDigits(text.substr(at, end - at));
    if (!number.has_value()) return std::nullopt;
    numbers.push_back(*number);
    at = end;
  }
  if (at != text.size()) return std::nullopt;
  return numbers;
}

std::optional<Piece> ParsePiece(std::string_view name) {
  if (!name.ends_with("_states.pt")) return std::nullopt;
  if (auto n = Match(name, "mp_rank_#_model_states.pt")) return Piece{Part::kModel, "", 0, (*n)[0]};
  if (auto n = Match(name, "zero_pp_rank_#_mp_rank_#_model_states.pt")) {
    return Piece{Part::kZeroModel, "", (*n)[0], (*n)[1]};
  }
  for (std::string_view prefix : {"", "bf16_", "fp16_"}) {
    if (auto n = Match(name, Cat({prefix, "zero_pp_rank_#_mp_rank_#_optim_states.pt"}))) {
      return Piece{Part::kOptimizer, std::string(prefix), (*n)[0], (*n)[1]};
    }
  }
  if (auto n = Match(name, "layer_#-model_#-model_states.pt")) {
    return Piece{Part::kLayer, std::to_string((*n)[0]), 0, (*n)[1]};
  }
  if (auto n = Match(name, "layer_#_expert_#_mp_rank_#_model_states.pt")) {
    return Piece{Part::kExpert, std::to_string((*n)[0]), (*n)[1], (*n)[2]};
  }
  if (auto n = Match(name, "expp_rank_#_mp_rank_#_optim_states.pt")) {
    return Piece{Part::kExpertOptimizer, "", (*n)[0], (*n)[1]};
  }
  return std::nullopt;
}

// How a piece is called, in the form of the others of its grid (numbers of layers and experts may be padded).
std::string NameLike(std::string_view like, const Piece& piece) {
  const int64_t wanted[] = {piece.replica, piece.model};
  // The last two numbers of every pattern, or the last one, are replica and model rank.
  const bool two = piece.part != Part::kModel && piece.part != Part::kLayer;
  std::vector<std::pair<size_t, size_t>> numbers;  // begin, length
  for (size_t at = 0; at < like.size();) {
    if (like[at] < '0' || like[at] > '9') {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < like.size() && like[end] >= '0' && like[end] <= '9') ++end;
    numbers.emplace_back(at, end - at);
    at = end;
  }
  std::string name(like);
  for (size_t back = 0; back < (two ? 2U : 1U) && back < numbers.size(); ++back) {
    const auto [begin, length] = numbers[numbers.size() - 1 - back];
    std::string digits = std::to_string(wanted[1 - back]);
    while (digits.size() < length && like[begin] == '0' && length > 1) digits.insert(digits.begin(), '0');
    name.replace(begin, length, digits);
  }
  return name;
}

// What a model state says about the whole.
struct Said {
  std::optional<int64_t> step, data_parallel, model_parallel, zero_stage;
  bool optimizer_elsewhere = false;
};

class Tag {
 public:
  Tag(Review& review, std::string_view folder) : review_(review), folder_(folder) {}
  void Judge();

 private:
  struct Grid {
    std::set<std::pair<int64_t, int64_t>> have;
    std::string like;  // a name of it
    Piece piece;
    int64_t replicas = 0;
    int64_t models = 0;
  };
  void Collect();
  void CheckFiles();
  void Peek(DataFile& data, const std::string& path);
  void CheckGrids();
  void CheckOptimizer();

  Review& review_;
  const std::string folder_;
  std::map<std::pair<Part, std::string>, Grid> grids_;
  std::vector<std::pair<std::string, Piece>> pieces_;
  Said said_;
  std::string said_by_;
  std::optional<int64_t> optimizer_step_;
  std::string optimizer_step_by_;
  size_t peeked_ = 0;
};

void Tag::Collect() {
  review_.tree().ForEachIn(folder_, [this](std::string_view name, const FileInfo&) {
    const std::optional<Piece> piece = ParsePiece(name);
    if (!piece.has_value() || piece->replica >= kMaxRanks || piece->model >= kMaxRanks) return;
    Grid& grid = grids_[{piece->part, piece->family}];
    if (grid.have.empty()) {
      grid.like = std::string(name);
      grid.piece = *piece;
    }
    grid.have.emplace(piece->replica, piece->model);
    grid.replicas = std::max(grid.replicas, piece->replica + 1);
    grid.models = std::max(grid.models, piece->model + 1);
    pieces_.emplace_back(std::string(name), *piece);
  });
}

void Tag::Peek(DataFile& data, const std::string& path) {
  if (!review_.options().deep && peeked_ >= kPeekedStates) return;
  ++peeked_;
  std::optional<LoadedPickle> loaded = ReadDataPickle(data);
  if (!loaded.has_value()) return;
  const Pickle::Value root = loaded->root();
  const std::optional<int64_t> step = NumberOf(data, root.Get("global_steps"));
  if (step.has_value() && said_.step.has_value() && *step != *said_.step) {
    review_.Fault(v1::VERDICT_CORRUPT, path,
                  Cat({"is of step ", std::to_string(*step), ", but ", said_by_, " is of step ",
                       std::to_string(*said_.step), ": files of two saves"}));
    return;
  }
  if (said_by_.empty()) {
    said_by_ = path;
    said_.step = step;
    said_.data_parallel = NumberOf(data, root.Get("dp_world_size"));
    said_.model_parallel = NumberOf(data, root.Get("mp_world_size"));
    said_.zero_stage = NumberOf(data, root.Get("ds_config").Get("zero_optimization").Get("stage"));
    said_.optimizer_elsewhere = root.Get("optimizer").kind() == PickleKind::kNone;
  }
}

void Tag::CheckFiles() {
  for (const auto& [name, piece] : pieces_) {
    const std::string path = JoinPath(folder_, name);
    DataFile data = CheckDataFile(review_, path);
    if (data.kind == DataKind::kBad) continue;
    review_.Sound(path);
    if (piece.part == Part::kModel || piece.part == Part::kZeroModel) Peek(data, path);
  }
}

void Tag::CheckGrids() {
  int64_t experts = 0;
  int64_t models = std::min(said_.model_parallel.value_or(0), kMaxRanks);
  for (const auto& [key, grid] : grids_) {
    models = std::max(models, grid.models);
    if (key.first == Part::kExpert) experts = std::max(experts, grid.replicas);
  }
  for (const auto& [key, grid] : grids_) {
    int64_t replicas = grid.replicas;
    if (key.first == Part::kOptimizer || key.first == Part::kZeroModel) {
      replicas = std::max(replicas, std::min(said_.data_parallel.value_or(0), kMaxRanks));
    }
    if (key.first == Part::kExpert) replicas = experts;
    // A grid as large as two numbers say, but never larger than what a checkpoint may hold.
    if (replicas * models > static_cast<int64_t>(kMaxFilesOfCheckpoint)) {
      review_.Fault(v1::VERDICT_CORRUPT, said_by_, "speaks of more ranks than there can be");
      continue;
    }
    for (int64_t model = 0; model < models; ++model) {
      for (int64_t replica = 0; replica < replicas; ++replica) {
        if (grid.have.count({replica, model}) != 0) continue;
        Piece piece = grid.piece;
        piece.replica = replica;
        piece.model = model;
        review_.Missing(JoinPath(folder_, NameLike(grid.like, piece)), 0, "missing: the shard of this rank");
      }
    }
  }
}

void Tag::CheckOptimizer() {
  if (review_.tree().HasFolder(JoinPath(folder_, "zero"))) return;  // universal: one folder per parameter
  for (const auto& [key, grid] : grids_) {
    if (key.first == Part::kOptimizer || key.first == Part::kExpertOptimizer) return;
  }
  if (said_.zero_stage.value_or(0) >= 1 && said_.optimizer_elsewhere) {
    review_.Missing(JoinPath(folder_, "zero_pp_rank_0_mp_rank_00_optim_states.pt"), 0,
                    "missing: no shard of the optimizer is here");
  }
}

void Tag::Judge() {
  Collect();
  CheckFiles();
  CheckGrids();
  CheckOptimizer();
  if (grids_.count({Part::kModel, ""}) == 0 && grids_.count({Part::kZeroModel, ""}) == 0) {
    review_.Missing(JoinPath(folder_, "mp_rank_00_model_states.pt"), 0, "missing: no model state is here");
  }
  const std::string_view tag =
      folder_.empty() ? review_.name() : std::string_view(folder_).substr(folder_.rfind('/') + 1);
  const std::optional<int64_t> named = NumberBetween(tag, "global_step", "");
  if (!said_.step.has_value()) return;
  if (named.has_value() && *named != *said_.step) {
    review_.Fault(
        v1::VERDICT_CORRUPT, said_by_,
        Cat({"is of step ", std::to_string(*said_.step), ", but lies in ", tag, ": files of two saves"}));
  }
  if (review_.step() < 0) review_.SetStep(*said_.step);
}

}  // namespace

bool LooksLikeDeepSpeed(const Tree& tree, std::string_view folder) {
  bool found = false;
  tree.ForEachIn(folder, [&found](std::string_view name, const FileInfo&) {
    found = found || ParsePiece(name).has_value();
  });
  return found;
}

std::string DeepSpeedTagIn(Review& review, std::string_view folder) {
  const std::string pointer = JoinPath(folder, "latest");
  if (review.tree().Has(pointer)) {
    const std::optional<std::string> text = review.ReadAll(pointer, kMaxTrackerBytes);
    const Tracker tracker = ParseTracker(TrackerKind::kDeepSpeed, text.value_or(""));
    if (tracker.state == TrackerState::kNames) {
      const std::string tag = JoinPath(folder, tracker.target);
      if (review.tree().HasFolder(tag)) return tag;
      review.Missing(tag, 0, Cat({"missing: ", pointer, " names it"}));
    } else {
      review.Fault(v1::VERDICT_PARTIAL, pointer, "empty or not a name: the pointer to DeepSpeed's tag");
    }
  }
  for (const std::string& name : review.tree().FoldersIn(folder)) {
    const std::string tag = JoinPath(folder, name);
    if (LooksLikeDeepSpeed(review.tree(), tag)) return tag;
  }
  return "";
}

void JudgeDeepSpeed(Review& review, std::string_view folder) {
  review.SetUnmarked();
  Tag(review, folder).Judge();
  if (folder.empty()) review.CheckPointerBeside("latest", review.name(), kRankLagNs);
}

}  // namespace dgxrun::agent::ckpt
