#include "agent/owner_files.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun::agent {
namespace {

// From linux/openat2.h, which Debian 12 has but an older set of headers may not.
struct OpenHow {
  uint64_t flags, mode, resolve;
};
constexpr uint64_t kResolveNoSymlinks = 0x04;
constexpr uint64_t kResolveBeneath = 0x08;
constexpr long kSysOpenat2 = 437;
constexpr long kSysFaccessat2 = 439;

constexpr size_t kPasswdBytes = 64 * 1024;  // an entry with all its strings; sysconf's hint is 1 KiB
constexpr int kMaxGroups = 65536;           // NGROUPS_MAX

absl::Status Errno(const std::string& path) {
  const std::string text = absl::StrCat(path, ": ", strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
}

// Not setgroups(2) of glibc: that changes every thread of the process.
bool SetThreadGroups(const std::vector<gid_t>& groups) {
  return syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

// setfsuid returns the old id and tells no error: ask again.
bool SetThreadIds(uid_t uid, gid_t gid) {
  setfsgid(gid);
  setfsuid(uid);
  return static_cast<gid_t>(setfsgid(static_cast<gid_t>(-1))) == gid &&
         static_cast<uid_t>(setfsuid(static_cast<uid_t>(-1))) == uid;
}

absl::StatusOr<UniqueFd> MakeOwnedFolder(int parent, const std::string& name, const OwnerIds& owner,
                                         const std::string& shown) {
  if (mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST) return Errno(shown);
  UniqueFd fd(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return Errno(shown);
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return Errno(shown);
  if (st.st_uid != owner.uid && (st.st_uid != geteuid() || fchown(fd.get(), owner.uid, owner.gid) != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown, ": belongs to uid ", st.st_uid, ", not to ", owner.user));
  }
  return fd;
}

}  // namespace

absl::StatusOr<OwnerIds> ResolveOwner(const v1::Owner& owner, const OwnerPolicy& policy) {
  OwnerIds ids;
  ids.user = owner.user();
  const bool root = geteuid() == 0;
  if (policy.single_user) {
    ids.uid = geteuid();
    ids.gid = getegid();
    return ids;
  }
  std::vector<char> buffer(kPasswdBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int rc = getpwnam_r(owner.user().c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (rc != 0)
    return absl::UnavailableError(
        absl::StrCat("user ", owner.user(), " cannot be looked up: ", strerror(rc)));
  if (found == nullptr && !root && owner.uid() == geteuid()) {  // a container's account without an entry
    ids.uid = geteuid();
    ids.gid = getegid();
    return ids;
  }
  if (found == nullptr)
    return absl::NotFoundError(absl::StrCat("user ", owner.user(), " does not exist here"));
  ids.uid = entry.pw_uid;
  ids.gid = entry.pw_gid;
  if (!root && ids.uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("this agent runs as uid ", geteuid(), " and takes no jobs of ", owner.user()));
  }
  if (root && ids.uid == 0 && !policy.allow_root) {
    return absl::PermissionDeniedError("jobs of root are not run here (agent.allow_root is off)");
  }
  if (!root) return ids;
  int count = 64;
  while (true) {
    ids.groups.resize(static_cast<size_t>(count));
    if (getgrouplist(owner.user().c_str(), ids.gid, ids.groups.data(), &count) >= 0) break;
    if (count > kMaxGroups)
      return absl::FailedPreconditionError(absl::StrCat("user ", owner.user(), ": too many groups"));
  }
  ids.groups.resize(static_cast<size_t>(count));
  return ids;
}

OwnerScope::OwnerScope(const OwnerIds& owner) {
  if (geteuid() != 0 || owner.uid == 0) return;
  const int count = getgroups(0, nullptr);
  own_groups_.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (count < 0 || getgroups(count, own_groups_.data()) < 0) {
    ok_ = false;
    return;
  }
  changed_ = true;
  ok_ = SetThreadGroups(owner.groups) && SetThreadIds(owner.uid, owner.gid);
}

OwnerScope::~OwnerScope() {
  if (!changed_) return;
  // Back to root: the same calls in the other order, since setgroups needs root's capability.
  if (!SetThreadIds(geteuid(), getegid()) || !SetThreadGroups(own_groups_))
    abort();  // never go on half changed
}

int AccessError(const std::string& path, int mode) {
  // AT_EACCESS makes the kernel use the thread's own credentials, file-system ids included.
  if (syscall(kSysFaccessat2, AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0) return 0;
  if (errno != ENOSYS && errno != EPERM) return errno;
  struct stat st;  // before 5.8: by the mode bits
  if (stat(path.c_str(), &st) != 0) return errno;
  const uid_t uid = static_cast<uid_t>(setfsuid(static_cast<uid_t>(-1)));
  const gid_t gid = static_cast<gid_t>(setfsgid(static_cast<gid_t>(-1)));
  if (uid == 0) return (mode & X_OK) != 0 && (st.st_mode & 0111) == 0 ? EACCES : 0;
  const int shift = st.st_uid == uid ? 6 : st.st_gid == gid ? 3 : 0;
  return ((st.st_mode >> shift) & static_cast<mode_t>(mode)) == static_cast<mode_t>(mode) ? 0 : EACCES;
}

absl::StatusOr<UniqueFd> OpenBeneath(const std::string& root, const std::string& relative, int flags) {
  const UniqueFd top(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top.valid()) return Errno(root);
  OpenHow how{};
  how.flags = static_cast<uint64_t>(static_cast<unsigned int>(flags | O_CLOEXEC));
  how.resolve = kResolveBeneath | kResolveNoSymlinks;
  const long fd = syscall(kSysOpenat2, top.get(), relative.c_str(), &how, sizeof how);
  if (fd >= 0) return UniqueFd(static_cast<int>(fd));
  if (errno == ENOSYS || errno == EPERM)
    return WalkBeneath(root, relative, flags);  // EPERM: a container's filter
  return Errno(absl::StrCat(root, "/", relative));
}

absl::StatusOr<UniqueFd> WalkBeneath(const std::string& root, const std::string& relative, int flags) {
  UniqueFd at(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!at.valid()) return Errno(root);
  const std::vector<std::string> parts = absl::StrSplit(relative, '/', absl::SkipEmpty());
  if (parts.empty()) return absl::InvalidArgumentError("empty path");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "." || parts[i] == "..")
      return absl::InvalidArgumentError(absl::StrCat(relative, ": not allowed"));
    const int part_flags = i + 1 == parts.size() ? flags | O_NOFOLLOW : O_PATH | O_DIRECTORY | O_NOFOLLOW;
    UniqueFd next(openat(at.get(), parts[i].c_str(), part_flags | O_CLOEXEC));
    if (!next.valid()) return Errno(absl::StrCat(root, "/", relative));
    at = std::move(next);
  }
  return at;
}

std::string LogFolder(const std::string& log_root, const std::string& job, uint32_t attempt) {
  return absl::StrCat(log_root, "/", job, "/attempt_", attempt);
}

absl::StatusOr<std::string> MakeLogFolder(const std::string& log_root, const std::string& job,
                                          uint32_t attempt, const OwnerIds& owner) {
  std::error_code error;
  std::filesystem::create_directories(log_root, error);
  const UniqueFd root(open(log_root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Errno(log_root);
  absl::StatusOr<UniqueFd> of_job = MakeOwnedFolder(root.get(), job, owner, absl::StrCat(log_root, "/", job));
  if (!of_job.ok()) return of_job.status();
  const std::string path = LogFolder(log_root, job, attempt);
  absl::StatusOr<UniqueFd> made =
      MakeOwnedFolder(of_job->get(), absl::StrCat("attempt_", attempt), owner, path);
  if (!made.ok()) return made.status();
  return path;
}

}  // namespace dgxrun::agent
