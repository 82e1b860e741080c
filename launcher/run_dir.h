// The run folder: where sockets and small files of living attempts are, on a tmpfs, so that a hung or full
// disk never touches supervision.
//
//   <run dir>/<job>.<attempt>/   shim.sock   where a later agent connects
//                                journal     job, attempt and every event so far, for the guard
//                                cgroup      path of the cgroup that the shim made, if any
//                                final.pb    ShimFinal, once nothing of the attempt lives
#ifndef DGXRUN_LAUNCHER_RUN_DIR_H_
#define DGXRUN_LAUNCHER_RUN_DIR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dgxrun/v1/shim.pb.h"
#include "google/protobuf/message_lite.h"

namespace dgxrun {

inline constexpr size_t kMaxSocketPath = 107;  // sun_path without its zero
inline constexpr char kShimSocketName[] = "shim.sock";
inline constexpr char kFinalName[] = "final.pb";
inline constexpr char kJournalName[] = "journal";
inline constexpr char kCgroupName[] = "cgroup";

// $DGXRUN_RUN_DIR, else /run/dgxrun (root) or /tmp/dgxrun-UID; where that is no tmpfs and /dev/shm is one,
// /dev/shm/dgxrun-UID.
std::string DefaultRunDir();

// Makes the folder (not its parents) with mode 0700, or checks the one that is there: a real folder, ours,
// closed to others. FailedPrecondition names what is wrong.
absl::Status PrepareRunDir(const std::string& path);

// InvalidArgument when the path does not fit a socket address.
absl::StatusOr<std::string> ShimSocketPath(const std::string& attempt_dir);

// Write to a temporary name beside it, then rename: a reader sees all or nothing.
absl::Status WriteFileAtomically(const std::string& path, const std::string& bytes);
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

absl::Status WriteFinal(const std::string& attempt_dir, const v1::ShimFinal& final);
absl::StatusOr<v1::ShimFinal> ReadFinal(const std::string& attempt_dir);  // NotFound: none

// The journal: a ShimFinal without events, then each event. Kept open by the shim.
std::string DelimitedBytes(const google::protobuf::MessageLite& message);
// What the journal holds; a torn end is dropped. NotFound: no job was started.
absl::StatusOr<v1::ShimFinal> ReadJournal(const std::string& attempt_dir);

// Removes what a shim may have left in an attempt's folder, and the folder.
void RemoveAttemptDir(const std::string& attempt_dir);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_RUN_DIR_H_
