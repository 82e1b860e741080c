#include "agent/ckpt/per_rank.h"

#include <algorithm>

#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {

RankFiles::RankFiles(const Tree& tree, std::string_view folder, std::string_view prefix,
                     std::string_view suffix)
    : path_(JoinPath(folder, prefix)), suffix_(suffix) {
  tree.ForEachIn(folder, [&](std::string_view name, const FileInfo&) {
    const std::optional<int64_t> rank = NumberBetween(name, prefix, suffix);
    if (rank.has_value()) by_rank_.emplace(*rank, JoinPath(folder, name));
  });
}

std::vector<std::string> RankFiles::files() const {
  std::vector<std::string> files;
  for (const auto& [rank, file] : by_rank_) files.push_back(file);
  return files;
}

void RankFiles::NoteMissing(Review& review, std::string_view reason) const {
  if (by_rank_.empty()) return;
  const int64_t count = by_rank_.rbegin()->first + 1;
  for (int64_t rank = 0; rank < std::min(count, kMaxNamedRanks); ++rank) {
    if (by_rank_.count(rank) == 0) {
      review.Missing(Cat({path_, Str(static_cast<uint64_t>(rank)), suffix_}), 0, std::string(reason));
    }
  }
}

}  // namespace dgxrun::agent::ckpt
