// Joins what each node found about the same checkpoints. Pure.
//
// Findings of the same path are of the same checkpoint. Where the folder is shared all nodes say the same and
// nothing is doubled. Where it is not, what one node misses may lie on another: a file counts if it is
// `present` anywhere with at least the bytes asked for. The joined finding:
//   any node's verdict that is worse than "files are missing here" (WRITING, CORRUPT, damage): that one
//   the metadata of two saves (save_id): CORRUPT
//   a node to which nothing is missing: its verdict
//   all miss something: COMPLETE if everything lies somewhere, else PARTIAL, and `file` is the first that
//   does not
// A finding says "files are missing here, and nothing else is wrong" by PARTIAL with `file` naming
// missing(0). Nodes may see a folder at different moments: the newest mtime counts. A node that reports
// nothing for a path has nothing there.
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
