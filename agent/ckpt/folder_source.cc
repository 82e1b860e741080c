#include "agent/ckpt/folder_source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

// File systems whose times come from this machine's clock alone. The numbers are those of statfs(2).
constexpr long kLocalFileSystems[] = {
    0xEF53,            // ext2, ext3, ext4
    0x58465342,        // xfs
    0x9123683E,        // btrfs
    0x01021994,        // tmpfs
    long{0x858458F6},  // ramfs
    0x794C7630,        // overlay
    long{0xF2F52010},  // f2fs
    0x2FC12FC1,        // zfs
};

absl::Status FromErrno(int error, std::string_view path) {
  const std::string message = absl::StrCat(path.empty() ? "" : ToPrintable(std::string(path)),
                                           path.empty() ? "" : ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ESTALE:  // a network file system's word for "removed meanwhile"
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ELOOP:
    case EXDEV:
    case ENOTDIR:
      return absl::PermissionDeniedError(
          absl::StrCat(ToPrintable(std::string(path)), ": a symbolic link or not a folder on the way"));
    default:
      return absl::UnavailableError(message);
  }
}

int64_t ToNs(const statx_timestamp& t) { return t.tv_sec * int64_t{1000000000} + t.tv_nsec; }

FileInfo FromStatx(const struct statx& st) {
  FileInfo info;
  switch (st.stx_mode & S_IFMT) {
    case S_IFREG:
      info.type = FileType::kFile;
      break;
    case S_IFDIR:
      info.type = FileType::kFolder;
      break;
    case S_IFLNK:
      info.type = FileType::kLink;
      break;
    default:
      info.type = FileType::kOther;
      break;
  }
  info.bytes = info.type == FileType::kFile ? st.stx_size : 0;
  info.mtime_ns = ToNs(st.stx_mtime);
  if ((st.stx_mask & STATX_BTIME) != 0) info.btime_ns = ToNs(st.stx_btime);
  return info;
}

constexpr unsigned kStatxMask = STATX_TYPE | STATX_SIZE | STATX_MTIME | STATX_BTIME;

class FolderFile : public File {
 public:
  using Charger = std::function<absl::Status(uint64_t bytes)>;
  FolderFile(int fd, const FileInfo& info, Charger charge)
      : File(info), fd_(fd), charge_(std::move(charge)) {}
  FolderFile(const FolderFile&) = delete;
  FolderFile& operator=(const FolderFile&) = delete;
  ~FolderFile() override { close(fd_); }

  absl::Status ReadAt(uint64_t offset, char* buffer, size_t size) override {
    if (absl::Status may = charge_(size); !may.ok()) return may;
    size_t done = 0;
    while (done < size) {
      const ssize_t n = pread(fd_, buffer + done, size - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FromErrno(errno, "");
      if (n == 0) return absl::OutOfRangeError("it became shorter while it was read");
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

 private:
  int fd_;
  Charger charge_;
};

class FolderSource : public Source {
 public:
  FolderSource(int root_fd, std::string root, bool one_clock, bool use_openat2)
      : root_fd_(root_fd), root_(std::move(root)), one_clock_(one_clock), use_openat2_(use_openat2) {}
  FolderSource(const FolderSource&) = delete;
  FolderSource& operator=(const FolderSource&) = delete;
  ~FolderSource() override {
    if (folder_fd_ >= 0) close(folder_fd_);
    close(root_fd_);
  }

  absl::StatusOr<FileInfo> Stat(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::stats, 1, 0); !may.ok()) return may;
    absl::StatusOr<Place> place = Locate(path);
    if (!place.ok()) return place.status();
    return StatAt(*place, path);
  }

  absl::StatusOr<std::vector<Entry>> List(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::lists, 1, 0); !may.ok()) return may;
    absl::StatusOr<int> fd = OpenBeneath(path, O_RDONLY | O_DIRECTORY);
    if (!fd.ok()) return fd.status();
    DIR* dir = fdopendir(*fd);
    if (dir == nullptr) {
      const int error = errno;
      close(*fd);
      return FromErrno(error, path);
    }
    std::vector<Entry> entries;
    absl::Status status = ReadEntries(dir, path, entries);
    closedir(dir);
    if (!status.ok()) return status;
    return entries;
  }

  absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::opens, 1, 0); !may.ok()) return may;
    absl::StatusOr<Place> place = Locate(path);
    if (!place.ok()) return place.status();
    // O_NONBLOCK: a pipe with this name must not hold us up; it means nothing for a regular file.
    const int fd =
        openat(place->fd, place->name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return FromErrno(errno, path);
    absl::StatusOr<FileInfo> info = StatAt({fd, ""}, path);
    if (info.ok() && info->type != FileType::kFile) {
      info = absl::PermissionDeniedError(absl::StrCat(ToPrintable(std::string(path)), ": not a file"));
    }
    if (!info.ok()) {
      close(fd);
      return info.status();
    }
    return std::make_unique<FolderFile>(fd, *info,
                                        [this](uint64_t bytes) { return Charge(&Counts::reads, 1, bytes); });
  }

  absl::StatusOr<std::string> ReadLink(std::string_view path) override {
    if (absl::Status may = Charge(&Counts::stats, 1, 0); !may.ok()) return may;
    absl::StatusOr<Place> place = Locate(path);
    if (!place.ok()) return place.status();
    char buffer[4096];  // PATH_MAX: no link holds more
    const ssize_t n = readlinkat(place->fd, place->name.c_str(), buffer, sizeof(buffer));
    if (n < 0) return FromErrno(errno, path);
    return std::string(buffer, static_cast<size_t>(n));
  }

  const std::string& root() const override { return root_; }
  bool one_clock() const override { return one_clock_; }

 private:
  // A name in an open folder; an empty name is the open file itself.
  struct Place {
    int fd;
    std::string name;
  };

  absl::StatusOr<FileInfo> StatAt(const Place& place, std::string_view path) {
    struct statx st;
    const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (place.name.empty() ? AT_EMPTY_PATH : 0);
    if (statx(place.fd, place.name.c_str(), flags, kStatxMask, &st) != 0) return FromErrno(errno, path);
    return FromStatx(st);
  }

  absl::Status ReadEntries(DIR* dir, std::string_view path, std::vector<Entry>& entries) {
    while (true) {
      errno = 0;
      const dirent* entry = readdir(dir);
      if (entry == nullptr) return errno == 0 ? absl::OkStatus() : FromErrno(errno, path);
      const std::string_view name = entry->d_name;
      if (name == "." || name == ".." || !IsUtf8(name)) continue;
      if (absl::Status may = Charge(&Counts::entries, 1, 0); !may.ok()) return may;
      FileType type = FileType::kOther;
      switch (entry->d_type) {
        case DT_REG:
          type = FileType::kFile;
          break;
        case DT_DIR:
          type = FileType::kFolder;
          break;
        case DT_LNK:
          type = FileType::kLink;
          break;
        case DT_UNKNOWN: {  // file systems that keep no types in their folders
          if (absl::Status may = Charge(&Counts::stats, 1, 0); !may.ok()) return may;
          absl::StatusOr<FileInfo> info = StatAt({dirfd(dir), std::string(name)}, name);
          if (!info.ok()) continue;  // gone meanwhile
          type = info->type;
          break;
        }
      }
      entries.push_back({std::string(name), type});
    }
  }

  // The folder that holds `path`, open. The last one stays open: files of one folder come one after another.
  absl::StatusOr<Place> Locate(std::string_view path) {
    if (path.empty()) return Place{root_fd_, "."};
    if (!StaysBeneath(path)) {
      return absl::PermissionDeniedError(
          absl::StrCat(ToPrintable(std::string(path)), ": leads out of the folder"));
    }
    const size_t slash = path.rfind('/');
    if (slash == std::string_view::npos) return Place{root_fd_, std::string(path)};
    const std::string_view folder = path.substr(0, slash);
    if (folder_fd_ < 0 || folder != folder_) {
      absl::StatusOr<int> fd = OpenBeneath(folder, O_PATH | O_DIRECTORY);
      if (!fd.ok()) return fd.status();
      if (folder_fd_ >= 0) close(folder_fd_);
      folder_fd_ = *fd;
      folder_ = std::string(folder);
    }
    return Place{folder_fd_, std::string(path.substr(slash + 1))};
  }

  absl::StatusOr<int> OpenBeneath(std::string_view path, int flags) {
    flags |= O_CLOEXEC | O_NOFOLLOW;
    if (path.empty()) {
      const int fd = openat(root_fd_, ".", flags);
      return fd >= 0 ? absl::StatusOr<int>(fd) : FromErrno(errno, path);
    }
    if (!StaysBeneath(path)) {
      return absl::PermissionDeniedError(
          absl::StrCat(ToPrintable(std::string(path)), ": leads out of the folder"));
    }
    if (use_openat2_) {
      open_how how = {};
      how.flags = static_cast<uint64_t>(flags);
      how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
      const long fd = syscall(SYS_openat2, root_fd_, std::string(path).c_str(), &how, sizeof(how));
      if (fd >= 0) return static_cast<int>(fd);
      // Before 5.6 there is none, and some containers' filters refuse it with EPERM.
      if (errno != ENOSYS && errno != EPERM) return FromErrno(errno, path);
      use_openat2_ = false;
    }
    return Walk(path, flags);
  }

  absl::StatusOr<int> Walk(std::string_view path, int flags) {
    int at = root_fd_;
    while (true) {
      const size_t slash = path.find('/');
      const bool last = slash == std::string_view::npos;
      const std::string name(path.substr(0, slash));
      const int fd = openat(at, name.c_str(), last ? flags : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      const int error = errno;
      if (at != root_fd_) close(at);
      if (fd < 0) return FromErrno(error, path);
      if (last) return fd;
      at = fd;
      path.remove_prefix(slash + 1);
    }
  }

  int root_fd_;
  std::string root_;
  bool one_clock_;
  bool use_openat2_;
  std::string folder_;
  int folder_fd_ = -1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> OpenFolderWith(const std::string& folder, bool use_openat2) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOTDIR) return absl::FailedPreconditionError(absl::StrCat(folder, ": not a folder"));
    return FromErrno(errno, folder);
  }
  struct statfs fs;
  const bool local =
      fstatfs(fd, &fs) == 0 && std::find(std::begin(kLocalFileSystems), std::end(kLocalFileSystems),
                                         static_cast<long>(fs.f_type)) != std::end(kLocalFileSystems);
  std::string root = folder;
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  return std::make_unique<FolderSource>(fd, std::move(root), local, use_openat2);
}

absl::StatusOr<std::unique_ptr<Source>> OpenFolder(const std::string& folder) {
  return OpenFolderWith(folder, /*use_openat2=*/true);
}

}  // namespace dgxrun::agent::ckpt
