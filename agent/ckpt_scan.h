// Finds the newest checkpoint of a folder by names and times; what is inside is not judged here.
//
// The number of a name is the last run of digits before the extension ("step_200.pt" -> 200,
// "epoch=3-step=400.ckpt" -> 400, "checkpoint-500" -> 500). Names with a number go before names without; then
// the higher number wins, then the later mtime. Hidden names and names that end in ".tmp" or ".partial" never
// count; neither does anything but files and folders.
#ifndef DGXRUN_AGENT_CKPT_SCAN_H_
#define DGXRUN_AGENT_CKPT_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent {

// Entries that a scan reads. A network folder lists some 10,000 entries a second, and a start waits for it.
inline constexpr size_t kMaxCheckpointEntries = 50000;

bool CountsAsCheckpoint(std::string_view name);
// -1: no number, or one that does not fit.
int64_t CheckpointStep(std::string_view name);

// nullopt: the folder is missing or holds none. Errors name the folder: not a folder, not readable, more than
// `max_entries`. Runs with the file rights of the calling thread; may block as long as the file system does.
absl::StatusOr<std::optional<v1::Checkpoint>> NewestCheckpoint(const std::string& folder,
                                                               size_t max_entries = kMaxCheckpointEntries);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_CKPT_SCAN_H_
