// SweepStrays of shim_start.h: the last resort, when shim and guard died together and the agent, a
// subreaper, was given what they left.
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/base/sys.h"
#include "launcher/cgroup.h"
#include "launcher/run_dir.h"
#include "launcher/shim_start.h"

namespace dgxrun {
namespace {

// How long one pass waits for what it killed; a killed process is gone in a few ms unless it hangs in the
// kernel.
constexpr int kPassMs = 20;
constexpr char kShimName[] = "dgxrun-shim";

bool IsShimProcess(pid_t pid) {
  char target[PATH_MAX];
  const ssize_t n = readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), target, sizeof target);
  if (n <= 0) return false;
  absl::string_view exe(target, static_cast<size_t>(n));
  absl::string_view name = exe.substr(exe.rfind('/') + 1);
  return absl::StartsWith(name, kShimName);  // "dgxrun-shim (deleted)" after an upgrade
}

// Children that no living shim answers for. A rank has a session of its own, and all that descends from
// it; helpers of the agent share the agent's, shims and guards are told by their executable.
// Only a subreaper is given them: a dgxrun with an embedded agent is none, and has children of its own.
void AddOrphans(Sys& sys, std::set<pid_t>* strays) {
  int subreaper = 0;
  if (prctl(PR_GET_CHILD_SUBREAPER, &subreaper) != 0 || subreaper == 0) return;
  const pid_t session = getsid(0);
  for (pid_t child : sys.Children(sys.Self())) {
    const pid_t theirs = getsid(child);
    if (theirs < 0 || theirs == session || IsShimProcess(child)) continue;
    strays->insert(child);
    for (pid_t below : Descendants(sys, child, {})) strays->insert(below);
  }
}

void AddMarked(const std::string& mark, std::set<pid_t>* strays) {
  if (mark.empty()) return;
  const std::string wanted = absl::StrCat("DGXRUN_MARK=", mark);
  DIR* dir = opendir("/proc");
  if (dir == nullptr) return;
  while (dirent* entry = readdir(dir)) {
    int pid;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == getpid()) continue;
    absl::StatusOr<std::string> environment = ReadWholeFile(absl::StrCat("/proc/", pid, "/environ"));
    if (!environment.ok() || environment->empty()) continue;
    for (absl::string_view variable : absl::StrSplit(*environment, '\0')) {
      if (variable == wanted) strays->insert(pid);
    }
  }
  closedir(dir);
}

bool IsZombie(pid_t pid) {
  absl::StatusOr<std::string> stat = ReadWholeFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!stat.ok()) return true;  // gone
  const size_t end = stat->rfind(')');
  return end != std::string::npos && end + 2 < stat->size() && (*stat)[end + 2] == 'Z';
}

void WaitForEnd(const std::vector<UniqueFd>& pidfds) {
  std::vector<pollfd> polls;
  for (const UniqueFd& fd : pidfds) {
    if (fd.valid()) polls.push_back(pollfd{fd.get(), POLLIN, 0});
  }
  if (polls.empty()) {
    poll(nullptr, 0, kPassMs);  // no pidfds in this kernel: the pass itself is the wait
    return;
  }
  for (pollfd& one : polls) poll(&one, 1, kPassMs);
}

}  // namespace

int SweepStrays(const SweepTarget& target, int rounds) {
  RealSys sys;
  std::set<pid_t> left;
  for (int round = 0; round < std::max(rounds, 1); ++round) {
    if (!target.cgroup.empty()) {
      absl::StatusOr<Cgroup> cgroup = Cgroup::Adopt(target.cgroup);
      if (cgroup.ok()) cgroup->KillAll();
    }
    std::set<pid_t> strays;
    AddOrphans(sys, &strays);
    AddMarked(target.mark, &strays);
    std::vector<UniqueFd> pidfds;
    for (pid_t pid : strays) {
      pidfds.push_back(sys.PidfdOpen(pid));
      sys.Kill(pid, SIGKILL);
    }
    if (!strays.empty()) WaitForEnd(pidfds);
    ChildEnd end;
    left.clear();
    for (pid_t pid : strays) {
      if (!sys.ReapOne(pid, &end) && !IsZombie(pid)) left.insert(pid);
    }
    bool cgroup_gone = true;
    if (!target.cgroup.empty()) {
      absl::StatusOr<Cgroup> cgroup = Cgroup::Adopt(target.cgroup);
      cgroup_gone = !cgroup.ok() || cgroup->Remove().ok();
      if (!cgroup_gone) {
        for (pid_t pid : cgroup->Members()) left.insert(pid);
      }
    }
    if (strays.empty() && cgroup_gone) return 0;
  }
  return static_cast<int>(left.size());
}

}  // namespace dgxrun
