// How far the living attempts of this node have come, for the heartbeats.
//
// Steps: each rank gets a small file on a tmpfs (DGXRUN_PROGRESS_FILE), which the `dgxrun` Python module, or
// any program, may write its step to: "<step> [<first step>]" in decimal, at offset 0. The agent keeps the
// files open and reads them once a second; that never blocks. The files are the owner's, their folder is not,
// so a rank can write into its file and do nothing else:
//
//   <run dir>.steps/<job>.<attempt>/rank_<r>   and plan.pb, what a later agent needs to go on watching
//
// Checkpoints: ckpt_watch.h, every kFolderPeriod, on a thread that may block; one that hangs is not joined by
// another.
//
// Owner: the agent's loop.
#ifndef DGXRUN_AGENT_PROGRESS_WATCH_H_
#define DGXRUN_AGENT_PROGRESS_WATCH_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/agent_core.h"
#include "agent/ckpt_watch.h"
#include "agent/file_tasks.h"
#include "agent/owner_files.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::agent {

inline constexpr char kProgressVariable[] = "DGXRUN_PROGRESS_FILE";

class ProgressWatch {
 public:
  // Heartbeats come once a second.
  static constexpr absl::Duration kStepPeriod = absl::Seconds(1);
  // A save that is seen some seconds late changes nothing; thousands of nodes may look at one folder.
  static constexpr absl::Duration kFolderPeriod = absl::Seconds(4);

  using Tell = std::function<void(v1::AttemptProgress)>;
  ProgressWatch(EventLoop* loop, FileTasks* tasks, const std::string& run_dir, OwnerPolicy policy, Tell tell);

  // Before the shim is started: makes the files and names them in the plan. Without them (no space) the
  // attempt runs without steps.
  void Begin(const AttemptKey& key, const OwnerIds& owner, v1::ShimStart* start);
  // Attempts that live when an agent starts; the folders of others are removed.
  void Restore(const std::vector<AttemptKey>& living);
  // --ckpt-keep: removes what the controller says may go (CkptWatch::Tidy), after a look that is under way. A
  // later word takes the place of one that still waits.
  void Tidy(const AttemptKey& key, v1::RemoveCheckpoints remove);
  // Now, since the attempt may be ending.
  void ReadSteps(const AttemptKey& key);
  void End(const AttemptKey& key);

 private:
  struct RankFile {
    uint32_t rank = 0;
    UniqueFd fd;
    bool known = false;
    int64_t first = 0, step = 0, changed_ns = 0;
  };
  struct Attempt {
    std::vector<RankFile> ranks;
    std::shared_ptr<CkptWatch> folder;  // null: no checkpoint folder
    bool looking = false;
    std::optional<v1::RemoveCheckpoints> tidy;  // waits for the look that is under way
    EventLoop::TimerId step_timer = 0, folder_timer = 0;
  };

  std::string FolderOf(const AttemptKey& key) const;
  bool MakeFiles(const AttemptKey& key, const OwnerIds& owner, const v1::NodePlan& plan, Attempt* attempt);
  void Watch(const AttemptKey& key, Attempt attempt);
  void StepsDue(const AttemptKey& key);
  void FolderDue(const AttemptKey& key);
  void TidyDue(const AttemptKey& key);
  void Looked(const AttemptKey& key, v1::AttemptProgress news);
  static void RemoveFolder(const std::string& path);

  EventLoop* const loop_;
  FileTasks* const tasks_;
  const std::string base_;
  const OwnerPolicy policy_;
  const Tell tell_;
  std::map<AttemptKey, Attempt> attempts_;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_PROGRESS_WATCH_H_
