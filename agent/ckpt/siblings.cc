#include "agent/ckpt/siblings.h"

#include <algorithm>
#include <optional>

#include "agent/ckpt/format.h"
#include "agent/ckpt/names.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

bool IsCompared(std::string_view format) {
  return format == kTorch || format == kSafetensors || format == kTrainer || format == kAccelerate ||
         format == kMegatron || format == kMegatronDist;
}

bool IsRankFile(std::string_view name) {
  return NumberBetween(name, "rng_state_", ".pth").has_value() ||
         NumberBetween(name, "random_states_", ".pkl").has_value();
}

std::string WithoutStep(std::string_view name, int64_t step) {
  if (IsRankFile(name) || name.starts_with("mp_rank_")) return std::string(name);  // those numbers are ranks
  std::string out;
  for (size_t at = 0; at < name.size();) {
    size_t end = at;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    if (end == at) {
      out.push_back(name[at++]);
      continue;
    }
    const std::string_view digits = name.substr(at, end - at);
    out += ParseDigits(digits) == step ? "#" : std::string(digits);
    at = end;
  }
  return out;
}

// The first name of `of_more` that `of_fewer` lacks, if it is a true subset.
std::optional<std::string> Lacks(const Listed& of_fewer, const Listed& of_more) {
  const std::vector<std::string>& fewer = of_fewer.names;
  const std::vector<std::string>& more = of_more.names;
  if (fewer.size() >= more.size()) return std::nullopt;
  if (!std::includes(more.begin(), more.end(), fewer.begin(), fewer.end())) return std::nullopt;
  for (const std::string& name : more) {
    if (of_fewer.all_ranks && IsRankFile(name)) continue;
    if (!std::binary_search(fewer.begin(), fewer.end(), name)) return name;
  }
  return std::nullopt;
}

bool Comparable(const Listed& a, const Listed& b) {
  return !b.names.empty() && b.finding.checkpoint().verdict() == v1::VERDICT_COMPLETE &&
         a.finding.checkpoint().format() == b.finding.checkpoint().format();
}

}  // namespace

Listed ToCompare(const Tree& tree, v1::CheckpointFinding finding, const std::vector<uint32_t>& world_sizes) {
  Listed listed;
  listed.finding = std::move(finding);
  const v1::Checkpoint& checkpoint = listed.finding.checkpoint();
  if (!tree.is_folder() || tree.files().size() > kMaxComparedFiles || !IsCompared(checkpoint.format()))
    return listed;
  const auto ranks = std::count_if(tree.files().begin(), tree.files().end(),
                                   [](const auto& file) { return IsRankFile(file.first); });
  listed.all_ranks = std::find(world_sizes.begin(), world_sizes.end(), ranks) != world_sizes.end();
  for (const auto& [path, info] : tree.files()) {
    const bool counts = HasDataExtension(path) || path.ends_with(".json");
    if (counts) listed.names.push_back(WithoutStep(path, checkpoint.step()));
  }
  std::sort(listed.names.begin(), listed.names.end());
  return listed;
}

void CompareSiblings(std::vector<Listed>& listed) {
  // Decided for all before any verdict changes.
  std::vector<std::pair<size_t, std::string>> found;
  std::vector<size_t> from;
  for (size_t i = 0; i < listed.size(); ++i) {
    const Listed& one = listed[i];
    if (one.names.empty() || one.finding.checkpoint().verdict() != v1::VERDICT_COMPLETE) continue;
    bool another_like_it = false;
    std::optional<std::string> lacks;
    size_t older = 0;
    for (size_t j = 0; j < listed.size() && !another_like_it; ++j) {
      if (j == i || !Comparable(one, listed[j])) continue;
      another_like_it = listed[j].names == one.names;
      if (j < i || lacks.has_value()) continue;
      lacks = Lacks(one, listed[j]);
      older = j;
    }
    if (another_like_it || !lacks.has_value()) continue;
    found.emplace_back(i, *lacks);
    from.push_back(older);
  }
  for (size_t n = 0; n < found.size(); ++n) {
    v1::Checkpoint& checkpoint = *listed[found[n].first].finding.mutable_checkpoint();
    const std::string& path = listed[from[n]].finding.checkpoint().path();
    std::string name = found[n].second;
    if (const size_t hash = name.find('#'); hash != std::string::npos) {
      name.replace(hash, 1, std::to_string(checkpoint.step()));
    }
    checkpoint.set_verdict(v1::VERDICT_PARTIAL);
    checkpoint.set_file(name);
    checkpoint.set_reason(Cat({"missing: ", path.substr(path.rfind('/') + 1), " has it"}));
    v1::FileFact& fact = *listed[found[n].first].finding.add_missing();
    fact.set_name(name);
  }
}

}  // namespace dgxrun::agent::ckpt
