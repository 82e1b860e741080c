#include "controller/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/rpc/credentials.h"

namespace dgxrun {
namespace {

// A handler that starts later than this after its connection has closed would be stuck for other reasons.
constexpr absl::Duration kReuseGuard = absl::Seconds(5);
// Numbers tried for one connection; more than 64 accounts taking turns within the guard are refused.
constexpr int kMaxDuplicates = 64;
constexpr size_t kAccountBuffer = 16384;  // getpwuid_r; enough for any entry seen in practice

bool FindAccount(uid_t uid, passwd* entry, std::vector<char>* buffer) {
  passwd* found = nullptr;
  buffer->resize(kAccountBuffer);
  return getpwuid_r(uid, entry, buffer->data(), buffer->size(), &found) == 0 && found != nullptr;
}

absl::StatusOr<core::Caller> TlsCaller(const std::string& common_name) {
  absl::string_view user = common_name;
  if (!absl::ConsumePrefix(&user, "user:")) {
    return absl::PermissionDeniedError(
        absl::StrCat("the certificate \"", common_name, "\" is not a user's (\"user:<account>\")"));
  }
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> buffer(kAccountBuffer);
  const std::string name(user);
  if (getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the account \"", name, "\" of the certificate does not exist on the controller's machine"));
  }
  return core::Caller{name, found->pw_uid, found->pw_gid, found->pw_uid == 0};
}

// gRPC 1.51 knows no name for an in-process peer; a network peer always has one, and a security type.
bool IsInProcess(const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  if (peer != "unknown" && peer != "inproc") return false;
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr) return true;
  for (const grpc::string_ref& type : auth->FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) {
    if (type == GRPC_SSL_TRANSPORT_SECURITY_TYPE || type == GRPC_TLS_TRANSPORT_SECURITY_TYPE) return false;
  }
  return true;
}

}  // namespace

bool Peers::MayUse(int fd, uid_t uid, absl::Time now) {
  auto it = by_fd_.find(fd);
  if (it == by_fd_.end() || it->second.uid == uid) return true;
  // The old connection is closed (else the kernel would not have given us its number), but since when?
  if (!it->second.guarded) {
    it->second.guarded = true;
    it->second.guarded_until = now + kReuseGuard;
  }
  return now >= it->second.guarded_until;
}

absl::StatusOr<UniqueFd> Peers::Admit(UniqueFd connection, absl::Time now) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::UnauthenticatedError(absl::StrCat("SO_PEERCRED: ", strerror(errno)));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  // Guarded numbers stay open until a usable one is found, so that each try gives another.
  std::vector<UniqueFd> passed_over;
  for (int tries = 0; tries < kMaxDuplicates; ++tries) {
    if (MayUse(connection.get(), credentials.uid, now)) {
      by_fd_[connection.get()] = Entry{credentials.uid, credentials.gid};
      return connection;
    }
    const int next = fcntl(connection.get(), F_DUPFD_CLOEXEC, connection.get() + 1);
    if (next < 0) return absl::ResourceExhaustedError(absl::StrCat("dup: ", strerror(errno)));
    passed_over.push_back(std::exchange(connection, UniqueFd(next)));
  }
  return absl::ResourceExhaustedError("too many accounts connect at once; try again in some seconds");
}

absl::StatusOr<Peers::Entry> Peers::UnixPeer(const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  absl::string_view number = peer;
  int fd = -1;
  if (absl::ConsumePrefix(&number, "fd:") && absl::SimpleAtoi(number, &fd)) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = by_fd_.find(fd);
    if (it != by_fd_.end()) return it->second;
  }
  if (IsInProcess(context)) return Entry{geteuid(), getegid()};
  return absl::UnauthenticatedError(absl::StrCat("nobody is known behind the connection ", peer));
}

core::Caller Peers::LocalCaller(uid_t uid, gid_t gid) {
  const bool admin = uid == 0 || uid == geteuid();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = user_names_.find(uid);
    if (it != user_names_.end()) return core::Caller{it->second, uid, gid, admin};
  }
  passwd entry;
  std::vector<char> buffer;
  // An account without a name is normal in containers; its number then stands for it.
  const std::string name = FindAccount(uid, &entry, &buffer) ? entry.pw_name : absl::StrCat(uid);
  std::lock_guard<std::mutex> lock(mutex_);
  user_names_[uid] = name;
  return core::Caller{name, uid, gid, admin};
}

absl::StatusOr<core::Caller> Peers::CallerOf(const grpc::ServerContextBase& context) {
  const std::string common_name = TlsCommonName(context);
  if (peers_allowed_ && common_name == kPeerName) return OwnCaller();
  if (!common_name.empty()) return TlsCaller(common_name);
  absl::StatusOr<Entry> peer = UnixPeer(context);
  if (!peer.ok()) return peer.status();
  return LocalCaller(peer->uid, peer->gid);
}

core::Caller Peers::OwnCaller() { return LocalCaller(geteuid(), getegid()); }

absl::Status Peers::CheckAgent(const grpc::ServerContextBase& context) {
  const std::string common_name = TlsCommonName(context);
  if (!common_name.empty()) {
    if (common_name == "agent" || (peers_allowed_ && common_name == kPeerName)) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("the certificate \"", common_name, "\" is not an agent's (common name \"agent\")"));
  }
  absl::StatusOr<Entry> peer = UnixPeer(context);
  if (!peer.ok()) return peer.status();
  if (peer->uid == 0 || peer->uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "an agent must run as root or as the controller's account (uid ", geteuid(), "), not uid ", peer->uid));
}

std::string Peers::AddressOf(const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  absl::string_view rest = peer;
  if (absl::ConsumePrefix(&rest, "ipv4:")) return std::string(rest.substr(0, rest.rfind(':')));
  if (!absl::ConsumePrefix(&rest, "ipv6:")) return "";
  // "ipv6:%5Bfe80::1%5D:1234", or with plain brackets in older versions.
  std::string address(rest.substr(0, rest.rfind(':')));
  for (const char* bracket : {"%5B", "%5D", "[", "]"}) {
    const size_t at = address.find(bracket);
    if (at != std::string::npos) address.erase(at, strlen(bracket));
  }
  // A v4 client of a dual-stack listener.
  if (absl::string_view(address).substr(0, 7) == "::ffff:") address.erase(0, 7);
  return address;
}

}  // namespace dgxrun
