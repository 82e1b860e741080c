// The shim: forks, binds, watches, stops and reaps the ranks of one attempt on one node, and enforces the
// lease. One thread, one event loop, no network, no disk but the run folder's tmpfs.
//
// It is the gang (gang.h, all rules) wired to real processes: this file has no rule of its own but how to
// find out that nothing lives any more, and in which order the last things are done:
//   kill ─▶ no descendant but the writer ─▶ writer has drained and ended (bounded) ─▶ waitid says
//   "no children" ─▶ cgroup removed ─▶ final.pb ─▶ event "gone" ─▶ Ack (bounded) ─▶ exit 0.
//
// Agents come and go: the first is on the inherited socket, later ones connect to shim.sock. The newest
// connection is the agent.
#ifndef DGXRUN_LAUNCHER_SHIM_H_
#define DGXRUN_LAUNCHER_SHIM_H_

#include <sys/types.h>

#include <string>

namespace dgxrun {

struct ShimOptions {
  std::string run_dir;
  int agent_fd = -1;
  int guard_pipe = -1;  // EOF: the guard is gone
  pid_t guard_pid = 0;
  bool terminal = false;  // fds 0 and 1 are the caller's
};

// Returns when the attempt is over, or the agent went away before it said what to start. 0: all is as it
// should be, nothing is left.
int RunShim(const ShimOptions& options);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_SHIM_H_
