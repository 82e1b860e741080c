// Pointers: the small files by which frameworks choose what to load, and what they should say. Reads; the
// writing is the caller's (temp, fsync, rename, the old one kept).
//
// A pointer is found beside the checkpoints, in the root:
//   latest_checkpointed_iteration.txt  Megatron-LM: a decimal iteration, or "release". Unparseable: Megatron
//   prints a
//                                      line and exits with status 0; absent: training starts from random
//                                      weights.
//   latest                             DeepSpeed: a tag, which is the name of a folder. Absent:
//   load_checkpoint
//                                      returns None and the script usually starts from step 0.
//   latest_universal                   DeepSpeed's universal checkpoints: as latest.
//   dlrover_latest.txt                 DLRover: a decimal step.
#ifndef DGXRUN_AGENT_CKPT_TRACKER_H_
#define DGXRUN_AGENT_CKPT_TRACKER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent::ckpt {

enum class TrackerKind { kMegatron, kDeepSpeed, kDeepSpeedUniversal, kDlrover };

enum class TrackerState {
  kAbsent,
  kEmpty,       // 0 bytes or only white space: what a crash while it is written leaves
  kUnreadable,  // not what its framework can parse; too long; zeros; not a file
  kNames,       // `target` holds what it names
};

struct Tracker {
  TrackerKind kind = TrackerKind::kMegatron;
  TrackerState state = TrackerState::kAbsent;
  std::string file;  // its name in the root
  std::string text;  // what it says, without white space around; only printable
  std::string
      target;  // kNames: the name of the checkpoint in the root: "iter_0000300", "release", "global_step10"
};

// Bytes of a tracker that are read. The longest known one is a tag that the user chose: a file name, 255
// bytes.
inline constexpr size_t kMaxTrackerBytes = 4096;

std::string_view TrackerFileName(TrackerKind kind);
// nullopt: there is no such file.
Tracker ParseTracker(TrackerKind kind, std::optional<std::string_view> bytes);
// Those that exist in the root, and those that are absent although their framework's checkpoints are among
// the findings. Errors: kUnavailable and the like of the source; a tracker that may not be read is
// kUnreadable.
absl::StatusOr<std::vector<Tracker>> FindTrackers(Source& source,
                                                  const std::vector<v1::CheckpointFinding>& findings);

// What a tracker must say to name this checkpoint (no line end: all four frameworks write none). nullopt: no
// such tracker can name it, since its format or the form of its name is another.
std::optional<std::string> TrackerText(TrackerKind kind, const v1::Checkpoint& checkpoint);

// What should be done about a tracker before a start that is to load `chosen` (absent: nothing can be
// loaded).
struct TrackerRepair {
  enum class Action {
    kNone,       // it names the chosen one already, or no checkpoint of its framework was chosen
    kWrite,      // write `text` into it, keep the old one
    kMoveAside,  // nothing complete is left and what it says would end the start: rename it
  };
  Action action = Action::kNone;
  std::string text;
  std::string
      reason;  // one line for a person: "latest_checkpointed_iteration.txt is empty: ..."; empty for kNone
};
TrackerRepair RepairOf(const Tracker& tracker, const v1::Checkpoint* chosen);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_TRACKER_H_
