#include "controller/environment_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {
namespace {

absl::Status Errno(const std::string& path, const char* what) {
  const int error = errno;
  const std::string text = absl::StrCat(path, ": ", what, ": ", strerror(error));
  if (error != ENOSPC && error != EDQUOT) return absl::UnavailableError(text);
  return absl::ResourceExhaustedError(absl::StrCat(text, "; no job is taken until there is room"));
}

absl::Status WriteAll(int fd, const std::string& path, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno(path, "write");
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EnvironmentStore::MakeFolder() const {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return Errno(folder_, "mkdir");
  if (chmod(folder_.c_str(), 0700) != 0) return Errno(folder_, "chmod");
  return absl::OkStatus();
}

absl::Status EnvironmentStore::Write(const JobId& job, const std::string& bytes) const {
  const std::string path = Path(job), temporary = path + ".tmp";
  unlink(temporary.c_str());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return Errno(temporary, "open");
  absl::Status status = WriteAll(fd.get(), temporary, bytes);
  if (status.ok() && durable_ && fsync(fd.get()) != 0) status = Errno(temporary, "fsync");
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) status = Errno(path, "rename");
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  if (durable_) {
    UniqueFd folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid() || fsync(folder.get()) != 0) return Errno(folder_, "fsync");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EnvironmentStore::Read(const JobId& job) const {
  const std::string path = Path(job);
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Errno(path, "open");
  std::string bytes;
  char buffer[65536];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno(path, "read");
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

void EnvironmentStore::Delete(const JobId& job) const { unlink(Path(job).c_str()); }

void EnvironmentStore::DeleteAllBut(const std::set<JobId>& living) const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    if (living.count(JobId(entry.path().filename().string())) == 0) unlink(entry.path().c_str());
  }
}

}  // namespace dgxrun
