#include "controller/core/tidy.h"

#include <set>
#include <string>
#include <vector>

#include "agent/ckpt/keep_rule.h"
#include "agent/ckpt/merge.h"
#include "controller/core/progress.h"

namespace dgxrun::core {
namespace {

namespace ckpt = agent::ckpt;

// A node that tells of no checkpoint so long after others told of the first one holds no folder: twice the
// time between an agent's looks, and a heartbeat.
constexpr absl::Duration kTimeToTell = absl::Seconds(10);

using Findings = std::map<std::string, const v1::CheckpointFinding*>;  // of one node, by path

v1::RemoveCheckpoints Address(const Job& job) {
  v1::RemoveCheckpoints remove;
  remove.set_job_id(job.id.str());
  remove.set_attempt(job.attempt->number.value());
  return remove;
}

// What the node has told of this attempt, and at its start.
Findings FindingsOf(const AttemptNode& share, const NodeProgress* progress) {
  Findings findings;
  for (const v1::CheckpointFinding& finding : share.findings) {
    const std::string& path = finding.checkpoint().path();
    if (progress == nullptr || progress->removed.count(path) == 0) findings[path] = &finding;
  }
  if (progress == nullptr) return findings;
  for (const auto& [path, finding] : progress->seen) findings[path] = &finding;
  return findings;
}

// The holders' word of the newest one; empty: somebody has not said it yet.
std::map<NodeId, const v1::Checkpoint*> Holders(const Attempt& attempt, const AttemptProgress& progress) {
  std::map<NodeId, const v1::Checkpoint*> holders;
  const std::string& path = progress.summary.newest().path();
  for (const auto& share : attempt.nodes) {
    auto node = progress.nodes.find(share->node);
    if (node == progress.nodes.end() || node->second.seen.empty()) {
      if (progress.newest_at - progress.first_at < kTimeToTell) return {};
      continue;
    }
    auto seen = node->second.seen.find(path);
    if (seen == node->second.seen.end()) return {};
    holders[share->node] = &seen->second.checkpoint();
  }
  return holders;
}

bool ShareOneFolder(const std::map<NodeId, const v1::Checkpoint*>& holders) {
  const v1::Checkpoint& first = *holders.begin()->second;
  for (const auto& [node, told] : holders) {
    const bool same = told->mtime_unix_ns() == first.mtime_unix_ns() && told->bytes() == first.bytes() &&
                      told->verdict() == first.verdict();
    if (!same) return false;
  }
  return true;
}

std::map<NodeId, v1::RemoveCheckpoints> FromEach(const Job& job, const AttemptProgress& progress) {
  std::vector<std::vector<v1::CheckpointFinding>> per_node;
  std::map<NodeId, Findings> known;
  std::set<std::string> held;
  for (const auto& share : job.attempt->nodes) {
    auto node = progress.nodes.find(share->node);
    Findings findings = FindingsOf(*share, node != progress.nodes.end() ? &node->second : nullptr);
    auto& list = per_node.emplace_back();
    for (const auto& [path, finding] : findings) list.push_back(*finding);
    known[share->node] = std::move(findings);
    if (node != progress.nodes.end()) held.insert(node->second.held.begin(), node->second.held.end());
  }
  const ckpt::KeepRule rule{job.spec.ckpt().keep_last(), job.spec.ckpt().keep_every()};
  std::map<NodeId, v1::RemoveCheckpoints> goes;
  for (const v1::Checkpoint& gone : ckpt::SelectForRemoval(ckpt::MergeFindings(per_node), held, rule)) {
    for (const auto& [node, findings] : known) {
      if (findings.count(gone.path()) == 0) continue;
      auto [it, fresh] = goes.try_emplace(node);
      if (fresh) it->second = Address(job);
      *it->second.add_checkpoints() = gone;
    }
  }
  return goes;
}

}  // namespace

bool KeepsFew(const Job& job) {
  return job.spec.ckpt().keep_last() > 0 && job.attempt && job.attempt->phase == Attempt::Phase::kRunning;
}

std::map<NodeId, v1::RemoveCheckpoints> WhatGoes(const Contacts& contacts, const Job& job) {
  if (!KeepsFew(job)) return {};
  const AttemptProgress* progress = ProgressOf(contacts, job);
  // Only what this attempt has saved makes older ones superfluous.
  if (progress == nullptr || progress->summary.complete() == 0) return {};
  const std::map<NodeId, const v1::Checkpoint*> holders = Holders(*job.attempt, *progress);
  if (holders.empty()) return {};
  if (!ShareOneFolder(holders)) return FromEach(job, *progress);
  // In the order of ranks, so that it is the same node each time.
  for (const auto& share : job.attempt->nodes) {
    if (holders.count(share->node) == 0) continue;
    v1::RemoveCheckpoints remove = Address(job);
    remove.set_by_rule(true);
    *remove.add_checkpoints() = progress->summary.newest();  // why: each new one is a new word
    return {{share->node, std::move(remove)}};
  }
  return {};
}

}  // namespace dgxrun::core
