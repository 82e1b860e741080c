#include "cli/status_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "cli/paths.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

constexpr char kReserveName[] = "/status.reserve";
// The status of a job of 64 ranks, with the last lines of a failed one, has some 16 KiB.
constexpr size_t kReserveBytes = 32 << 10;
using Length = uint64_t;

// At the first write: later there may be no room.
void Reserve(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.valid() && posix_fallocate(fd.get(), 0, kReserveBytes) != 0) unlink(path.c_str());
}

// Into room that the file has already. Empty bytes: it holds nothing any more.
bool WriteReserve(const std::string& path, const std::string& bytes) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const Length length = bytes.size();
  if (!fd.valid() || sizeof length + bytes.size() > kReserveBytes) return false;
  // The length last: a reader takes a text for whole that has one.
  return pwrite(fd.get(), bytes.data(), bytes.size(), sizeof length) == static_cast<ssize_t>(bytes.size()) &&
         pwrite(fd.get(), &length, sizeof length, 0) == static_cast<ssize_t>(sizeof length);
}

std::string ReadReserve(const std::string& path) {
  auto bytes = ReadFile(path);
  Length length = 0;
  if (!bytes.ok() || bytes->size() < sizeof length) return "";
  memcpy(&length, bytes->data(), sizeof length);
  return length > bytes->size() - sizeof length ? "" : bytes->substr(sizeof length, length);
}

}  // namespace

absl::Status WriteStatus(const std::string& folder, const v1::JobStatus& status, const ReplaceFile& replace) {
  const std::string reserve = folder + kReserveName;
  const bool first = access((folder + kStatusName).c_str(), F_OK) != 0;
  const std::string bytes = status.SerializeAsString();
  absl::Status written = replace(folder + kStatusName, bytes);
  if (first) Reserve(reserve);
  if (!written.ok()) return WriteReserve(reserve, bytes) ? absl::OkStatus() : written;
  if (!ReadReserve(reserve).empty()) WriteReserve(reserve, "");
  return written;
}

bool ReadStatus(const std::string& folder, v1::JobStatus* status) {
  if (const std::string held = ReadReserve(folder + kReserveName); !held.empty()) {
    return status->ParseFromString(held);
  }
  auto bytes = ReadFile(folder + kStatusName);
  return bytes.ok() && status->ParseFromString(*bytes);
}

}  // namespace dgxrun::cli
