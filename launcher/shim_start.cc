#include "launcher/shim_start.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/base/sys.h"
#include "launcher/run_dir.h"

extern char** environ;

namespace dgxrun {
namespace {

// Sources are moved above every target, so that no dup2 in the child overwrites one still to be used.
constexpr int kFirstSourceFd = 200;
constexpr int kAgentFd = 3;
constexpr int kFirstHeldFd = 4;

// The caller's environment may hold secrets of a user and none of it is needed: the shim starts with an
// empty one. What tunes a sanitizer goes along.
std::vector<std::string> ShimEnvironment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    for (const char* name : {"ASAN_OPTIONS=", "UBSAN_OPTIONS=", "LSAN_OPTIONS="}) {
      if (absl::StartsWith(text, name)) kept.emplace_back(text);
    }
  }
  return kept;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  // The child's `target` is a copy of `source`.
  absl::Status Pass(int source, int target) {
    UniqueFd high(fcntl(source, F_DUPFD_CLOEXEC, kFirstSourceFd));
    if (!high.valid()) return absl::ErrnoToStatus(errno, "fcntl F_DUPFD_CLOEXEC");
    posix_spawn_file_actions_adddup2(&actions_, high.get(), target);
    sources_.push_back(std::move(high));
    return absl::OkStatus();
  }
  void Open(int target, const char* path, int flags) {
    posix_spawn_file_actions_addopen(&actions_, target, path, flags, 0);
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
  std::vector<UniqueFd> sources_;
};

}  // namespace

absl::StatusOr<StartedShim> StartShim(const ShimStartOptions& options) {
  absl::StatusOr<std::string> socket_path = ShimSocketPath(options.run_dir);
  if (!socket_path.ok()) return socket_path.status();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  fcntl(ours.get(), F_SETFL, O_NONBLOCK);

  FileActions actions;
  if (absl::Status status = actions.Pass(theirs.get(), kAgentFd); !status.ok()) return status;
  std::vector<int> held;
  for (size_t i = 0; i < options.held_ports.size(); ++i) {
    held.push_back(kFirstHeldFd + static_cast<int>(i));
    if (absl::Status status = actions.Pass(options.held_ports[i], held.back()); !status.ok()) return status;
  }
  if (!options.inherit_terminal) {
    actions.Open(STDIN_FILENO, "/dev/null", O_RDONLY);
    actions.Open(STDOUT_FILENO, "/dev/null", O_WRONLY);
  }
  // Nothing is ever printed; a pipe that the shim held would keep its reader waiting.
  actions.Open(STDERR_FILENO, "/dev/null", O_WRONLY);

  std::vector<std::string> words = {options.shim_binary, "guard",      "--run-dir",
                                    options.run_dir,     "--agent-fd", absl::StrCat(kAgentFd)};
  if (!held.empty()) {
    words.push_back("--hold");
    words.push_back(absl::StrJoin(held, ","));
  }
  if (options.inherit_terminal) words.push_back("--terminal");
  std::vector<std::string> environment = ShimEnvironment();
  std::vector<char*> argv = Pointers(words), envp = Pointers(environment);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, options.shim_binary.c_str(), actions.get(), nullptr, argv.data(), envp.data());
  if (error != 0) {
    return absl::InternalError(absl::StrCat("cannot execute ", options.shim_binary, ": ", strerror(error)));
  }
  StartedShim started;
  started.socket = std::move(ours);
  started.pidfd = RealSys().PidfdOpen(pid);
  started.guard_pid = pid;
  return started;
}

absl::StatusOr<UniqueFd> ConnectShim(const std::string& run_dir) {
  absl::StatusOr<std::string> path = ShimSocketPath(run_dir);
  if (!path.ok()) return path.status();
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path->c_str(), path->size() + 1);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return absl::NotFoundError(absl::StrCat("nobody listens at ", *path, ": ", strerror(errno)));
  }
  return fd;
}

}  // namespace dgxrun
