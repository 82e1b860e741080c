// Weights as transformers, PEFT, diffusers and accelerate save them.
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/text.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

// Names without "-0000i-of-0000n" and extension. accelerate adds "_1", "_2", ... for further models.
constexpr std::string_view kStems[] = {"model",         "pytorch_model", "pytorch_model_fsdp",
                                       "adapter_model", "consolidated",  "diffusion_pytorch_model"};
constexpr std::string_view kIndexEnd = ".index.json";
// Shards that one index may name; the largest models have some 200.
constexpr size_t kMaxShards = 10000;

bool IsStem(std::string_view stem) {
  for (std::string_view known : kStems) {
    if (stem == known) return true;
    if (NumberBetween(stem, Cat({known, "_"}), "").has_value()) return true;
  }
  return false;
}

std::optional<std::string_view> WithoutExtension(std::string_view name) {
  for (std::string_view end : {".safetensors", ".bin"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return std::nullopt;
}

struct ShardName {
  std::string_view stem;
  int64_t number;
  int64_t of;
};
std::optional<ShardName> ParseShardName(std::string_view name) {
  const std::optional<std::string_view> plain = WithoutExtension(name);
  const size_t of = plain.has_value() ? plain->rfind("-of-") : std::string_view::npos;
  if (of == std::string_view::npos) return std::nullopt;
  const size_t dash = plain->rfind('-', of - 1);
  if (of == 0 || dash == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> number = ParseDigits(plain->substr(dash + 1, of - dash - 1));
  const std::optional<int64_t> total = ParseDigits(plain->substr(of + 4));
  if (!number.has_value() || !total.has_value()) return std::nullopt;
  return ShardName{plain->substr(0, dash), *number, *total};
}

using ShardMap = std::map<std::string, std::vector<std::string>>;  // file -> its tensors

// "weight_map" of an index: tensor -> file.
std::optional<ShardMap> ReadIndex(Review& review, std::string_view path) {
  ShardMap shards;
  std::string bad;
  const bool sound =
      review.CheckJson(path, [&](const std::vector<std::string>& keys, const JsonScalar& scalar) {
        if (keys.size() != 2 || keys[0] != "weight_map" || !scalar.text.has_value()) return true;
        if (!StaysBeneath(*scalar.text)) bad = std::string(*scalar.text);
        shards[std::string(*scalar.text)].push_back(keys[1]);
        return bad.empty() && shards.size() <= kMaxShards;
      });
  if (!sound) return std::nullopt;
  if (!bad.empty()) {
    review.Fault(v1::VERDICT_CORRUPT, path,
                 Cat({"names ", ToPrintable(bad), ", which leads out of the folder"}));
    return std::nullopt;
  }
  if (shards.empty() || shards.size() > kMaxShards) {
    review.Fault(shards.empty() ? v1::VERDICT_CORRUPT : v1::VERDICT_UNVERIFIED, path,
                 shards.empty() ? "names no file" : "names more files than are read");
    return std::nullopt;
  }
  return shards;
}

void JudgeIndex(Review& review, std::string_view folder, const std::string& path) {
  const std::optional<ShardMap> shards = ReadIndex(review, path);
  if (!shards.has_value()) return;
  review.Sound(path);
  for (const auto& [name, tensors] : *shards) {
    const std::string shard = JoinPath(folder, name);
    if (!review.tree().Has(shard)) {
      review.Missing(shard, 0, Cat({"missing: ", path, " names it"}));
      continue;
    }
    const DataFile data = CheckDataFile(review, shard);
    if (data.kind == DataKind::kBad) continue;
    review.Sound(shard);
    review.CheckOrder(shard, path);
    if (data.kind != DataKind::kSafetensors) continue;
    for (const std::string& tensor : tensors) {
      if (data.tensors.count(tensor) != 0) continue;
      review.Fault(
          v1::VERDICT_CORRUPT, shard,
          Cat({"does not hold ", ToPrintable(tensor), ", which ", path, " says: files of two saves"}));
      break;
    }
  }
}

// Shards whose index is not there: it is written after them.
void JudgeLooseShards(Review& review, std::string_view folder,
                      const std::map<std::string, ShardName>& loose) {
  for (const auto& [name, shard] : loose) {
    const std::string path = JoinPath(folder, name);
    if (CheckDataFile(review, path).kind != DataKind::kBad) review.Sound(path);
  }
  const auto& [name, shard] = *loose.begin();
  const std::string_view end = name.ends_with(".bin") ? ".bin" : ".safetensors";
  review.Missing(JoinPath(folder, Cat({shard.stem, end, kIndexEnd})), 0,
                 "missing: the index is written after the shards");
}

}  // namespace

bool IsWeightsName(std::string_view name) {
  if (name.ends_with(kIndexEnd)) name.remove_suffix(kIndexEnd.size());
  if (const std::optional<ShardName> shard = ParseShardName(name); shard.has_value())
    return IsStem(shard->stem);
  const std::optional<std::string_view> plain = WithoutExtension(name);
  return plain.has_value() && IsStem(*plain);
}

bool LooksLikeWeights(const Tree& tree, std::string_view folder) {
  bool found = false;
  tree.ForEachIn(folder,
                 [&found](std::string_view name, const FileInfo&) { found = found || IsWeightsName(name); });
  return found;
}

Weights JudgeWeights(Review& review, std::string_view folder) {
  Weights answer = Weights::kNone;
  std::set<std::string> indexed;  // stems
  std::map<std::string, ShardName> loose;
  const std::vector<std::string> names = review.tree().NamesIn(folder);
  for (const std::string& name : names) {
    if (!IsWeightsName(name) || !name.ends_with(kIndexEnd)) continue;
    answer = Weights::kSome;
    indexed.insert(std::string(*WithoutExtension(name.substr(0, name.size() - kIndexEnd.size()))));
    JudgeIndex(review, folder, JoinPath(folder, name));
  }
  for (const std::string& name : names) {
    if (!IsWeightsName(name) || name.ends_with(kIndexEnd)) continue;
    answer = Weights::kSome;
    const std::optional<ShardName> shard = ParseShardName(name);
    if (shard.has_value()) {
      if (indexed.count(std::string(shard->stem)) == 0) loose.emplace(name, *shard);
      continue;
    }
    const std::string path = JoinPath(folder, name);
    if (CheckDataFile(review, path).kind != DataKind::kBad) review.Sound(path);
  }
  if (!loose.empty()) JudgeLooseShards(review, folder, loose);
  if (review.tree().Has(JoinPath(folder, "adapter_model.safetensors")) ||
      review.tree().Has(JoinPath(folder, "adapter_model.bin"))) {
    review.CheckJson(JoinPath(folder, "adapter_config.json"), [](const auto&, const auto&) { return true; });
  }
  return answer;
}

}  // namespace dgxrun::agent::ckpt
