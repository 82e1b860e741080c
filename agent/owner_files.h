// File work for a job's owner.
//
// A root agent touches a user's files with that user's rights: OwnerScope changes the file-system ids (and
// supplementary groups) of the calling thread alone, by the raw system calls, since glibc's setuid and
// setgroups change all threads. No fork and no helper process: the ids are a thread's own in Linux, setfsuid
// also drops the capabilities that override file modes, and it can be taken back. An agent that is not root
// changes nothing.
//
// OpenBeneath opens a path below a root without following a link anywhere below that root.
#ifndef DGXRUN_AGENT_OWNER_FILES_H_
#define DGXRUN_AGENT_OWNER_FILES_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dgxrun/v1/job.pb.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::agent {

struct OwnerIds {
  std::string user;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
};

struct OwnerPolicy {
  bool single_user = false;  // every owner is this process's account
  bool allow_root = false;
};

// Who `owner` is on this machine, by name. May ask a directory service: not for the agent's own thread.
// Errors are reasons to refuse a job: an unknown user, root without allow_root, another user for an agent
// that is not root.
absl::StatusOr<OwnerIds> ResolveOwner(const v1::Owner& owner, const OwnerPolicy& policy);

class OwnerScope {
 public:
  explicit OwnerScope(const OwnerIds& owner);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;
  // False: the thread has kept its own rights; nothing of the owner's may be touched.
  bool ok() const { return ok_; }

 private:
  bool changed_ = false;
  bool ok_ = true;
  std::vector<gid_t> own_groups_;
};

// `mode`: R_OK, W_OK, X_OK by the thread's file-system ids. 0 or an errno.
int AccessError(const std::string& path, int mode);

// `relative` without "..": openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS), on kernels before 5.6 a walk with
// O_NOFOLLOW. NotFound when it does not exist.
absl::StatusOr<UniqueFd> OpenBeneath(const std::string& root, const std::string& relative, int flags);
// The walk alone, so that a test can force it.
absl::StatusOr<UniqueFd> WalkBeneath(const std::string& root, const std::string& relative, int flags);

// Makes <log_root>/<job>/attempt_<k>, both 0700 and the owner's. Returns the path.
absl::StatusOr<std::string> MakeLogFolder(const std::string& log_root, const std::string& job,
                                          uint32_t attempt, const OwnerIds& owner);
std::string LogFolder(const std::string& log_root, const std::string& job, uint32_t attempt);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_OWNER_FILES_H_
