// The controller's end of one agent's Connect stream over gRPC; see agent_service.h for its states. Keeps
// itself alive until gRPC is done with it.
#ifndef DGXRUN_CONTROLLER_AGENT_STREAM_H_
#define DGXRUN_CONTROLLER_AGENT_STREAM_H_

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "controller/agent_service.h"
#include "controller/node_stream.h"

namespace dgxrun {

class AgentStream : public grpc::ServerBidiReactor<v1::AgentMsg, v1::ControllerMsg>,
                    public NodeStream,
                    public std::enable_shared_from_this<AgentStream> {
 public:
  AgentStream(AgentService* service, grpc::CallbackServerContext* context, core::ConnectionId connection,
              std::string peer_address)
      : service_(service),
        context_(context),
        connection_(connection),
        peer_address_(std::move(peer_address)) {}

  void Start();  // once, when the service knows it
  core::ConnectionId connection() const override { return connection_; }
  bool welcomed() override;

  void Send(v1::ControllerMsg message, bool last) override;
  void Cancel() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  bool HandleHello(const v1::Hello& hello);
  void HandleMessage();
  void ReadOn();
  void Pump();
  // Both under mutex_; return what to do after it is released.
  enum class Next { kNothing, kWrite, kFinish };
  Next NextStep();
  void Do(Next next);

  AgentService* const service_;
  grpc::CallbackServerContext* const context_;
  const core::ConnectionId connection_;
  const std::string peer_address_;

  v1::AgentMsg in_;  // of the read under way
  NodeId node_;      // set by the hello; read by gRPC's threads one after the other

  std::shared_ptr<AgentStream> self_;  // from Start to OnDone

  // TryCancel may run OnDone on the calling thread, and `context_` ends with OnDone.
  std::recursive_mutex context_mutex_;
  bool done_ = false;  // under context_mutex_

  // Never held across a call into gRPC. All that follows is under it.
  std::mutex mutex_;
  std::deque<v1::ControllerMsg> queue_;
  size_t queued_bytes_ = 0;
  v1::ControllerMsg out_;  // of the write under way
  bool greeted_ = false;
  bool welcomed_ = false;
  bool pump_posted_ = false;
  bool writing_ = false;
  bool ending_ = false;  // finish when the queue is empty
  bool broken_ = false;  // finish now
  bool finished_ = false;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_AGENT_STREAM_H_
