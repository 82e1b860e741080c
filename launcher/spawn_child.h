// The child half of starting a rank: from fork to execve. Everything here is async-signal-safe: no
// allocation, no locks, no library state. What it needs was laid out by the parent before the fork.
#ifndef DGXRUN_LAUNCHER_SPAWN_CHILD_H_
#define DGXRUN_LAUNCHER_SPAWN_CHILD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace dgxrun {

// How far a child came. kReady and kAffinity are no failures.
enum class SpawnStage : int32_t {
  kReady,     // all but the execve is done; waits at the gate
  kAffinity,  // sched_setaffinity failed: the rank runs unbound
  kSession,
  kOwner,
  kParentDeath,
  kChdir,
  kDescriptors,
  kProgram,  // no candidate for argv[0] is executable
  kExec,
};

// One write to the status pipe, small enough to be atomic.
struct SpawnMessage {
  int32_t index;
  SpawnStage stage;
  int32_t error;    // errno
  int32_t program;  // index of the candidate that was tried; -1: none
};

struct ChildPlan {
  int32_t index;
  const char* const* programs;  // null-terminated
  char* const* argv;
  char* const* envp;
  const char* cwd;  // null: stay
  bool set_owner;
  uid_t uid;
  gid_t gid;
  const gid_t* groups;
  size_t group_count;
  const unsigned long* cpus;
  size_t cpu_bytes;           // 0: not bound
  const char* oom_score_adj;  // text to write back; null: unchanged
  int stdin_fd, stdout_fd, stderr_fd;
  int status_fd;   // write end, close-on-exec
  int gate_fd;     // read end: one byte per rank lets it go; EOF: the parent is gone
  int gate_write;  // the parent's end, closed here, else EOF would never come
  int max_fd;      // highest open descriptor, for kernels without close_range
  pid_t parent;    // getpid() before the fork
};

[[noreturn]] void RunSpawnChild(const ChildPlan& plan);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_SPAWN_CHILD_H_
