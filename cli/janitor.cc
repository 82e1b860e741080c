#include "cli/janitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/paths.h"
#include "launcher/base/sys.h"

extern char** environ;

namespace dgxrun::cli {
namespace {

// Keeps `keep` only.
void CloseOthers(int keep) {
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) {
    if (null >= 0 && fd != keep) dup2(null, fd);
  }
  // Listed first: the listing has an fd of its own.
  for (const std::string& name : ListFolder("/proc/self/fd")) {
    const int fd = atoi(name.c_str());
    if (fd > 2 && fd != keep) close(fd);
  }
}

// /proc/PID/environ shows the memory of these strings.
void ForgetEnvironment() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    memset(*entry, 0, strlen(*entry));
  }
}

void RemoveAllBut(const std::string& folder, const std::string& keep) {
  std::error_code ignored;
  for (const std::string& name : ListFolder(folder)) {
    if (name != keep) std::filesystem::remove_all(absl::StrCat(folder, "/", name), ignored);
  }
}

bool IsEmpty(const std::string& folder) {
  std::error_code error;
  const bool empty = std::filesystem::is_empty(folder, error);
  return empty || static_cast<bool>(error);
}

// dgxrun was killed: its shims are killing the ranks now, and each removes its own folder after that.
void AwaitShims(const std::string& folder) {
  RemoveAllBut(folder, kShimsFolder);
  const std::string shims = absl::StrCat(folder, "/", kShimsFolder);
  const UniqueFd notify(inotify_init1(IN_CLOEXEC));
  inotify_add_watch(notify.get(), shims.c_str(), IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF);
  const absl::Time deadline = absl::Now() + kJanitorLimit;
  while (!IsEmpty(shims)) {
    const absl::Duration left = deadline - absl::Now();
    pollfd entry = {notify.get(), POLLIN, 0};
    if (left <= absl::ZeroDuration() ||
        poll(&entry, 1, static_cast<int>(left / absl::Milliseconds(1)) + 1) < 0)
      break;
    char events[4096];
    if (entry.revents != 0 && read(notify.get(), events, sizeof events) <= 0) break;
  }
}

void Work(int pipe, const std::string& folder) {
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  CloseOthers(pipe);
  ForgetEnvironment();
  char byte;
  ssize_t n = 0;
  while ((n = read(pipe, &byte, 1)) < 0 && errno == EINTR) {
  }
  const bool orderly = n == 1;
  if (!orderly) AwaitShims(folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace

absl::StatusOr<Janitor> Janitor::Start(const std::string& folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  UniqueFd theirs(ends[0]), ours(ends[1]);
  RealSys sys;
  auto pid = sys.Fork([&] { Work(theirs.get(), folder); });
  if (!pid.ok()) return pid.status();
  return Janitor(std::move(ours), *pid);
}

void Janitor::Finish() {
  const char byte = 1;
  [[maybe_unused]] const ssize_t n = write(pipe_.get(), &byte, 1);
  pipe_.Reset();
  RealSys sys;
  const UniqueFd pidfd = sys.PidfdOpen(pid_);
  if (!pidfd.valid()) return;  // an old kernel: it ends by itself, and init reaps it
  pollfd entry = {pidfd.get(), POLLIN, 0};
  poll(&entry, 1, static_cast<int>(kJanitorLimit / absl::Milliseconds(1)));
  ChildEnd end;
  sys.ReapOne(pid_, &end);
}

}  // namespace dgxrun::cli
