#include "launcher/spawn_child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace dgxrun {
namespace {

constexpr int kExitNotStarted = 127;  // what a shell says of a command that it could not start
constexpr int kStatusFd = 3;
constexpr int kGateFd = 4;
constexpr int kFirstUnwantedFd = 5;
constexpr int kScratchFd = 16;  // above all targets: no dup2 overwrites a source

class Child {
 public:
  explicit Child(const ChildPlan& plan) : plan_(plan), status_fd_(plan.status_fd) {}

  [[noreturn]] void Run() {
    close(plan_.gate_write);
    RestoreOomScore();
    if (setsid() < 0) Fail(SpawnStage::kSession);
    ResetSignals();
    Bind();
    if (plan_.set_owner) ChangeOwner();
    // A change of uid clears the parent-death signal, so it is set after that.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(SpawnStage::kParentDeath);
    if (getppid() != plan_.parent) _exit(kExitNotStarted);  // died before: nobody would tell us
    if (plan_.cwd != nullptr && chdir(plan_.cwd) != 0) Fail(SpawnStage::kChdir);
    PlaceDescriptors();
    const int program = FindProgram();
    Say(SpawnStage::kReady, 0, program);
    PassGate();
    execve(plan_.programs[program], plan_.argv, plan_.envp);
    Say(SpawnStage::kExec, errno, program);
    _exit(kExitNotStarted);
  }

 private:
  void Say(SpawnStage stage, int error, int program) {
    const SpawnMessage message{plan_.index, stage, error, program};
    ssize_t n;
    do {
      n = write(status_fd_, &message, sizeof message);
    } while (n < 0 && errno == EINTR);
  }

  [[noreturn]] void Fail(SpawnStage stage) {
    Say(stage, errno, -1);
    _exit(kExitNotStarted);
  }

  void RestoreOomScore() {
    if (plan_.oom_score_adj == nullptr) return;
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    // A failure leaves the rank better protected than it should be; no reason not to run it.
    if (write(fd, plan_.oom_score_adj, strlen(plan_.oom_score_adj)) < 0) errno = 0;
    close(fd);
  }

  void ResetSignals() {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }

  void Bind() {
    if (plan_.cpu_bytes == 0) return;
    if (syscall(SYS_sched_setaffinity, 0, plan_.cpu_bytes, plan_.cpus) != 0) {
      Say(SpawnStage::kAffinity, errno, -1);
    }
  }

  void ChangeOwner() {
    if (setgroups(plan_.group_count, plan_.groups) != 0) Fail(SpawnStage::kOwner);
    if (setresgid(plan_.gid, plan_.gid, plan_.gid) != 0) Fail(SpawnStage::kOwner);
    if (setresuid(plan_.uid, plan_.uid, plan_.uid) != 0) Fail(SpawnStage::kOwner);
  }

  int Raise(int fd) {
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, kScratchFd);
    if (high < 0) Fail(SpawnStage::kDescriptors);
    return high;
  }

  void PlaceDescriptors() {
    const int in = Raise(plan_.stdin_fd), out = Raise(plan_.stdout_fd), err = Raise(plan_.stderr_fd);
    const int gate = Raise(plan_.gate_fd);
    status_fd_ = Raise(plan_.status_fd);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0 ||
        dup3(gate, kGateFd, O_CLOEXEC) < 0 || dup3(status_fd_, kStatusFd, O_CLOEXEC) < 0) {
      Fail(SpawnStage::kDescriptors);
    }
    status_fd_ = kStatusFd;
    // Inherited ones that are not close-on-exec too: a rank sees 0, 1 and 2 and nothing else.
#ifdef SYS_close_range
    if (syscall(SYS_close_range, static_cast<unsigned>(kFirstUnwantedFd), ~0u, 0) == 0) return;
#endif
    const int last = plan_.max_fd + kScratchFd;  // the copies made above are higher than max_fd
    for (int fd = kFirstUnwantedFd; fd <= last; ++fd) close(fd);
  }

  int FindProgram() {
    int error = ENOENT;
    int named = 0;
    for (int i = 0; plan_.programs[i] != nullptr; ++i) {
      if (access(plan_.programs[i], X_OK) == 0) return i;
      if (errno != ENOENT && errno != ENOTDIR && error == ENOENT) {
        error = errno;  // one that is there but may not be executed says more
        named = i;
      }
    }
    Say(SpawnStage::kProgram, error, named);
    _exit(kExitNotStarted);
  }

  void PassGate() {
    char byte;
    ssize_t n;
    do {
      n = read(kGateFd, &byte, 1);
    } while (n < 0 && errno == EINTR);
    if (n != 1) _exit(kExitNotStarted);
  }

  const ChildPlan& plan_;
  int status_fd_;
};

}  // namespace

void RunSpawnChild(const ChildPlan& plan) { Child(plan).Run(); }

}  // namespace dgxrun
