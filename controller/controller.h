// A whole controller as an object: engine, services, listeners. dgxrun-controller makes one from a
// cluster file; dgxrun in local mode makes one with a unix socket, and calls it in process.
//
// Without a network port nothing of gRPC is started before the first connection on the unix socket: most
// local jobs are never asked about from outside, and its start costs more than all the rest of a launch.
#ifndef DGXRUN_CONTROLLER_CONTROLLER_H_
#define DGXRUN_CONTROLLER_CONTROLLER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "controller/core/model.h"
#include "grpcpp/channel.h"
#include "proto/rpc/credentials.h"

namespace dgxrun {

class InProcess;

struct ControllerOptions {
  std::string cluster_name;
  std::string state_dir;
  bool durable = true;
  std::string unix_socket;  // path; empty: none. Mode 0600, or 0666 with `any_user`; callers by SO_PEERCRED
  bool any_user = false;
  std::string listen_address;  // "host:port" for TLS; empty: none. There is no plaintext port
  TlsFiles tls;
  TlsPems pems;                            // in place of `tls`
  std::optional<core::PeersConfig> peers;  // peers mode: serves this one job
  uint32_t heartbeat_ms = 1000;
  uint32_t node_lease_ms = 5000;
  uint32_t isolation_timeout_ms = 10000;
  uint32_t orphan_timeout_ms = 1'800'000;
  std::map<std::string, std::string> nccl;  // full variable name -> value, for every rank
};

class Controller {
 public:
  // Errors name the file, address or folder and how to mend it (a port that is taken, a log in use).
  static absl::StatusOr<std::unique_ptr<Controller>> Start(ControllerOptions options);
  virtual ~Controller() = default;  // closes listeners, then streams, then the engine

  virtual InProcess& in_process() = 0;                            // callers on it are this process's user
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;  // the same over gRPC
  virtual std::string listening_on() const = 0;                   // with the real port where 0 was given
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_CONTROLLER_H_
