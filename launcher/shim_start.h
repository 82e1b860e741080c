// How an agent brings a shim to life, and finds it again.
//
// StartShim executes `dgxrun-shim` with posix_spawn (the caller is threaded and links gRPC, so it must
// not fork by hand). That process is the guard: a subreaper in a session of its own, which forks the shim
// and kills every descendant if the shim dies. The returned socket is the shim's first connection; the
// caller sends ShimStart on it. Later agents connect to <run_dir>/shim.sock.
#ifndef DGXRUN_LAUNCHER_SHIM_START_H_
#define DGXRUN_LAUNCHER_SHIM_START_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

struct ShimStartOptions {
  std::string shim_binary;        // absolute path of dgxrun-shim
  std::string run_dir;            // of this (job, attempt); exists, on a tmpfs, mode 0700
  std::vector<int> held_ports;    // bound, not listening sockets; the shim holds copies through the attempt
  bool inherit_terminal = false;  // pass fds 0 and 1 on, for the one rank of a local job
};

struct StartedShim {
  UniqueFd socket;  // SOCK_STREAM, non-blocking, close-on-exec
  UniqueFd pidfd;   // of the guard, readable when it ends; invalid where the kernel has no pidfd_open
  int guard_pid = 0;
};

// Errors: InvalidArgument when <run_dir>/shim.sock would exceed the 107 bytes of sun_path; Internal
// with the errno text when the exec fails.
absl::StatusOr<StartedShim> StartShim(const ShimStartOptions& options);

// Connects to a living shim. NotFound when there is no socket or nobody listens.
absl::StatusOr<UniqueFd> ConnectShim(const std::string& run_dir);

// Kills and reaps whatever a dead shim and guard left of one attempt: its cgroup if it has one of ours,
// then children of this process (if it is a subreaper) and processes that carry DGXRUN_MARK=<mark>. Returns
// the number of processes that still live after `rounds` passes; 0 means gone.
struct SweepTarget {
  std::string mark;
  std::string cgroup;  // folder that the shim made; empty: none
};
int SweepStrays(const SweepTarget& target, int rounds);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_SHIM_START_H_
