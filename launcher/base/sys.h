// The processes of the machine, as a seam: the only file of ours that names fork, waitid, kill and pidfd.
//
// RealSys asks the kernel and hides what an old kernel (4.18) or a sandbox lacks. FakeSys keeps a table of
// processes that behaves alike as far as its users can see: orphans go to the nearest subreaper, a dead
// child stays a zombie until reaped, a process in one group gets the group's signals. One contract test
// runs on both.
//
// A pid is only held as long as the process behind it is an unreaped child of the caller, or it is read
// from /proc and used at once.
#ifndef DGXRUN_LAUNCHER_BASE_SYS_H_
#define DGXRUN_LAUNCHER_BASE_SYS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

// How a child ended, as waitid tells it.
struct ChildEnd {
  pid_t pid = 0;
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;
  bool core_dumped = false;
};

enum class Reaped {
  kOne,   // a child was reaped
  kNone,  // children live, none has ended
  kNoChildren,
};

class Sys {
 public:
  virtual ~Sys() = default;

  // Runs `child` in a new process and then ends it with status 70. The caller must be single-threaded.
  virtual absl::StatusOr<pid_t> Fork(const std::function<void()>& child) = 0;

  // Readable when the process ends. Invalid where the kernel has none (ENOSYS, or EPERM of a sandbox).
  virtual UniqueFd PidfdOpen(pid_t pid) = 0;

  // 0 or an errno; ESRCH when there is none.
  virtual int Kill(pid_t pid, int signal) = 0;
  virtual int KillGroup(pid_t leader, int signal) = 0;

  // Never blocks, unless `block`: then until a child ends or there is none.
  virtual Reaped Reap(bool block, ChildEnd* end) = 0;

  // Direct children, zombies included. A child that is being born or dies meanwhile may be missed, so one
  // answer "none" proves nothing; Reap's kNoChildren does.
  virtual std::vector<pid_t> Children(pid_t pid) = 0;

  // Process group of a process; 0 when it is gone.
  virtual pid_t Group(pid_t pid) = 0;

  virtual pid_t Self() = 0;
};

class RealSys final : public Sys {
 public:
  absl::StatusOr<pid_t> Fork(const std::function<void()>& child) override;
  UniqueFd PidfdOpen(pid_t pid) override;
  int Kill(pid_t pid, int signal) override;
  int KillGroup(pid_t leader, int signal) override;
  Reaped Reap(bool block, ChildEnd* end) override;
  std::vector<pid_t> Children(pid_t pid) override;
  pid_t Group(pid_t pid) override;
  pid_t Self() override;

  // Of a child of the caller; false when it has not ended or is none of the caller's.
  bool ReapOne(pid_t pid, ChildEnd* end);
  // Blocks until a child ends; one that was stopped meanwhile (SIGSTOP) is continued at once.
  Reaped ReapOrContinue(ChildEnd* end);
};

class FakeSys final : public Sys {
 public:
  static constexpr pid_t kSelf = 100;

  FakeSys();
  // The child's function is not run: what the process does is said by the calls below.
  absl::StatusOr<pid_t> Fork(const std::function<void()>& child) override;
  UniqueFd PidfdOpen(pid_t) override { return UniqueFd(); }
  int Kill(pid_t pid, int signal) override;
  int KillGroup(pid_t leader, int signal) override;
  Reaped Reap(bool block, ChildEnd* end) override;
  std::vector<pid_t> Children(pid_t pid) override;
  pid_t Group(pid_t pid) override;
  pid_t Self() override { return kSelf; }

  // Makes `parent` fork; the child is in its group unless `new_session`.
  pid_t Spawn(pid_t parent, bool new_session);
  void IgnoreTerm(pid_t pid);
  // Called when a process is about to die of SIGKILL: a last fork, as a fork bomb does.
  void OnKill(pid_t pid, std::function<void()> callback);
  void Exit(pid_t pid, int code);
  size_t living() const;

 private:
  struct Process {
    pid_t parent = 0;
    pid_t group = 0;
    bool zombie = false;
    bool ignores_term = false;
    std::function<void()> on_kill;
    ChildEnd end;
  };
  void End(pid_t pid, ChildEnd end);

  std::map<pid_t, Process> processes_;
  pid_t next_pid_ = 1000;
};

// All descendants of `root` but those in `except` (and what descends from them), parents first.
std::vector<pid_t> Descendants(Sys& sys, pid_t root, const std::vector<pid_t>& except);

// One pass: SIGKILL to every descendant of the caller. Returns how many there were. What was forked
// meanwhile is met in the next pass: its parent is dead by then, so it is the caller's (a subreaper's) child.
size_t KillDescendantsOnce(Sys& sys, const std::vector<pid_t>& except);

// Kills and reaps until no child is left; blocks as long as one does not die.
void KillDescendants(Sys& sys);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BASE_SYS_H_
