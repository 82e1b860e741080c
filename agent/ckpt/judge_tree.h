// The parts of Judge() that a listing uses too.
#ifndef DGXRUN_AGENT_CKPT_JUDGE_TREE_H_
#define DGXRUN_AGENT_CKPT_JUDGE_TREE_H_

#include <string_view>

#include "absl/status/status.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/source.h"
#include "agent/ckpt/tree.h"

namespace dgxrun::agent::ckpt {

// Judges what was read already.
v1::CheckpointFinding JudgeTree(Source& source, std::string_view path, const Tree& tree,
                                const JudgeOptions& options);
// UNVERIFIED, with the reason.
v1::CheckpointFinding UnreadableFinding(Source& source, std::string_view path, const absl::Status& status);
// What one judgement may read.
void SetBudgetOf(const JudgeOptions& options, Source& source);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_JUDGE_TREE_H_
