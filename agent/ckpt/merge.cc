#include "agent/ckpt/merge.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace dgxrun::agent::ckpt {
namespace {

// Nothing is wrong with what lies on this node; other nodes may hold the rest.
bool OnlyMisses(const v1::CheckpointFinding& finding) {
  return finding.checkpoint().verdict() == v1::VERDICT_PARTIAL && finding.missing_size() > 0 &&
         finding.checkpoint().file() == finding.missing(0).name();
}

// Which verdict of several says the most about the whole. A higher one wins.
int Weight(v1::Verdict verdict) {
  switch (verdict) {
    case v1::VERDICT_WRITING:
      return 7;
    case v1::VERDICT_CORRUPT:
      return 6;
    case v1::VERDICT_PARTIAL:
      return 5;
    case v1::VERDICT_UNVERIFIED:
      return 4;
    case v1::VERDICT_UNCOMMITTED:
      return 3;
    case v1::VERDICT_WEIGHTS_ONLY:
      return 2;
    case v1::VERDICT_COMPLETE:
      return 1;
    case v1::VERDICT_UNSPECIFIED:
    case v1::Verdict_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Verdict_INT_MAX_SENTINEL_DO_NOT_USE_:
      return 0;
  }
  return 0;
}

using Group = std::vector<const v1::CheckpointFinding*>;
using Facts = std::map<std::string, uint64_t>;

// Says it in the words of the node that missed it first.
void SetPartial(const Group& group, const v1::FileFact& fact, v1::Checkpoint& checkpoint) {
  checkpoint.set_verdict(v1::VERDICT_PARTIAL);
  checkpoint.set_file(fact.name());
  checkpoint.set_reason(fact.name() + " lies on no node in full");
  for (const v1::CheckpointFinding* finding : group) {
    if (finding->checkpoint().file() != fact.name()) continue;
    checkpoint.set_reason(finding->checkpoint().reason());
    return;
  }
}

// `merged` is the finding of the node that knows most; the others' files may be what it misses.
void Cover(const Group& group, v1::CheckpointFinding& merged) {
  Facts present;
  for (const v1::CheckpointFinding* finding : group) {
    for (const v1::FileFact& fact : finding->present()) {
      uint64_t& bytes = present[fact.name()];
      bytes = std::max(bytes, fact.bytes());
    }
  }
  Facts wanted;
  for (const v1::CheckpointFinding* finding : group) {
    for (const v1::FileFact& fact : finding->missing()) {
      uint64_t& bytes = wanted[fact.name()];
      bytes = std::max(bytes, fact.bytes());
    }
  }
  Facts own;
  for (const v1::FileFact& fact : merged.present()) own[fact.name()] = fact.bytes();
  uint64_t bytes = merged.checkpoint().bytes();
  merged.clear_missing();
  for (const auto& [name, least] : wanted) {
    const auto found = present.find(name);
    if (found != present.end() && found->second >= least) {
      if (own.count(name) == 0) bytes += found->second;
      continue;
    }
    v1::FileFact& fact = *merged.add_missing();
    fact.set_name(name);
    fact.set_bytes(least);
  }
  merged.clear_present();
  for (const auto& [name, size] : present) {
    v1::FileFact& fact = *merged.add_present();
    fact.set_name(name);
    fact.set_bytes(size);
  }
  v1::Checkpoint& checkpoint = *merged.mutable_checkpoint();
  checkpoint.set_bytes(bytes);
  if (merged.missing_size() > 0) {
    SetPartial(group, merged.missing(0), checkpoint);
  } else {
    checkpoint.set_verdict(v1::VERDICT_COMPLETE);
    checkpoint.clear_file();
    checkpoint.clear_reason();
  }
}

v1::CheckpointFinding MergeGroup(const Group& group) {
  // Whoever has more of the metadata knows the format and the step; then whoever has more bytes.
  const v1::CheckpointFinding* lead = group.front();
  const v1::CheckpointFinding* worst = nullptr;
  bool all_only_miss = true;
  for (const v1::CheckpointFinding* finding : group) {
    const auto rank = [](const v1::CheckpointFinding& f) {
      return std::tuple(OnlyMisses(f) ? 0 : 1, !f.save_id().empty(), f.checkpoint().step() >= 0,
                        f.checkpoint().bytes());
    };
    if (rank(*finding) > rank(*lead)) lead = finding;
    if (OnlyMisses(*finding)) continue;
    all_only_miss = false;
    if (worst == nullptr || Weight(finding->checkpoint().verdict()) > Weight(worst->checkpoint().verdict())) {
      worst = finding;
    }
  }
  v1::CheckpointFinding merged = *lead;
  for (const v1::CheckpointFinding* finding : group) {
    v1::Checkpoint& checkpoint = *merged.mutable_checkpoint();
    checkpoint.set_mtime_unix_ns(std::max(checkpoint.mtime_unix_ns(), finding->checkpoint().mtime_unix_ns()));
    if (checkpoint.step() < 0) checkpoint.set_step(finding->checkpoint().step());
    if (!finding->save_id().empty() && !merged.save_id().empty() && finding->save_id() != merged.save_id()) {
      checkpoint.set_verdict(v1::VERDICT_CORRUPT);
      checkpoint.set_reason("the nodes hold the metadata of two different saves");
      return merged;
    }
  }
  if (all_only_miss) {
    Cover(group, merged);
  } else if (worst != lead) {
    merged.mutable_checkpoint()->set_verdict(worst->checkpoint().verdict());
    merged.mutable_checkpoint()->set_file(worst->checkpoint().file());
    merged.mutable_checkpoint()->set_reason(worst->checkpoint().reason());
  }
  return merged;
}

}  // namespace

bool NewerCheckpoint(const v1::Checkpoint& a, const v1::Checkpoint& b) {
  if (a.step() != b.step()) return a.step() > b.step();
  if (a.mtime_unix_ns() != b.mtime_unix_ns()) return a.mtime_unix_ns() > b.mtime_unix_ns();
  return a.path() < b.path();
}

std::vector<v1::CheckpointFinding> MergeFindings(
    const std::vector<std::vector<v1::CheckpointFinding>>& per_node) {
  std::map<std::string, Group> groups;
  for (const std::vector<v1::CheckpointFinding>& node : per_node) {
    for (const v1::CheckpointFinding& finding : node) {
      groups[finding.checkpoint().path()].push_back(&finding);
    }
  }
  std::vector<v1::CheckpointFinding> merged;
  merged.reserve(groups.size());
  for (const auto& [path, group] : groups) merged.push_back(MergeGroup(group));
  std::sort(merged.begin(), merged.end(),
            [](const auto& a, const auto& b) { return NewerCheckpoint(a.checkpoint(), b.checkpoint()); });
  return merged;
}

const char* VerdictName(v1::Verdict verdict) {
  switch (verdict) {
    case v1::VERDICT_COMPLETE:
      return "COMPLETE";
    case v1::VERDICT_WEIGHTS_ONLY:
      return "WEIGHTS_ONLY";
    case v1::VERDICT_UNCOMMITTED:
      return "UNCOMMITTED";
    case v1::VERDICT_PARTIAL:
      return "PARTIAL";
    case v1::VERDICT_CORRUPT:
      return "CORRUPT";
    case v1::VERDICT_UNVERIFIED:
      return "UNVERIFIED";
    case v1::VERDICT_WRITING:
      return "WRITING";
    case v1::VERDICT_UNSPECIFIED:
    case v1::Verdict_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Verdict_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return "?";
}

}  // namespace dgxrun::agent::ckpt
