// What a judge reads from: the files beneath one folder, and nothing else.
//
// Paths are relative to the root, with '/' between names; "" is the root itself. A path with "..", an empty
// name, a leading '/' or a symbolic link on its way is refused (kPermissionDenied), on the real file system
// by the kernel (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, else a walk with O_NOFOLLOW). The root
// itself may be reached through links: that is the user's own choice of folder.
//
// Every call is counted, and a budget ends what would not end: a call past it fails with kResourceExhausted,
// one after Stop() with kCancelled. Nothing is written. One thread at a time, save Stop().
//
// Errors: kNotFound (also what vanished meanwhile), kPermissionDenied, kResourceExhausted, kCancelled,
// kUnavailable (the disk's own errors). The message is one line for a person, without the root's name.
#ifndef DGXRUN_AGENT_CKPT_SOURCE_H_
#define DGXRUN_AGENT_CKPT_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dgxrun::agent::ckpt {

enum class FileType { kFile, kFolder, kLink, kOther };

struct FileInfo {
  FileType type = FileType::kOther;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  // When the file itself was made; 0: the file system does not say. Tells a file that was written a second
  // time from one that was copied here.
  int64_t btime_ns = 0;
};

struct Entry {
  std::string name;
  FileType type = FileType::kOther;
};

struct Counts {
  uint64_t lists = 0;
  uint64_t entries = 0;  // names read by lists
  uint64_t stats = 0;
  uint64_t opens = 0;
  uint64_t reads = 0;
  uint64_t bytes = 0;  // read
};

struct Budget {
  uint64_t calls = std::numeric_limits<uint64_t>::max();  // lists + entries + stats + opens + reads
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
};

class File {
 public:
  virtual ~File() = default;
  const FileInfo& info() const { return info_; }
  // Reads exactly `size` bytes at `offset`. Fewer there: kOutOfRange.
  virtual absl::Status ReadAt(uint64_t offset, char* buffer, size_t size) = 0;

 protected:
  explicit File(const FileInfo& info) : info_(info) {}

 private:
  FileInfo info_;
};

class Source {
 public:
  virtual ~Source() = default;

  virtual absl::StatusOr<FileInfo> Stat(std::string_view path) = 0;
  // Without "." and "..", in no order. Names that are not UTF-8 are left out: they could not be told to
  // anybody.
  virtual absl::StatusOr<std::vector<Entry>> List(std::string_view path) = 0;
  // Regular files only; never blocks on a pipe. Must not outlive the source.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) = 0;
  // Where a symbolic link points, as written in it.
  virtual absl::StatusOr<std::string> ReadLink(std::string_view path) = 0;
  // How the root is called outside: what Checkpoint.path begins with. No '/' at its end, unless it is "/".
  virtual const std::string& root() const = 0;
  // All times come from one clock (a local file system), so that even a millisecond's difference counts.
  virtual bool one_clock() const = 0;

  const Counts& counts() const { return counts_; }
  // Counted from now on.
  void SetBudget(const Budget& budget);
  // From any thread.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }

 protected:
  // Counts one call of a kind and its bytes, and says whether it may be made.
  absl::Status Charge(uint64_t Counts::*kind, uint64_t calls, uint64_t bytes);

 private:
  Counts counts_;
  Budget left_;
  std::atomic<bool> stopped_{false};
};

// Whether a path from a file's content or a caller stays beneath the root: not empty, relative, no "." or
// "..", no NUL, no empty name.
bool StaysBeneath(std::string_view path);
std::string JoinPath(std::string_view folder, std::string_view name);

// The real file system, with the file rights of the calling thread. `folder` must be a folder: kNotFound,
// kPermissionDenied and kFailedPrecondition (something else has this name) name it.
absl::StatusOr<std::unique_ptr<Source>> OpenFolder(const std::string& folder);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_SOURCE_H_
