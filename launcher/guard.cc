#include "launcher/guard.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/base/sys.h"
#include "launcher/base/unique_fd.h"
#include "launcher/cgroup.h"
#include "launcher/run_dir.h"
#include "launcher/shim.h"

namespace dgxrun {
namespace {

constexpr int kOk = 0;
constexpr int kOsError = 71;
// A killed process frees its cgroup a moment after it was reaped.
constexpr int kCgroupPasses = 100;

void SetSignals() {
  // The starter may have blocked some, and blocked or ignored ones are inherited.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  for (int signal :
       {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU}) {
    ::signal(signal, SIG_IGN);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

void RemoveCgroup(const std::string& run_dir, Sys& sys) {
  absl::StatusOr<std::string> path = ReadWholeFile(absl::StrCat(run_dir, "/", kCgroupName));
  if (path.ok() && !path->empty()) {
    absl::StatusOr<Cgroup> cgroup = Cgroup::Adopt(*path);
    if (cgroup.ok()) cgroup->KillAll();
    KillDescendants(sys);
    for (int i = 0; cgroup.ok() && i < kCgroupPasses && !cgroup->Remove().ok(); ++i) {
      cgroup->KillAll();
      KillDescendants(sys);
    }
    return;
  }
  KillDescendants(sys);
}

// What the shim had reported, ended by "gone".
void LeaveFinal(const std::string& run_dir) {
  if (ReadFinal(run_dir).ok()) return;
  absl::StatusOr<v1::ShimFinal> final = ReadJournal(run_dir);
  if (!final.ok()) return;  // it had not been told what to start
  std::map<uint32_t, v1::RankReport> ranks;
  uint64_t last = 0;
  for (const v1::ShimEvent& event : final->events()) {
    last = event.number();
    for (const v1::RankReport& rank : event.started().ranks()) ranks[rank.rank()] = rank;
    if (event.has_exited()) ranks[event.exited().rank()] = event.exited();
  }
  v1::ShimEvent* event = final->add_events();
  event->set_number(last + 1);
  v1::AttemptGone* gone = event->mutable_gone();
  for (const auto& [number, rank] : ranks) *gone->add_ranks() = rank;
  gone->set_cause(v1::CAUSE_SUPERVISOR_LOST);
  gone->set_detail("the shim died; its ranks were killed");
  gone->set_log_dir(final->log_dir());
  (void)WriteFinal(run_dir, *final).ok();  // a full tmpfs: the agent finds neither, and says the same
}

int RunShimProcess(const GuardOptions& options, int guard_pipe, pid_t guard) {
  prctl(PR_SET_NAME, "dgxrun-shim");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  ShimOptions shim;
  shim.run_dir = options.run_dir;
  shim.agent_fd = options.agent_fd;
  shim.guard_pipe = guard_pipe;
  shim.guard_pid = guard;
  shim.terminal = options.terminal;
  return RunShim(shim);
}

void DropDescriptors(const GuardOptions& options) {
  close(options.agent_fd);  // the agent must see the shim's end, not ours
  for (int fd : options.held_ports) close(fd);
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd : {STDIN_FILENO, STDOUT_FILENO}) dup2(null.get(), fd);
}

}  // namespace

int RunGuard(const GuardOptions& options) {
  setsid();  // fails only for a group leader, which a spawned process is not
  SetSignals();
  prctl(PR_SET_NAME, "dgxrun-guard");
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return kOsError;
  fcntl(options.agent_fd, F_SETFD, FD_CLOEXEC);
  for (int fd : options.held_ports) fcntl(fd, F_SETFD, FD_CLOEXEC);
  const pid_t agent = getppid();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return kOsError;
  UniqueFd shim_end(ends[0]), guard_end(ends[1]);

  RealSys sys;
  const pid_t guard = getpid();
  absl::StatusOr<pid_t> shim = sys.Fork([&] {
    guard_end.Reset();
    _exit(RunShimProcess(options, shim_end.get(), guard));
  });
  if (!shim.ok()) return kOsError;
  shim_end.Reset();
  DropDescriptors(options);

  ChildEnd end;
  do {
    // A shim that somebody stopped would obey neither a Stop nor its lease.
    if (sys.ReapOrContinue(&end) == Reaped::kNoChildren) break;
  } while (end.pid != *shim);
  if (end.pid == *shim && end.signal == 0 && end.exit_code == kOk) return kOk;

  RemoveCgroup(options.run_dir, sys);
  LeaveFinal(options.run_dir);
  for (const char* name : {kShimSocketName, kJournalName, kCgroupName}) {
    unlink(absl::StrCat(options.run_dir, "/", name).c_str());
  }
  // In local mode nobody comes to read it.
  absl::StatusOr<v1::ShimFinal> final = ReadFinal(options.run_dir);
  if (getppid() != agent && final.ok() && final->dies_with_agent()) RemoveAttemptDir(options.run_dir);
  return kOk;
}

}  // namespace dgxrun
