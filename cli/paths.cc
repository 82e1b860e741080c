#include "cli/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "launcher/base/unique_fd.h"

extern char** environ;

namespace dgxrun::cli {
namespace {

absl::Status Errno(const std::string& what, const std::string& path) {
  const std::string text = absl::StrCat(what, " ", path, ": ", strerror(errno));
  if (errno == ENOENT) return absl::NotFoundError(text);
  return absl::FailedPreconditionError(text);
}

}  // namespace

std::string Get(const EnvMap& env, const std::string& name) {
  const auto it = env.find(name);
  return it == env.end() ? "" : it->second;
}

EnvMap ProcessEnvironment() {
  EnvMap env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = strchr(*entry, '=');
    if (equals == nullptr) continue;
    env.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), std::string(equals + 1));
  }
  return env;
}

absl::StatusOr<Paths> FindPaths(const EnvMap& env, uid_t uid,
                                const std::function<bool(const std::string&)>& on_tmpfs) {
  Paths paths;
  paths.system_config = "/etc/dgxrun";
  const std::string home = Get(env, "HOME");
  paths.state_dir = Get(env, "DGXRUN_STATE_DIR");
  if (paths.state_dir.empty()) {
    std::string base = Get(env, "XDG_STATE_HOME");
    if (base.empty() && !home.empty()) base = home + "/.local/state";
    if (base.empty()) {
      return absl::FailedPreconditionError("neither DGXRUN_STATE_DIR nor HOME is set: no place to keep logs");
    }
    paths.state_dir = base + "/dgxrun";
  }
  std::string config = Get(env, "XDG_CONFIG_HOME");
  if (config.empty() && !home.empty()) config = home + "/.config";
  if (!config.empty()) paths.user_config = config + "/dgxrun";

  paths.run_dir = Get(env, "DGXRUN_RUN_DIR");
  if (paths.run_dir.empty()) {
    paths.run_dir = uid == 0 ? "/run/dgxrun" : absl::StrCat("/tmp/dgxrun-", uid);
    if (!on_tmpfs(paths.run_dir) && on_tmpfs("/dev/shm"))
      paths.run_dir = absl::StrCat("/dev/shm/dgxrun-", uid);
  }
  for (const std::string* path : {&paths.state_dir, &paths.run_dir}) {
    if ((*path)[0] != '/') {
      return absl::FailedPreconditionError(
          absl::StrCat("\"", *path, "\" (DGXRUN_STATE_DIR, DGXRUN_RUN_DIR, HOME) is not an absolute path"));
    }
  }
  return paths;
}

bool OnTmpfs(const std::string& path) {
  std::string at = path;
  struct statfs info;
  while (statfs(at.c_str(), &info) != 0) {
    const size_t slash = at.rfind('/');
    if (slash == std::string::npos || at == "/") return false;
    at = slash == 0 ? "/" : at.substr(0, slash);
  }
  return info.f_type == TMPFS_MAGIC;
}

absl::Status MakeFolders(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) == 0) return absl::OkStatus();
  if (errno == ENOENT) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || slash == 0) return Errno("cannot make", path);
    if (absl::Status parent = MakeFolders(path.substr(0, slash), mode); !parent.ok()) return parent;
    if (mkdir(path.c_str(), mode) == 0) return absl::OkStatus();
  }
  if (errno != EEXIST) return Errno("cannot make", path);
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return Errno("cannot read", path);
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  return absl::OkStatus();
}

absl::Status MakePrivateFolder(const std::string& path) {
  if (absl::Status made = MakeFolders(path, 0700); !made.ok()) return made;
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return Errno("cannot read", path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to somebody else; set DGXRUN_RUN_DIR to a folder of yours"));
  }
  return absl::OkStatus();
}

namespace {

absl::Status WriteNew(const std::string& temporary, const std::string& bytes) {
  {
    UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return Errno("cannot write", temporary);
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = write(fd.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Errno("cannot write", temporary);
      done += static_cast<size_t>(n);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, const std::string& bytes) {
  const std::string temporary = path + ".tmp";
  if (absl::Status written = WriteNew(temporary, bytes); !written.ok()) return written;
  if (rename(temporary.c_str(), path.c_str()) != 0) return Errno("cannot write", path);
  return absl::OkStatus();
}

absl::Status WriteFileQuickly(const std::string& path, const std::string& bytes) {
  const std::string temporary = path + ".tmp";
  if (absl::Status written = WriteNew(temporary, bytes); !written.ok()) return written;
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    unlink(temporary.c_str());
    return absl::OkStatus();
  }
  // There is no such file yet, or the file system cannot exchange (NFS).
  if (rename(temporary.c_str(), path.c_str()) != 0) return Errno("cannot write", path);
  return absl::OkStatus();
}

std::vector<std::string> ListFolder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  return names;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return Errno("cannot read", path);
  std::string bytes;
  char buffer[16384];
  for (;;) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("cannot read", path);
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace dgxrun::cli
