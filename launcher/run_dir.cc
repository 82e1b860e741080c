#include "launcher/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {
namespace {

constexpr size_t kMaxRunFileBytes = 64u << 20;  // a final of 1,000 ranks has well under 1 MiB

bool OnTmpfs(const std::string& path) {
  struct statfs info;
  if (statfs(path.c_str(), &info) != 0) return false;
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
}

std::string Parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

absl::Status WriteAll(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::ErrnoToStatus(n < 0 ? errno : EIO, "write");
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

std::string DefaultRunDir() {
  const char* chosen = getenv("DGXRUN_RUN_DIR");
  if (chosen != nullptr && chosen[0] != '\0') return chosen;
  const uid_t uid = geteuid();
  const std::string usual = uid == 0 ? "/run/dgxrun" : absl::StrCat("/tmp/dgxrun-", uid);
  const bool usual_is_tmpfs = OnTmpfs(usual) || OnTmpfs(Parent(usual));
  if (!usual_is_tmpfs && OnTmpfs("/dev/shm")) return absl::StrCat("/dev/shm/dgxrun-", uid);
  return usual;
}

absl::Status PrepareRunDir(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("mkdir ", path));
  }
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " belongs to uid ", info.st_uid));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is open to others; its mode must be 0700"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ShimSocketPath(const std::string& attempt_dir) {
  std::string path = absl::StrCat(attempt_dir, "/", kShimSocketName);
  if (path.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " has ", path.size(),
                                                   " bytes; the limit is ", kMaxSocketPath,
                                                   " (set a shorter run folder, DGXRUN_RUN_DIR)"));
  }
  return path;
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& bytes) {
  const std::string temporary = absl::StrCat(path, ".new");
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, temporary);
  if (absl::Status status = WriteAll(fd.get(), bytes); !status.ok()) return status;
  if (rename(temporary.c_str(), path.c_str()) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, path);
  std::string text;
  char buffer[16 << 10];
  ssize_t n;
  while ((n = read(fd.get(), buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, path);
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxRunFileBytes)
      return absl::ResourceExhaustedError(absl::StrCat(path, " is too large"));
  }
  return text;
}

absl::Status WriteFinal(const std::string& attempt_dir, const v1::ShimFinal& final) {
  return WriteFileAtomically(absl::StrCat(attempt_dir, "/", kFinalName), final.SerializeAsString());
}

absl::StatusOr<v1::ShimFinal> ReadFinal(const std::string& attempt_dir) {
  absl::StatusOr<std::string> bytes = ReadWholeFile(absl::StrCat(attempt_dir, "/", kFinalName));
  if (!bytes.ok()) return bytes.status();
  v1::ShimFinal final;
  if (!final.ParseFromString(*bytes)) {
    return absl::DataLossError(absl::StrCat(attempt_dir, "/", kFinalName, " cannot be parsed"));
  }
  return final;
}

std::string DelimitedBytes(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::util::SerializeDelimitedToZeroCopyStream(message, &stream);
  return bytes;
}

absl::StatusOr<v1::ShimFinal> ReadJournal(const std::string& attempt_dir) {
  absl::StatusOr<std::string> bytes = ReadWholeFile(absl::StrCat(attempt_dir, "/", kJournalName));
  if (!bytes.ok()) return bytes.status();
  google::protobuf::io::ArrayInputStream stream(bytes->data(), static_cast<int>(bytes->size()));
  v1::ShimFinal final;
  bool clean_eof = false;
  if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&final, &stream, &clean_eof)) {
    return absl::NotFoundError("the journal is empty");
  }
  v1::ShimEvent event;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&event, &stream, &clean_eof)) {
    *final.add_events() = event;
    event.Clear();
  }
  return final;
}

void RemoveAttemptDir(const std::string& attempt_dir) {
  for (const char* name : {kShimSocketName, kFinalName, kJournalName, kCgroupName}) {
    unlink(absl::StrCat(attempt_dir, "/", name).c_str());
    unlink(absl::StrCat(attempt_dir, "/", name, ".new").c_str());
  }
  rmdir(attempt_dir.c_str());
}

}  // namespace dgxrun
