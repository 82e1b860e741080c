// How agents bear witness to each other: a small server that answers, and the calls that ask. Both pass what
// they hear to the agent's thread; AgentCore decides (agent_core_witness.cc).
//
// Without a server nothing is lost but the licence that a committee gives: ranks then die when the controller
// has been away for isolation_timeout.
#ifndef DGXRUN_AGENT_WITNESS_H_
#define DGXRUN_AGENT_WITNESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/agent_core.h"
#include "agent/loop_inbox.h"
#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/server.h"
#include "proto/rpc/credentials.h"

namespace dgxrun::agent {

// Where it listens: a unix socket (`path`, one machine), or all addresses with TLS on `port` (0: any).
struct WitnessPlace {
  std::string path;
  uint32_t port = 0;
  TlsFiles tls;
};

class WitnessServer {
 public:
  // Questions that wait for the agent's thread; each member of a cluster of thousands may ask at once.
  static constexpr size_t kMaxWaiting = 20000;

  // Listens at once; questions go to `asked` on the inbox's loop once Serve was called. Errors name the
  // place.
  static absl::StatusOr<std::unique_ptr<WitnessServer>> Listen(const WitnessPlace& place);
  ~WitnessServer();

  void Serve(std::shared_ptr<LoopInbox> inbox, std::function<void(WitnessAsked)> asked);
  void Answer(const AnswerWitness& action);
  uint32_t port() const { return port_; }  // 0: a unix socket
  const std::string& path() const { return path_; }

 private:
  class Service;
  WitnessServer();
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  uint32_t port_ = 0;
  std::string path_;
};

// Loop's thread only. Channels are kept, so that the next question costs no handshake.
class WitnessCalls {
 public:
  WitnessCalls(std::shared_ptr<LoopInbox> inbox, TlsFiles tls, std::function<void(WitnessAnswered)> answered);

  void Ask(const AskCommittee& action, const v1::WitnessQuestion& question);
  // The committee has not been needed: connections go.
  void Drop() { channels_.clear(); }

 private:
  const std::shared_ptr<LoopInbox> inbox_;
  const TlsFiles tls_;
  const std::shared_ptr<std::function<void(WitnessAnswered)>> answered_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;  // by target
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_WITNESS_H_
