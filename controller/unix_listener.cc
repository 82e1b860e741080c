#include "controller/unix_listener.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace dgxrun {
namespace {

constexpr int kBacklog = 512;  // agents and clients that come back at one instant
// After running out of descriptors: accepting is tried again when connections have had time to end.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

absl::Status SocketError(const std::string& path, const char* what) {
  return absl::PermissionDeniedError(absl::StrCat(path, ": ", what, ": ", strerror(errno)));
}

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool SomebodyListens(const std::string& path) {
  UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = Address(path);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  return errno == EAGAIN;  // its backlog is full
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Open(const std::string& path, bool any_user) {
  sockaddr_un address;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": longer than the ", sizeof address.sun_path - 1,
                                                   " bytes of a socket's path; choose a shorter folder"));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) {
    if (!any_user) chmod(folder.c_str(), 0700);
  } else if (error) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": ", error.message()));
  }
  struct stat old;
  if (lstat(path.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode))
      return absl::AlreadyExistsError(absl::StrCat(path, ": is there, and no socket"));
    if (SomebodyListens(path)) {
      return absl::AlreadyExistsError(absl::StrCat("a controller already runs on ", path));
    }
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SocketError(path, "socket");
  // Bound, listening and with its mode under a name of our own, then moved to the place: nobody ever meets
  // a socket with another mode, or one that does not listen yet.
  const std::string temporary = absl::StrCat(path, ".", getpid());
  if (temporary.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": too long for a socket's path; choose a shorter folder"));
  }
  unlink(temporary.c_str());
  address = Address(temporary);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return SocketError(path, "bind");
  struct stat made {};
  if (chmod(temporary.c_str(), any_user ? 0666 : 0600) != 0 || listen(fd.get(), kBacklog) != 0 ||
      stat(temporary.c_str(), &made) != 0 || rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status = SocketError(path, "listen");
    unlink(temporary.c_str());
    return status;
  }
  return std::unique_ptr<UnixListener>(new UnixListener(path, std::move(fd), made.st_ino));
}

UnixListener::~UnixListener() {
  struct stat now {};
  if (lstat(path_.c_str(), &now) == 0 && now.st_ino == inode_) unlink(path_.c_str());
}

void UnixListener::StartAccepting(EventLoop* loop, std::function<void(UniqueFd)> accepted) {
  loop_ = loop;
  accepted_ = std::move(accepted);
  loop_->Watch(fd_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

void UnixListener::StopAccepting() {
  if (loop_ != nullptr) loop_->Unwatch(fd_.get());
  loop_ = nullptr;
  fd_.Reset();
}

void UnixListener::Accept() {
  while (loop_ != nullptr) {
    UniqueFd connection(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      accepted_(std::move(connection));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    // Out of descriptors: else the loop would spin on a socket that stays readable.
    spdlog::warn("controller: {}: accept: {}", path_, strerror(errno));
    loop_->Modify(fd_.get(), 0);
    loop_->After(kAcceptPause, [this] {
      if (loop_ != nullptr) loop_->Modify(fd_.get(), EPOLLIN);
    });
    return;
  }
}

}  // namespace dgxrun
