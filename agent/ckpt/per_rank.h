// Files of which each rank writes one: PREFIX<rank>SUFFIX. The format does not say how many there should be;
// a gap shows, and so does a count that is less than the world's size where that is known.
#ifndef DGXRUN_AGENT_CKPT_PER_RANK_H_
#define DGXRUN_AGENT_CKPT_PER_RANK_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/ckpt/review.h"

namespace dgxrun::agent::ckpt {

// Ranks that are named one by one when they are missing. A gap of more comes from a name that is no rank's.
inline constexpr int64_t kMaxNamedRanks = 65536;

class RankFiles {
 public:
  RankFiles(const Tree& tree, std::string_view folder, std::string_view prefix, std::string_view suffix);
  bool empty() const { return by_rank_.empty(); }
  std::vector<std::string> files() const;
  // Notes the ranks below the highest that have none, and those up to the world size of the options.
  void NoteMissing(Review& review, std::string_view reason) const;

 private:
  std::string path_;  // folder and prefix
  std::string suffix_;
  std::map<int64_t, std::string> by_rank_;
};

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_PER_RANK_H_
