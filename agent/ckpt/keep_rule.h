// Which checkpoints may go. Pure.
//
// Only what is COMPLETE goes, only what is older than the newest complete one, and only what nothing holds:
// not the newest `last` complete ones, not those whose step is a multiple of `every`, and not what is held by
// its name.
#ifndef DGXRUN_AGENT_CKPT_KEEP_RULE_H_
#define DGXRUN_AGENT_CKPT_KEEP_RULE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent::ckpt {

struct KeepRule {
  uint32_t last = 1;   // newest complete ones that stay; 0 counts as 1
  uint64_t every = 0;  // and those whose step is a multiple; 0: none
};

// `findings`: of the whole folder, newest first. `held`: names that stay.
std::vector<v1::Checkpoint> SelectForRemoval(const std::vector<v1::CheckpointFinding>& findings,
                                             const std::set<std::string>& held, const KeepRule& rule);

// The last part of a path.
std::string NameOfPath(const std::string& path);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_KEEP_RULE_H_
