// Brings what agents read of log files to those who asked. A tail is one TailRequest to one node; its bytes
// come back on an Output RPC of the agent's bulk connection, which is found by the tail's id.
//
//   opened (request sent) ──first chunk──▶ flowing ──▶ ended: complete, or the connection broke
//
// Flow control goes end to end: while a receiver wants no more, the Output RPC is not read, so that the
// agent stops reading its files. Everything runs on the loop's thread.
#ifndef DGXRUN_CONTROLLER_TAIL_ROUTER_H_
#define DGXRUN_CONTROLLER_TAIL_ROUTER_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "controller/agent_service.h"
#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

class TailReceiver {
 public:
  virtual ~TailReceiver() = default;
  // Returns whether more is wanted now; if not, the receiver calls TailRouter::Resume later.
  virtual bool OnChunk(uint64_t tail, v1::OutputChunk chunk) = 0;
  // The last call for this tail. `complete`: the agent has sent all there was.
  virtual void OnTailEnd(uint64_t tail, bool complete) = 0;
};

class TailRouter;

// Where the chunks of one tail arrive, whatever carries them. After each chunk (TailRouter::Arrived) it
// holds, and nothing more comes before ReadOn. On the loop, but for what carries it.
class OutputReader : public std::enable_shared_from_this<OutputReader> {
 public:
  virtual ~OutputReader() = default;
  void Hold() { holding_ = true; }
  bool holding() const { return holding_; }
  bool cancelled() const { return cancelled_; }
  void ReadOn() {
    holding_ = false;
    StartNext();
  }
  void Cancel() {
    cancelled_ = true;
    if (!holding_) return Abort();
    holding_ = false;
    RejectHeld();
  }
  uint64_t tail = 0;  // 0: before the first chunk

 private:
  virtual void StartNext() = 0;
  virtual void RejectHeld() = 0;  // the sender of the chunk in hand learns that nobody listens any more
  virtual void Abort() = 0;       // none is in hand: one may be under way
  bool holding_ = false;
  bool cancelled_ = false;
};

class TailRouter {
 public:
  TailRouter(EventLoop* loop, AgentService* agents) : loop_(loop), agents_(agents) {}

  // Sends the request (tail_id is filled in). 0: the node is not connected.
  uint64_t Open(const NodeId& node, v1::TailRequest request, std::weak_ptr<TailReceiver> receiver);
  void Cancel(uint64_t tail);  // no more calls for it
  void Resume(uint64_t tail);

  // Any thread: an agent's Output RPC. `allowed` not OK: it ends with that.
  grpc::ServerReadReactor<v1::OutputChunk>* NewOutput(grpc::CallbackServerContext* context,
                                                      absl::Status allowed);
  // The node's stream has ended: tails that have no Output RPC yet will get none.
  void NodeDown(const NodeId& node);

  // From the readers.
  void Arrived(const std::shared_ptr<OutputReader>& reader, v1::OutputChunk chunk);
  void ReaderEnded(uint64_t tail, bool complete);

 private:
  struct Tail {
    NodeId node;
    std::weak_ptr<TailReceiver> receiver;
    std::shared_ptr<OutputReader> reader;  // null until its first chunk
  };

  EventLoop* const loop_;
  AgentService* const agents_;
  uint64_t next_tail_ = 1;
  std::map<uint64_t, Tail> tails_;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_TAIL_ROUTER_H_
