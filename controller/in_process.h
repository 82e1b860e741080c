// The services of a controller for its own process, as plain calls: what the AgentLink and Control services
// do over gRPC, for the agent and the client that `dgxrun` in local mode holds beside its controller. The
// caller is this process's account. Without it a launch would pay for gRPC's start and a dozen threads.
//
// Callbacks come on the controller's threads and must not block. Everything got from here is destroyed
// before the controller.
#ifndef DGXRUN_CONTROLLER_IN_PROCESS_H_
#define DGXRUN_CONTROLLER_IN_PROCESS_H_

#include <functional>
#include <memory>
#include <string>

#include "controller/agent_service.h"
#include "controller/control_service.h"
#include "controller/engine.h"
#include "controller/peers.h"
#include "controller/tail_router.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/control.pb.h"
#include "grpcpp/support/status.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

class InProcess {
 public:
  // A node's control stream; destroying it breaks it off.
  class Node {
   public:
    virtual ~Node() = default;
    virtual void Send(const v1::AgentMsg& message) = 0;
  };
  // The bytes of one tail, one chunk at a time: `done(false)`: nobody listens any more. Destroying it before
  // Finish breaks it off.
  class Output {
   public:
    virtual ~Output() = default;
    virtual void Write(v1::OutputChunk chunk, std::function<void(bool ok)> done) = 0;
    virtual void Finish() = 0;
  };
  // A watch or a reading of logs that is under way. Cancel lets `ended` come soon, which always comes.
  class Call {
   public:
    virtual ~Call() = default;
    virtual void Cancel() = 0;
  };

  InProcess(Engine* engine, AgentService* agents, ControlService* control, Peers* peers, TailRouter* tails,
            EventLoop* loop)
      : engine_(engine), agents_(agents), control_(control), peers_(peers), tails_(tails), loop_(loop) {}

  std::unique_ptr<Node> ConnectNode(std::function<void(v1::ControllerMsg)> message,
                                    std::function<void(const std::string& why)> closed);
  std::unique_ptr<Output> OpenOutput();

  void Submit(const v1::SubmitRequest& request, std::function<void(absl::Status, v1::SubmitReply)> done);
  void Stop(const v1::StopRequest& request, std::function<void(absl::Status, v1::StopReply)> done);
  std::unique_ptr<Call> Watch(const v1::WatchRequest& request,
                              std::function<void(const v1::JobStatus&)> status,
                              std::function<void(const grpc::Status&)> ended);
  // `taken` is called when the chunk was used: the next one comes after that.
  using TakeChunk = std::function<void(v1::OutputChunk chunk, std::function<void()> taken)>;
  std::unique_ptr<Call> Logs(const v1::LogsRequest& request, TakeChunk chunk,
                             std::function<void(const grpc::Status&)> ended);

 private:
  Engine* const engine_;
  AgentService* const agents_;
  ControlService* const control_;
  Peers* const peers_;
  TailRouter* const tails_;
  EventLoop* const loop_;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_IN_PROCESS_H_
