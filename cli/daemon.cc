#include "cli/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/paths.h"
#include "launcher/base/sys.h"

namespace dgxrun::cli {
namespace {

constexpr absl::Duration kKillLimit = absl::Seconds(5);  // SIGKILL works at once, save in a hung system call
constexpr int kGonePollMs = 10;                          // only where the kernel has no pidfd

std::string BootId() {
  auto text = ReadFile("/proc/sys/kernel/random/boot_id");
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

// Start time in ticks since boot; "" when there is no such process, or it is dead and only not reaped.
std::string StartTime(int pid) {
  auto text = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) return "";
  const size_t paren = text->rfind(')');  // the name before it may hold anything
  if (paren == std::string::npos) return "";
  const std::vector<std::string> fields =
      absl::StrSplit(absl::ClippedSubstr(*text, paren + 1), ' ', absl::SkipEmpty());
  constexpr size_t kState = 0, kStart = 19;  // fields 3 and 22 of proc(5)
  if (fields.size() <= kStart || fields[kState] == "Z" || fields[kState] == "X") return "";
  return fields[kStart];
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int Spawn(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
          const std::string& log_file, pid_t* pid) {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_init(&actions);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int error = posix_spawn(pid, argv[0].c_str(), &actions, &attributes, Pointers(argv).data(),
                                Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

int Daemon::LivingPid() const {
  auto text = ReadFile(pid_file_);
  if (!text.ok()) return 0;
  const std::vector<std::string> fields = absl::StrSplit(absl::StripAsciiWhitespace(*text), ' ');
  int pid = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &pid) || pid <= 1) return 0;
  if (fields[2] != BootId() || fields[1].empty()) return 0;
  RealSys sys;
  ChildEnd ignored;
  sys.ReapOne(pid, &ignored);  // if we started it ourselves, it may be a zombie of ours
  return StartTime(pid) == fields[1] ? pid : 0;
}

absl::Status Daemon::Start(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                           const std::string& log_file) {
  pid_t pid = 0;
  const int error = Spawn(argv, environment, log_file, &pid);
  if (error != 0) return absl::InternalError(absl::StrCat("cannot start ", argv[0], ": ", strerror(error)));
  return WriteFileAtomically(pid_file_, absl::StrCat(pid, " ", StartTime(pid), " ", BootId(), "\n"));
}

bool Daemon::WaitGone(absl::Duration limit) const {
  const absl::Time deadline = absl::Now() + limit;
  RealSys sys;
  for (;;) {
    const int pid = LivingPid();
    if (pid == 0) return true;
    const UniqueFd pidfd = sys.PidfdOpen(pid);
    if (pidfd.valid() && LivingPid() != pid) return true;  // it ended before the pidfd was there
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd entry = {pidfd.get(), POLLIN, 0};
    const int wait_ms = pidfd.valid() ? static_cast<int>(left / absl::Milliseconds(1)) + 1 : kGonePollMs;
    poll(&entry, pidfd.valid() ? 1 : 0, wait_ms);
  }
}

absl::Status Daemon::End(absl::Duration grace) {
  RealSys sys;
  for (const auto& [signal, limit] : {std::pair{SIGTERM, grace}, {SIGKILL, kKillLimit}}) {
    const int pid = LivingPid();
    if (pid == 0) break;
    if (const int error = sys.Kill(pid, signal); error != 0 && error != ESRCH) {
      return absl::PermissionDeniedError(absl::StrCat("cannot end process ", pid, ": ", strerror(error)));
    }
    if (WaitGone(limit)) break;
  }
  if (const int pid = LivingPid(); pid != 0) {
    return absl::InternalError(absl::StrCat("process ", pid, " does not end"));
  }
  unlink(pid_file_.c_str());
  return absl::OkStatus();
}

}  // namespace dgxrun::cli
