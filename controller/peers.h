// Who is at the other end of an RPC. A unix socket is accepted by us, so that the kernel says who connected
// (SO_PEERCRED); gRPC then gets the descriptor and names the connection after it ("fd:7"), which this table
// maps back. Over TLS the certificate's common name says it; in process it is this process's own account.
//
// A descriptor number is used again as soon as a connection closes, while a late handler of the old one may
// still ask for its peer: so a number that another account used is kept out of use for kReuseGuard.
// Thread-safe.
#ifndef DGXRUN_CONTROLLER_PEERS_H_
#define DGXRUN_CONTROLLER_PEERS_H_

#include <sys/types.h>

#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/core/input.h"
#include "grpcpp/server_context.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

class Peers {
 public:
  // Notes who is behind a connection just accepted; `now` only ever grows. Returns the descriptor to hand
  // to gRPC (non-blocking), a duplicate where the number itself is guarded. Errors: no credentials.
  absl::StatusOr<UniqueFd> Admit(UniqueFd connection, absl::Time now);

  // Whom a call of the Control service comes from. Unauthenticated or PermissionDenied say why nobody.
  absl::StatusOr<core::Caller> CallerOf(const grpc::ServerContextBase& context);
  // Whether a call of the AgentLink service may be made: a certificate "agent", root, or our own account.
  absl::Status CheckAgent(const grpc::ServerContextBase& context);

  // Peers mode: a certificate "peer" is an agent and, since all share one key, our own account. Before any
  // call.
  void AllowPeers() { peers_allowed_ = true; }

  // This process's own account, for calls that come from within it.
  core::Caller OwnCaller();

  // "10.0.0.1" of an RPC over TCP; "" over a unix socket or in process.
  static std::string AddressOf(const grpc::ServerContextBase& context);

 private:
  struct Entry {
    uid_t uid = 0;
    gid_t gid = 0;
    absl::Time guarded_until = absl::InfinitePast();  // while it may not pass to another account
    bool guarded = false;
  };
  bool MayUse(int fd, uid_t uid, absl::Time now);  // under mutex_
  absl::StatusOr<Entry> UnixPeer(const grpc::ServerContextBase& context);
  core::Caller LocalCaller(uid_t uid, gid_t gid);

  bool peers_allowed_ = false;
  std::mutex mutex_;
  std::map<int, Entry> by_fd_;               // under mutex_
  std::map<uid_t, std::string> user_names_;  // under mutex_; a controller is asked by few accounts, often
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_PEERS_H_
