#include "launcher/base/sys.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace dgxrun {
namespace {

constexpr int kChildFellThrough = 70;  // EX_SOFTWARE: a child function that returned

std::string ReadSmallFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  char buffer[4096];
  ssize_t n;
  while ((n = read(fd.get(), buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(n));
  return text;
}

std::vector<pid_t> NumericNames(const std::string& folder) {
  std::vector<pid_t> numbers;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return numbers;
  while (dirent* entry = readdir(dir)) {
    if (isdigit(static_cast<unsigned char>(entry->d_name[0]))) numbers.push_back(atoi(entry->d_name));
  }
  closedir(dir);
  return numbers;
}

struct ProcStat {
  pid_t parent = 0;
  pid_t group = 0;
};

// The name in field 2 may hold anything, so fields are counted from the last ')'.
ProcStat ReadStat(pid_t pid) {
  ProcStat stat;
  const std::string text = ReadSmallFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return stat;
  char state;
  if (sscanf(text.c_str() + end + 1, " %c %d %d", &state, &stat.parent, &stat.group) != 3) return ProcStat();
  return stat;
}

// CONFIG_PROC_CHILDREN is absent in some kernels; then parents are read from every process.
std::vector<pid_t> ChildrenByScan(pid_t pid) {
  std::vector<pid_t> children;
  for (pid_t other : NumericNames("/proc")) {
    if (ReadStat(other).parent == pid) children.push_back(other);
  }
  return children;
}

bool HasProcChildren() {
  return access(absl::StrCat("/proc/self/task/", getpid(), "/children").c_str(), R_OK) == 0;
}

ChildEnd FromSiginfo(const siginfo_t& info) {
  ChildEnd end;
  end.pid = info.si_pid;
  if (info.si_code == CLD_EXITED) {
    end.exit_code = info.si_status;
  } else {
    end.signal = info.si_status;
    end.core_dumped = info.si_code == CLD_DUMPED;
  }
  return end;
}

}  // namespace

absl::StatusOr<pid_t> RealSys::Fork(const std::function<void()>& child) {
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid == 0) {
    child();
    _exit(kChildFellThrough);
  }
  return pid;
}

UniqueFd RealSys::PidfdOpen(pid_t pid) {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#else
  (void)pid;
  return UniqueFd();
#endif
}

int RealSys::Kill(pid_t pid, int signal) { return pid > 0 && kill(pid, signal) == 0 ? 0 : errno; }

int RealSys::KillGroup(pid_t leader, int signal) {
  if (leader <= 1) return EINVAL;  // kill(-1) would be everybody
  return kill(-leader, signal) == 0 ? 0 : errno;
}

Reaped RealSys::Reap(bool block, ChildEnd* end) {
  while (true) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    if (waitid(P_ALL, 0, &info, WEXITED | (block ? 0 : WNOHANG)) == 0) {
      if (info.si_pid == 0) return Reaped::kNone;
      *end = FromSiginfo(info);
      return Reaped::kOne;
    }
    if (errno == ECHILD) return Reaped::kNoChildren;
    if (errno != EINTR) return Reaped::kNone;
  }
}

Reaped RealSys::ReapOrContinue(ChildEnd* end) {
  while (true) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED) == 0) {
      if (info.si_code != CLD_STOPPED) {
        *end = FromSiginfo(info);
        return Reaped::kOne;
      }
      Kill(info.si_pid, SIGCONT);
    } else if (errno != EINTR) {
      return errno == ECHILD ? Reaped::kNoChildren : Reaped::kNone;
    }
  }
}

bool RealSys::ReapOne(pid_t pid, ChildEnd* end) {
  siginfo_t info;
  memset(&info, 0, sizeof info);
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return false;
  *end = FromSiginfo(info);
  return true;
}

std::vector<pid_t> RealSys::Children(pid_t pid) {
  static const bool has_children_file = HasProcChildren();
  if (!has_children_file) return ChildrenByScan(pid);
  std::vector<pid_t> children;
  const std::string folder = absl::StrCat("/proc/", pid, "/task");
  for (pid_t task : NumericNames(folder)) {
    const std::string text = ReadSmallFile(absl::StrCat(folder, "/", task, "/children"));
    const char* at = text.c_str();
    char* next;
    for (long child = strtol(at, &next, 10); next != at; child = strtol(at, &next, 10)) {
      children.push_back(static_cast<pid_t>(child));
      at = next;
    }
  }
  return children;
}

pid_t RealSys::Group(pid_t pid) { return ReadStat(pid).group; }

pid_t RealSys::Self() { return getpid(); }

FakeSys::FakeSys() { processes_[kSelf].group = kSelf; }

absl::StatusOr<pid_t> FakeSys::Fork(const std::function<void()>&) { return Spawn(kSelf, false); }

pid_t FakeSys::Spawn(pid_t parent, bool new_session) {
  const pid_t pid = next_pid_++;
  Process& process = processes_[pid];
  process.parent = parent;
  process.group = new_session ? pid : processes_.at(parent).group;
  return pid;
}

void FakeSys::IgnoreTerm(pid_t pid) { processes_.at(pid).ignores_term = true; }

void FakeSys::OnKill(pid_t pid, std::function<void()> callback) {
  processes_.at(pid).on_kill = std::move(callback);
}

void FakeSys::Exit(pid_t pid, int code) {
  ChildEnd end;
  end.exit_code = code;
  End(pid, end);
}

void FakeSys::End(pid_t pid, ChildEnd end) {
  Process& process = processes_.at(pid);
  if (process.zombie) return;
  end.pid = pid;
  process.zombie = true;
  process.end = end;
  for (auto& [other, p] : processes_) {
    if (p.parent == pid) p.parent = kSelf;  // the fake's one subreaper
  }
}

int FakeSys::Kill(pid_t pid, int signal) {
  auto it = processes_.find(pid);
  if (it == processes_.end()) return ESRCH;
  Process& process = it->second;
  if (process.zombie || signal == 0 || signal == SIGCONT) return 0;
  if (signal == SIGTERM && process.ignores_term) return 0;
  if (signal == SIGKILL && process.on_kill) {
    auto last = std::move(process.on_kill);
    process.on_kill = nullptr;
    last();
  }
  ChildEnd end;
  end.signal = signal;
  End(pid, end);
  return 0;
}

int FakeSys::KillGroup(pid_t leader, int signal) {
  std::vector<pid_t> members;
  for (const auto& [pid, process] : processes_) {
    if (process.group == leader && pid != kSelf) members.push_back(pid);
  }
  for (pid_t pid : members) Kill(pid, signal);
  return members.empty() ? ESRCH : 0;
}

Reaped FakeSys::Reap(bool block, ChildEnd* end) {
  bool any = false;
  for (auto it = processes_.begin(); it != processes_.end(); ++it) {
    if (it->second.parent != kSelf) continue;
    any = true;
    if (!it->second.zombie) continue;
    *end = it->second.end;
    processes_.erase(it);
    return Reaped::kOne;
  }
  if (any && block) abort();  // a real call would hang: nothing in a fake ends by itself
  return any ? Reaped::kNone : Reaped::kNoChildren;
}

std::vector<pid_t> FakeSys::Children(pid_t pid) {
  std::vector<pid_t> children;
  for (const auto& [child, process] : processes_) {
    if (process.parent == pid) children.push_back(child);
  }
  return children;
}

pid_t FakeSys::Group(pid_t pid) {
  auto it = processes_.find(pid);
  return it == processes_.end() ? 0 : it->second.group;
}

size_t FakeSys::living() const {
  return static_cast<size_t>(std::count_if(processes_.begin(), processes_.end(), [](const auto& entry) {
    return !entry.second.zombie && entry.first != kSelf;
  }));
}

std::vector<pid_t> Descendants(Sys& sys, pid_t root, const std::vector<pid_t>& except) {
  std::vector<pid_t> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    for (pid_t child : sys.Children(found[i])) {
      const bool skip = std::find(except.begin(), except.end(), child) != except.end() ||
                        std::find(found.begin(), found.end(), child) != found.end();
      if (!skip) found.push_back(child);
    }
  }
  found.erase(found.begin());
  return found;
}

size_t KillDescendantsOnce(Sys& sys, const std::vector<pid_t>& except) {
  const std::vector<pid_t> all = Descendants(sys, sys.Self(), except);
  for (pid_t pid : all) sys.Kill(pid, SIGKILL);
  return all.size();
}

void KillDescendants(Sys& sys) {
  while (true) {
    KillDescendantsOnce(sys, {});
    ChildEnd end;
    // Wait for one death, then take all that are there: each round meets what the dead had forked.
    if (sys.Reap(true, &end) == Reaped::kNoChildren) return;
    while (sys.Reap(false, &end) == Reaped::kOne) {
    }
  }
}

}  // namespace dgxrun
