#include "agent/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace dgxrun::agent {
namespace {

absl::Status Errno(const char* what, uint32_t port) {
  const std::string text = absl::StrCat(what, " port ", port, ": ", strerror(errno));
  return errno == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::FailedPreconditionError(text);
}

absl::Status Bind(const UniqueFd& socket, const sockaddr* address, socklen_t size, uint32_t port) {
  // Bound before SO_REUSEADDR is set, so that another holder of the same range (a second agent on the
  // machine) does not get the port too; a server that comes later does, since both sockets have it then.
  if (bind(socket.get(), address, size) != 0) return Errno("bind", port);
  const int on = 1;
  if (setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0)
    return Errno("SO_REUSEADDR", port);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> HoldPort(uint32_t port, uint32_t* got) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  absl::Status done = absl::UnavailableError("no IPv6");
  bool v6 = fd.valid();
  if (v6) {
    const int off = 0;
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    v6 = setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    if (v6) done = Bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address, port);
    // disable_ipv6=1 leaves the family but no address to bind.
    if (v6 && !done.ok() && errno == EADDRNOTAVAIL) v6 = false;
  }
  if (!v6) {
    fd.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return Errno("socket for", port);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    done = Bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address, port);
  }
  if (!done.ok()) return done;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return Errno("getsockname", port);
  *got = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return fd;
}

absl::Status PortPool::Fill() {
  const uint32_t range = low_ == 0 ? 1 : high_ - low_ + 1;
  for (uint32_t tried = 0; held_.size() < kPoolSize;) {
    uint32_t wanted = 0;
    if (low_ != 0) {
      if (tried++ == range) {
        return absl::ResourceExhaustedError(
            absl::StrCat("only ", held_.size(), " free port(s) in port_range ", low_, "-", high_));
      }
      wanted = next_;
      next_ = next_ == high_ ? low_ : next_ + 1;
      if (held_.contains(wanted)) continue;
    }
    uint32_t got = 0;
    absl::StatusOr<UniqueFd> fd = HoldPort(wanted, &got);
    if (fd.ok()) {
      held_[got] = *std::move(fd);
    } else if (low_ == 0 || !absl::IsAlreadyExists(fd.status())) {
      return fd.status();
    }
  }
  return absl::OkStatus();
}

std::vector<uint32_t> PortPool::free() const {
  std::vector<uint32_t> ports;
  for (const auto& [port, fd] : held_) ports.push_back(port);
  return ports;
}

absl::StatusOr<UniqueFd> PortPool::Take(uint32_t port) {
  if (port == 0 || port > 65535)
    return absl::FailedPreconditionError(absl::StrCat("port ", port, " is no port"));
  auto it = held_.find(port);
  if (it != held_.end()) {
    UniqueFd fd = std::move(it->second);
    held_.erase(it);
    return fd;
  }
  uint32_t got = 0;
  absl::StatusOr<UniqueFd> fd = HoldPort(port, &got);
  if (!fd.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("port ", port, " is not reserved here any more: ", fd.status().message()));
  }
  return fd;
}

}  // namespace dgxrun::agent
