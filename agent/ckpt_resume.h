// A job's checkpoint folder before an attempt: what lies in it, and putting it in order for what was chosen.
//
// FindCheckpoints lists and judges (first Prepare). PutInOrder does what the controller decided (second
// Prepare): what is named in `poisoned` is renamed to <name>.dgxrun-quarantine[.N], never deleted; the
// pointer files of frameworks that follow one (tracker.h) are made to name the chosen checkpoint, by a
// temporary file, fsync and rename, with the old one kept as <file>.bak. Both may be repeated, and be done by
// several nodes of a shared folder at once: what is done already is no change and gives no line.
//
// With the file rights of the calling thread; beneath the folder by descriptors, without following links.
// Blocks as long as the file system does.
#ifndef DGXRUN_AGENT_CKPT_RESUME_H_
#define DGXRUN_AGENT_CKPT_RESUME_H_

#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/ckpt/source.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

// Ends a judgement from another thread.
class JudgeStop {
 public:
  void Stop();
  // Stops `source` at once if it is too late already; null: none any more.
  void Watch(ckpt::Source* source);

 private:
  std::mutex mutex_;
  ckpt::Source* source_ = nullptr;  // under mutex_
  bool stopped_ = false;            // under mutex_
};

// Findings that travel to the controller: it needs one that is complete, and a person the newest bad ones.
inline constexpr size_t kMaxFindings = 16;
// Complete ones after which a listing ends: the choice, and one to fall back to.
inline constexpr size_t kCompleteWanted = 2;
// On a restart the newest complete one is read in full, CRCs checked, if it is no larger than this: what was
// damaged in its middle costs one failed load, and reading takes some seconds.
inline constexpr uint64_t kMaxDeepBytes = uint64_t{1} << 30;

// FileFacts in one answer. Only what is missing here and may lie on another node needs them; with these a
// message stays far below its limit of 16 MiB.
inline constexpr int kMaxFacts = 50000;
// Drops the facts that no other node's finding can complete; `left` counts down over several findings.
void KeepUsefulFacts(v1::CheckpointFinding* finding, int* left);

// Fills findings and checkpoint. A folder that does not exist has none. Errors name the folder: not a folder,
// not readable, too many names.
absl::Status FindCheckpoints(const v1::Prepare& prepare, JudgeStop* stop, v1::Prepared* prepared);

// Fills notes and, so that the controller knows which question it answers, checkpoint.path.
void PutInOrder(const v1::Prepare& prepare, JudgeStop* stop, v1::Prepared* prepared);

// Replaces `file` in the folder by one with this text; the old one becomes <file>.bak. For PutInOrder and its
// tests.
absl::Status ReplacePointer(int folder, const std::string& file, const std::string& text);
// The new name of `name` in the folder, or "" when it is not there (any more).
absl::StatusOr<std::string> MoveAside(int folder, const std::string& name);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_CKPT_RESUME_H_
