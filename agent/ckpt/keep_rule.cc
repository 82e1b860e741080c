#include "agent/ckpt/keep_rule.h"

#include <algorithm>

namespace dgxrun::agent::ckpt {

std::string NameOfPath(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::vector<v1::Checkpoint> SelectForRemoval(const std::vector<v1::CheckpointFinding>& findings,
                                             const std::set<std::string>& held, const KeepRule& rule) {
  std::vector<v1::Checkpoint> removed;
  uint32_t stay = std::max(rule.last, 1u);
  for (const v1::CheckpointFinding& finding : findings) {
    const v1::Checkpoint& checkpoint = finding.checkpoint();
    if (checkpoint.verdict() != v1::VERDICT_COMPLETE) continue;
    if (stay > 0) {
      --stay;
      continue;
    }
    const bool milestone = rule.every > 0 && checkpoint.step() >= 0 &&
                           static_cast<uint64_t>(checkpoint.step()) % rule.every == 0;
    if (!milestone && held.count(NameOfPath(checkpoint.path())) == 0) removed.push_back(checkpoint);
  }
  return removed;
}

}  // namespace dgxrun::agent::ckpt
