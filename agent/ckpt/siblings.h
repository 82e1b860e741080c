// What one checkpoint of a listing tells about another: where a format does not say which files it should
// have, those of the others do. Pure.
#ifndef DGXRUN_AGENT_CKPT_SIBLINGS_H_
#define DGXRUN_AGENT_CKPT_SIBLINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/ckpt/judge.h"
#include "agent/ckpt/tree.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent::ckpt {

// Checkpoints with more files than this are not compared: their formats have metadata.
inline constexpr size_t kMaxComparedFiles = 4096;

struct Listed {
  v1::CheckpointFinding finding;
  // Names of its files, its own step replaced by "#", sorted; empty: not compared.
  std::vector<std::string> names;
  // As many files of ranks as one of the job's world sizes: it lacks none of them.
  bool all_ranks = false;
};

// `world_sizes`: of the options.
Listed ToCompare(const Tree& tree, v1::CheckpointFinding finding, const std::vector<uint32_t>& world_sizes);

// `listed` newest first. A COMPLETE checkpoint that lacks files of an older COMPLETE one of its format
// becomes PARTIAL, unless a third one lacks just the same: then the script has changed what it saves.
void CompareSiblings(std::vector<Listed>& listed);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_SIBLINGS_H_
