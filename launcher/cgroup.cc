#include "launcher/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/base/sys.h"
#include "launcher/base/unique_fd.h"
#include "launcher/run_dir.h"

namespace dgxrun {
namespace {

// A freezer that does not freeze at once (a vfork parent waits for a child outside) is killed unfrozen.
constexpr int kFreezeReads = 20;
// A sweeper may remove a folder before its maker holds it, but finds it held the next time.
constexpr int kMakeTries = 3;

absl::Status WriteControl(const std::string& path, const std::string& text) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, path);
  if (write(fd.get(), text.data(), text.size()) < 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

std::vector<std::string> Subfolders(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return names;
  while (dirent* entry = readdir(dir)) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
      names.push_back(absl::StrCat(path, "/", entry->d_name));
  }
  closedir(dir);
  return names;
}

void AppendMembers(const std::string& path, std::vector<pid_t>* members) {
  for (const std::string& folder : Subfolders(path)) AppendMembers(folder, members);
  absl::StatusOr<std::string> text = ReadWholeFile(absl::StrCat(path, "/cgroup.procs"));
  if (!text.ok()) return;
  for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    int pid;
    if (absl::SimpleAtoi(line, &pid) && pid > 0) members->push_back(pid);
  }
}

int RemoveTree(const std::string& path) {
  for (const std::string& folder : Subfolders(path)) RemoveTree(folder);
  return rmdir(path.c_str()) == 0 || errno == ENOENT ? 0 : errno;
}

// "1" : v1, "2": v2, none: not a cgroup file system.
std::optional<bool> IsV2(const std::string& path) {
  struct statfs info;
  if (statfs(path.c_str(), &info) != 0) return std::nullopt;
  if (info.f_type == CGROUP2_SUPER_MAGIC) return true;
  if (info.f_type == CGROUP_SUPER_MAGIC) return false;
  return std::nullopt;
}

bool NameIsOurs(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash != std::string::npos && absl::StartsWith(path.substr(slash + 1), kCgroupPrefix);
}

// The folder, flocked; invalid when another holds it, or when it was removed meanwhile.
UniqueFd Hold(const std::string& path, int how) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat held, there;
  if (!fd.valid() || flock(fd.get(), how | LOCK_NB) != 0) return UniqueFd();
  if (fstat(fd.get(), &held) != 0 || stat(path.c_str(), &there) != 0 || held.st_ino != there.st_ino)
    return UniqueFd();
  return fd;
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0) return absl::OkStatus();
  if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("mkdir ", path));
  // An empty one was left by a crash.
  if (RemoveTree(path) == 0 && mkdir(path.c_str(), 0755) == 0) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " exists"));
}

// Whether a cgroup can be made here and a process of ours moved into it.
bool Usable(const std::string& folder) {
  if (!IsV2(folder).has_value()) return false;
  absl::StatusOr<Cgroup> probe = Cgroup::Make(absl::StrCat(folder, "/", kCgroupPrefix, "probe-", getpid()));
  if (!probe.ok()) return false;
  const bool writable = access(absl::StrCat(folder, "/cgroup.procs").c_str(), W_OK) == 0;
  return probe->Remove().ok() && writable;
}

struct Mount {
  std::string root;
  std::string point;
};

// Where this process is in a hierarchy, as a folder: the mount's own root is cut off.
std::string OwnFolder(const Mount& mount, const std::string& own) {
  absl::string_view rest = own;
  if (mount.root != "/") absl::ConsumePrefix(&rest, mount.root);
  return absl::StrCat(mount.point, rest == "/" ? "" : rest);
}

}  // namespace

std::string FindCgroupParent() {
  const char* no = getenv("DGXRUN_NO_CGROUP");
  if (no != nullptr && strcmp(no, "1") == 0) return "";
  absl::StatusOr<std::string> mounts = ReadWholeFile("/proc/self/mountinfo");
  absl::StatusOr<std::string> self = ReadWholeFile("/proc/self/cgroup");
  if (!mounts.ok() || !self.ok()) return "";
  std::string own_v2 = "/", own_freezer = "/";
  for (absl::string_view line : absl::StrSplit(*self, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) own_v2 = fields[2];
    for (absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller == "freezer") own_freezer = fields[2];
    }
  }
  std::vector<std::string> v2, v1;
  for (absl::string_view line : absl::StrSplit(*mounts, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> left = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const Mount mount{left[3], left[4]};
    if (right[0] == "cgroup2") v2.push_back(OwnFolder(mount, own_v2));
    for (absl::string_view option : absl::StrSplit(right[2], ',')) {
      if (right[0] == "cgroup" && option == "freezer") v1.push_back(OwnFolder(mount, own_freezer));
    }
  }
  for (const auto& folders : {v2, v1}) {
    for (const std::string& folder : folders) {
      if (Usable(folder)) return folder;
    }
  }
  return "";
}

std::string CgroupKind(const std::string& parent) {
  if (parent.empty()) return "none";
  const std::optional<bool> v2 = IsV2(parent);
  return !v2.has_value() ? "none" : *v2 ? "v2" : "v1";
}

std::string CgroupPathOf(const std::string& parent, const std::string& job_id, uint32_t attempt,
                         const std::string& mark) {
  constexpr size_t kNodeChars = 8;  // 32 bits of a UUID: enough for the few agents that share a cgroup
  const std::string node = mark.substr(0, std::min(mark.find(':'), kNodeChars));
  return absl::StrCat(parent, "/", kCgroupPrefix, job_id, ".", attempt, ".", node);
}

int RemoveAbandonedCgroups(const std::string& parent) {
  if (parent.empty()) return 0;
  int removed = 0;
  for (const std::string& folder : Subfolders(parent)) {
    if (!NameIsOurs(folder)) continue;
    const UniqueFd hold = Hold(folder, LOCK_EX);
    if (!hold.valid()) continue;
    absl::StatusOr<Cgroup> cgroup = Cgroup::Adopt(folder);
    if (cgroup.ok() && cgroup->Empty() && cgroup->Remove().ok()) ++removed;
  }
  return removed;
}

absl::StatusOr<Cgroup> Cgroup::Make(const std::string& path) {
  if (!NameIsOurs(path)) return absl::InvalidArgumentError(absl::StrCat(path, " is no name of ours"));
  UniqueFd hold;
  for (int i = 0; i < kMakeTries && !hold.valid(); ++i) {
    if (absl::Status status = MakeFolder(path); !status.ok()) return status;
    hold = Hold(path, LOCK_SH);
  }
  // Not held, where the file system has no flock: no worse than with none.
  absl::StatusOr<Cgroup> cgroup = Adopt(path);
  if (cgroup.ok()) cgroup->hold_ = std::move(hold);
  return cgroup;
}

absl::StatusOr<Cgroup> Cgroup::Adopt(const std::string& path) {
  if (!NameIsOurs(path)) return absl::InvalidArgumentError(absl::StrCat(path, " is no name of ours"));
  const std::optional<bool> v2 = IsV2(path);
  if (!v2.has_value()) return absl::NotFoundError(absl::StrCat(path, " is no cgroup"));
  return Cgroup(path, *v2);
}

absl::Status Cgroup::Add(pid_t pid) {
  return WriteControl(absl::StrCat(path_, "/cgroup.procs"), absl::StrCat(pid));
}

void Cgroup::KillMembers() {
  RealSys sys;
  for (pid_t pid : Members()) sys.Kill(pid, SIGKILL);
}

void Cgroup::KillAll() {
  if (v2_) {
    // cgroup.kill is absent before 5.14.
    if (!WriteControl(absl::StrCat(path_, "/cgroup.kill"), "1").ok()) KillMembers();
    return;
  }
  const std::string control = absl::StrCat(path_, "/freezer.state");
  if (!WriteControl(control, "FROZEN").ok()) {
    KillMembers();
    return;
  }
  // Reading the state is what moves the kernel's check on.
  for (int i = 0; i < kFreezeReads; ++i) {
    absl::StatusOr<std::string> state = ReadWholeFile(control);
    if (!state.ok() || absl::StartsWith(*state, "FROZEN")) break;
  }
  KillMembers();
  // The signals pend until then.
  (void)WriteControl(control, "THAWED").ok();
}

std::vector<pid_t> Cgroup::Members() const {
  std::vector<pid_t> members;
  AppendMembers(path_, &members);
  return members;
}

absl::Status Cgroup::Remove() {
  const int error = RemoveTree(path_);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("rmdir ", path_, ": ", strerror(error)));
}

uint64_t Cgroup::OomKills() const {
  absl::StatusOr<std::string> text = ReadWholeFile(absl::StrCat(path_, "/memory.events"));
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    uint64_t count;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return 0;
}

}  // namespace dgxrun
