// A cgroup that holds the ranks of one attempt, where we may make one. Having none is a normal case
// (ordinary users, containers, Slurm steps): the caller then kills by walking the process tree.
//
// v2 (also the controller-less mount of a hybrid system) is preferred: cgroup.kill ends all members at
// once. With a v1 freezer: freeze, kill, thaw. Neither is ever done to a cgroup that we did not make.
//
// Who made one holds a shared flock on its folder, for as long as it lives. So a cgroup that is empty because
// its ranks come later, or have just ended, differs from one whose shim and guard were both killed: nobody
// else would ever remove that.
#ifndef DGXRUN_LAUNCHER_CGROUP_H_
#define DGXRUN_LAUNCHER_CGROUP_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

inline constexpr char kCgroupPrefix[] = "dgxrun-";

// A folder in which this process may make cgroups and move processes into them; empty: there is none, or
// DGXRUN_NO_CGROUP=1 is in the environment. Tries it out, so call it once.
std::string FindCgroupParent();

// "v2", "v1" or "none", for Inventory.cgroup.
std::string CgroupKind(const std::string& parent);

// "<parent>/dgxrun-<job>.<attempt>.<node>": node is the first 8 characters of the mark ("<node id>:..."),
// since agents that share a machine, or only its cgroups, may each have a part of one attempt.
std::string CgroupPathOf(const std::string& parent, const std::string& job_id, uint32_t attempt,
                         const std::string& mark);

// Removes the empty cgroups of ours below `parent` that no process holds; returns how many. For an agent that
// starts: those of attempts that it knows are swept besides, with what still lives in them.
int RemoveAbandonedCgroups(const std::string& parent);

class Cgroup {
 public:
  // Makes the folder and holds it. AlreadyExists when a living one has the name.
  static absl::StatusOr<Cgroup> Make(const std::string& path);
  // One that an earlier process of ours made; InvalidArgument when the name is none of ours.
  static absl::StatusOr<Cgroup> Adopt(const std::string& path);

  const std::string& path() const { return path_; }
  absl::Status Add(pid_t pid);
  // One pass; with cgroup.kill that is all it takes. The caller reaps and calls again while not Empty().
  void KillAll();
  // Living members, of sub-cgroups too.
  std::vector<pid_t> Members() const;
  bool Empty() const { return Members().empty(); }
  // Removes it and the cgroups that members made below. Unavailable while something lives in it.
  absl::Status Remove();
  // Members that the kernel killed for want of memory so far; 0 where it is not counted.
  uint64_t OomKills() const;

 private:
  Cgroup(std::string path, bool v2) : path_(std::move(path)), v2_(v2) {}
  void KillMembers();

  std::string path_;
  bool v2_;
  UniqueFd hold_;  // of the maker
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_CGROUP_H_
