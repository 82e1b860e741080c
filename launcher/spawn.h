// The parent half of starting the ranks of a node: fork all, wait until each says that only the execve is
// left, let them go together, and learn that all have exec'ed.
//
// Never blocks: a child may hang in chdir on a dead file system, and the lease must still be enforced. The
// caller watches status_fd and calls OnReadable until it says kStarted or kFailed; on kFailed it kills
// what there is.
#ifndef DGXRUN_LAUNCHER_SPAWN_H_
#define DGXRUN_LAUNCHER_SPAWN_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "launcher/base/sys.h"
#include "launcher/base/unique_fd.h"
#include "launcher/plan.h"
#include "launcher/spawn_child.h"

namespace dgxrun {

struct RankFds {
  int out = -1;
  int err = -1;
};

class Spawner {
 public:
  enum class Progress { kWaiting, kStarted, kFailed };

  Spawner(Sys& sys, const NodeSpawn& node) : sys_(sys), node_(node) {}

  // Forks. `groups` are the owner's; `oom_score_adj` is what the ranks shall have, empty: as it is;
  // `forked` is called with each pid while the child still waits (it joins its cgroup there).
  Progress Start(const std::vector<RankFds>& fds, int stdin_fd, const std::vector<gid_t>& groups,
                 const std::string& oom_score_adj, const std::function<void(pid_t)>& forked);

  int status_fd() const { return status_.get(); }
  Progress OnReadable();
  // A child ended before the gate opened without a word: killed by somebody.
  Progress Died(size_t index, const ChildEnd& end);

  bool released() const { return released_; }
  const std::vector<pid_t>& pids() const { return pids_; }
  const v1::SpawnFailed& failure() const { return failure_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Progress Fail(size_t index, const std::string& stage, int error, const std::string& detail);
  Progress Take(const SpawnMessage& message);

  Sys& sys_;
  const NodeSpawn& node_;
  UniqueFd status_, gate_;
  std::vector<pid_t> pids_;
  std::string pending_;  // bytes of a message not yet complete
  size_t ready_ = 0;
  bool released_ = false;
  bool failed_ = false;
  v1::SpawnFailed failure_;
  std::vector<std::string> warnings_;
};

// Supplementary groups of the account, by the system's user database; {gid} where it is not known there.
std::vector<gid_t> GroupsOf(const std::string& user, gid_t gid);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_SPAWN_H_
