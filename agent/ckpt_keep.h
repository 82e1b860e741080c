// Removing checkpoints by the rule of agent/ckpt/keep_rule.h: `dgxrun ckpt prune` and --ckpt-keep. What is
// held: what is pinned, and what a pointer file or a symbolic link of the folder names.
//
// A removal renames first (.dgxrun-pruned-<name>, which nobody takes for a checkpoint) and deletes then, so
// that no crash leaves half a checkpoint under its own name.
//
// With the file rights of the calling thread, by descriptors beneath the folder, without following links.
#ifndef DGXRUN_AGENT_CKPT_KEEP_H_
#define DGXRUN_AGENT_CKPT_KEEP_H_

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/ckpt/keep_rule.h"
#include "agent/ckpt/source.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent {

using ckpt::KeepRule;
using ckpt::NameOfPath;
using ckpt::SelectForRemoval;

// Beside the checkpoints: one name a line.
inline constexpr std::string_view kPinsName = ".dgxrun-pins";
// A person pins some; a file longer than this is something else.
inline constexpr size_t kMaxPinsBytes = 1 << 20;

// No file: no pins. Errors: it cannot be read, or is too long; then nothing may be removed.
absl::StatusOr<std::set<std::string>> ReadPins(ckpt::Source& source);
absl::Status WritePins(int folder, const std::set<std::string>& pins);

// Pins, and the names that pointers and links of the folder hold.
absl::StatusOr<std::set<std::string>> HeldNames(ckpt::Source& source,
                                                const std::vector<v1::CheckpointFinding>& findings);

// Removes a checkpoint of the folder. FailedPrecondition: it is one of several files that belong together, or
// the file system says no.
absl::Status RemoveCheckpoint(int folder, const v1::Checkpoint& checkpoint);
// Removes what an earlier removal that was cut short has left.
void RemoveLeftovers(int folder);

// All of the above: returns what was removed. `now` and `quiet_time` as for the judge.
absl::StatusOr<std::vector<v1::Checkpoint>> Prune(const std::string& folder, const KeepRule& rule,
                                                  absl::Duration quiet_time, bool dry_run);

// What of `checkpoints`, each complete over all nodes, may go from this one's folder: what lies there as it
// was told and is not held. Its share may be less than the whole. What is gone already counts as removed.
absl::StatusOr<std::vector<v1::Checkpoint>> RemoveListed(const std::string& folder,
                                                         const std::vector<v1::Checkpoint>& checkpoints,
                                                         absl::Duration quiet_time, absl::Time now);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_CKPT_KEEP_H_
