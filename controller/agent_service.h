// The AgentLink service: one stream per node. It turns messages into inputs of the engine and carries what
// the outbox sends; it knows nothing of jobs.
//
//   accepted ──hello──▶ greeted ──Welcome sent──▶ welcomed ──▶ ended
//      └── no hello within kHelloTimeout, a version that does not fit: refused, ended
//
// A new stream of a node ends its older one. Messages to a stream are queued (bounded) and written by the
// loop's thread or gRPC's, never by the engine's: StartWrite does the system call itself.
// Thread-safe.
#ifndef DGXRUN_CONTROLLER_AGENT_SERVICE_H_
#define DGXRUN_CONTROLLER_AGENT_SERVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "controller/node_stream.h"
#include "controller/outbox.h"
#include "controller/peers.h"
#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

class TailRouter;

class AgentService : public v1::AgentLink::CallbackService, public NodeStreams {
 public:
  AgentService(EventLoop* loop, Peers* peers) : loop_(loop), peers_(peers) {}

  // Before the server starts.
  void Wire(Engine* engine, TailRouter* tails) {
    engine_ = engine;
    tails_ = tails;
  }

  void SendOn(core::ConnectionId connection, v1::ControllerMsg message, bool last) override;
  void CloseAllStreams() override;
  // To the node's welcomed stream; false when it has none.
  bool SendTo(const NodeId& node, v1::ControllerMsg message);

  // For the streams themselves, of either kind: Add before the first message, Greeted at a good hello, Ended
  // once.
  core::ConnectionId NextConnection() { return next_connection_++; }
  void Add(const std::shared_ptr<NodeStream>& stream);
  void Greeted(const std::shared_ptr<NodeStream>& stream, const NodeId& node);
  void Ended(core::ConnectionId connection, const NodeId& node, const std::string& peer_address);

  grpc::ServerBidiReactor<v1::AgentMsg, v1::ControllerMsg>* Connect(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::OutputChunk>* Output(grpc::CallbackServerContext* context,
                                                   v1::OutputDone* done) override;

 private:
  friend class AgentStream;

  EventLoop* const loop_;
  Peers* const peers_;
  Engine* engine_ = nullptr;
  TailRouter* tails_ = nullptr;
  std::atomic<core::ConnectionId> next_connection_{1};
  std::mutex mutex_;
  std::map<core::ConnectionId, std::shared_ptr<NodeStream>> streams_;  // under mutex_
  std::map<NodeId, core::ConnectionId> by_node_;                       // under mutex_; the newest greeted
  std::map<std::string, int> streams_from_;                            // under mutex_; by peer address
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_AGENT_SERVICE_H_
