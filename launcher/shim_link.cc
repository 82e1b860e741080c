#include "launcher/shim_link.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>

#include "launcher/run_dir.h"

namespace dgxrun {
namespace {

constexpr int kListenBacklog = 4;  // one agent at a time; a few for a race of two

}  // namespace

bool ShimLink::Open(const std::string& run_dir, int agent_fd) {
  if (!Listen(run_dir)) return false;
  loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  Connect(UniqueFd(agent_fd));
  return true;
}

bool ShimLink::Listen(const std::string& run_dir) {
  absl::StatusOr<std::string> path = ShimSocketPath(run_dir);
  if (!path.ok()) return false;
  listener_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path->c_str(), path->size() + 1);
  const mode_t before = umask(0177);
  const int bound = bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  umask(before);
  return bound == 0 && listen(listener_.get(), kListenBacklog) == 0;
}

void ShimLink::Accept() {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) return;
  Close();
  Connect(std::move(fd));
  callbacks_.on_later_agent();
}

void ShimLink::Connect(UniqueFd fd) {
  channel_ = std::make_unique<ShimChannel>(std::move(fd));
  loop_.Watch(channel_->fd(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
}

void ShimLink::Close() {
  if (channel_ == nullptr) return;
  loop_.Unwatch(channel_->fd());
  channel_.reset();
}

void ShimLink::OnReady(uint32_t events) {
  absl::Status status;
  if ((events & EPOLLOUT) != 0) status = channel_->Flush();
  if (status.ok()) {
    status = channel_->Read([this](const std::string& bytes) {
      v1::ShimCommand command;
      // One that cannot be parsed is of an agent newer than all we know: ignored.
      if (command.ParseFromString(bytes)) callbacks_.on_command(std::move(command));
    });
  }
  if (!status.ok()) {
    Close();
    callbacks_.on_lost();
    return;
  }
  loop_.Modify(channel_->fd(), channel_->wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void ShimLink::Send(const v1::ShimMsg& message) {
  if (channel_ == nullptr) return;
  // An error is met again, and handled, when the loop reads from the socket.
  if (!channel_->Send(message).ok()) shutdown(channel_->fd(), SHUT_RDWR);
  if (channel_->wants_write()) loop_.Modify(channel_->fd(), EPOLLIN | EPOLLOUT);
}

}  // namespace dgxrun
