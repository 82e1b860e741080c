// What a living attempt writes into its checkpoint folder, seen from one node: new checkpoints and their
// verdicts, the space that is left, and (--ckpt-keep) the removal of old ones. What may go the controller
// says, since only all nodes together know what is complete.
//
// Cheap: each look stats the folder and some known names; it lists only when the folder has changed, and
// judges only names that are new, or whose file has changed, or that were not complete when last judged. What
// lies there at the first look is taken as known.
//
// One look at a time, on a thread that may block; with the owner's rights.
#ifndef DGXRUN_AGENT_CKPT_WATCH_H_
#define DGXRUN_AGENT_CKPT_WATCH_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/source.h"
#include "agent/owner_files.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

struct CkptWatchOptions {
  std::string folder;
  OwnerIds owner;
  std::string tmpdir;      // TMPDIR of the ranks; empty: not known, nothing is said of it
  uint32_t keep_last = 0;  // 0: nothing is removed
  uint64_t keep_every = 0;
};

class CkptWatch {
 public:
  // Incomplete and changed within this time: it is being written.
  static constexpr absl::Duration kQuietTime = absl::Seconds(10);
  // An incomplete one that did not change for so long is not judged again.
  static constexpr absl::Duration kGivenUp = absl::Minutes(10);
  // Findings of one look; more wait for the next.
  static constexpr int kMaxFindings = 4;
  // Known files whose times are looked at, newest first: a script may write the same name again and again.
  static constexpr size_t kMaxRestat = 16;
  // Names that are remembered: as many as a listing reads.
  static constexpr size_t kMaxNames = ckpt::kMaxListedEntries;

  explicit CkptWatch(CkptWatchOptions options) : options_(std::move(options)) {}

  // What is new since the last look; has_checkpoints is false when nothing is.
  v1::AttemptProgress Look(absl::Time now);
  // Removes what may go; a note says what could not.
  v1::AttemptProgress Tidy(const v1::RemoveCheckpoints& remove, absl::Time now);

 private:
  struct Known {
    int64_t mtime_ns = 0;
    bool settled = true;  // need not be judged
    v1::Verdict told = v1::VERDICT_UNSPECIFIED;
  };
  void LearnNames(ckpt::Source& source, bool first);
  void Restat(ckpt::Source& source);
  void JudgeNew(ckpt::Source& source, absl::Time now, v1::AttemptProgress* news);
  void NoteTmpdir(ckpt::Source& source, v1::AttemptProgress* news);
  void NoteHeld(ckpt::Source& source, v1::AttemptProgress* news);

  const CkptWatchOptions options_;
  bool looked_ = false;
  int64_t folder_mtime_ns_ = 0;
  std::map<std::string, Known> names_;
  bool said_tmpdir_ = false;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_CKPT_WATCH_H_
