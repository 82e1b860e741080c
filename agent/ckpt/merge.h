// Joins what each node found about the same checkpoints. Pure.
//
// Findings of the same path are of the same checkpoint. Where the folder is shared all nodes say the same and
// nothing is doubled. Where it is not, the node that has the metadata (for DCP the one with .metadata) names
// in `missing` what does not lie on it, and the others' `present` may cover that: a file counts if it is
// there with at least the bytes asked for. The joined finding:
//   WRITING   if any node says so
//   CORRUPT   if any node says so, or two nodes' metadata come from two saves (save_id)
//   the verdict of the node that has the metadata, once nothing is missing any more: COMPLETE; else PARTIAL,
//   and `file` is the first that lies on no node (or is damaged where it lies)
// Nodes may see a folder at different moments: the newest mtime and the largest size count. A node that
// reports nothing for a path has nothing there.
#ifndef DGXRUN_AGENT_CKPT_MERGE_H_
#define DGXRUN_AGENT_CKPT_MERGE_H_

#include <vector>

#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent::ckpt {

// Newest first: by step, then mtime; then by path, so that the order of the nodes does not matter.
std::vector<v1::CheckpointFinding> MergeFindings(
    const std::vector<std::vector<v1::CheckpointFinding>>& per_node);

// The order of listings: whether `a` goes before `b`.
bool NewerCheckpoint(const v1::Checkpoint& a, const v1::Checkpoint& b);

// "COMPLETE", "WEIGHTS_ONLY", ...: the words of docs/checkpoints.md.
const char* VerdictName(v1::Verdict verdict);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_MERGE_H_
