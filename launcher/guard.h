// The guard: parent of the shim, a subreaper of a few lines in a session of its own. It lives for the case
// that the shim dies: then all descendants (which the kernel gives to the guard) are killed and reaped, the
// cgroup is removed, and final.pb with cause SUPERVISOR_LOST is left, if the shim left none.
//
// It does nothing else, so there is little that can kill it. If it dies first, the shim sees the end of
// their pipe and does the same.
#ifndef DGXRUN_LAUNCHER_GUARD_H_
#define DGXRUN_LAUNCHER_GUARD_H_

#include <string>
#include <vector>

namespace dgxrun {

struct GuardOptions {
  std::string run_dir;
  int agent_fd = -1;
  std::vector<int> held_ports;
  bool terminal = false;
};

// `dgxrun-shim guard ...`. Returns the exit code of the process, in the guard and in the shim.
int RunGuard(const GuardOptions& options);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_GUARD_H_
