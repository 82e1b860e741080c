// Which checkpoints of a folder may go, and removing them: `dgxrun ckpt prune` and --ckpt-keep.
//
// Only what is COMPLETE goes, only what is older than the newest complete one, and only what nothing holds:
// not the newest `last` complete ones, not those whose step is a multiple of `every`, not what is pinned, and
// not what a pointer file or a symbolic link of the folder names.
//
// A removal renames first (.dgxrun-pruned-<name>, which nobody takes for a checkpoint) and deletes then, so
// that no crash leaves half a checkpoint under its own name.
//
// With the file rights of the calling thread, by descriptors beneath the folder, without following links.
#ifndef DGXRUN_AGENT_CKPT_KEEP_H_
#define DGXRUN_AGENT_CKPT_KEEP_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent {

// Beside the checkpoints: one name a line.
inline constexpr std::string_view kPinsName = ".dgxrun-pins";
// A person pins some; a file longer than this is something else.
inline constexpr size_t kMaxPinsBytes = 1 << 20;

struct KeepRule {
  uint32_t last = 1;   // newest complete ones that stay; 0 counts as 1
  uint64_t every = 0;  // and those whose step is a multiple; 0: none
};

// No file: no pins. Errors: it cannot be read, or is too long; then nothing may be removed.
absl::StatusOr<std::set<std::string>> ReadPins(ckpt::Source& source);
absl::Status WritePins(int folder, const std::set<std::string>& pins);

// Pins, and the names that pointers and links of the folder hold.
absl::StatusOr<std::set<std::string>> HeldNames(ckpt::Source& source,
                                                const std::vector<v1::CheckpointFinding>& findings);

// `findings`: of the whole folder, newest first. `held`: names that stay. Pure.
std::vector<v1::Checkpoint> SelectForRemoval(const std::vector<v1::CheckpointFinding>& findings,
                                             const std::set<std::string>& held, const KeepRule& rule);

// The last part of a path.
std::string NameOfPath(const std::string& path);

// Removes a checkpoint of the folder. FailedPrecondition: it is one of several files that belong together, or
// the file system says no.
absl::Status RemoveCheckpoint(int folder, const v1::Checkpoint& checkpoint);
// Removes what an earlier removal that was cut short has left.
void RemoveLeftovers(int folder);

// All of the above: returns what was removed. `now` and `quiet_time` as for the judge.
absl::StatusOr<std::vector<v1::Checkpoint>> Prune(const std::string& folder, const KeepRule& rule,
                                                  absl::Duration quiet_time, bool dry_run);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_CKPT_KEEP_H_
