// The Control service: what the CLI asks. Every handler finds out who asks, checks the request, and lets the
// engine's thread answer; replies leave on the loop's thread. It keeps no state of its own. SubmitFor and
// StopFor are what the RPCs and calls from within the process (in_process.h) share.
#ifndef DGXRUN_CONTROLLER_CONTROL_SERVICE_H_
#define DGXRUN_CONTROLLER_CONTROL_SERVICE_H_

#include <functional>
#include <string>

#include "controller/engine.h"
#include "controller/peers.h"
#include "controller/tail_router.h"
#include "dgxrun/v1/control.grpc.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

class ControlService : public v1::Control::CallbackService {
 public:
  ControlService(Engine* engine, Peers* peers, TailRouter* tails, EventLoop* loop)
      : engine_(engine), peers_(peers), tails_(tails), loop_(loop) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest* request,
                                 v1::ControllerInfo* reply) override;
  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context, const v1::SubmitRequest* request,
                                   v1::SubmitReply* reply) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                   v1::JobStatus* reply) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context, const v1::StopRequest* request,
                                 v1::StopReply* reply) override;
  grpc::ServerUnaryReactor* FenceNode(grpc::CallbackServerContext* context,
                                      const v1::FenceNodeRequest* request, v1::NodeInfo* reply) override;
  grpc::ServerWriteReactor<v1::JobStatus>* Watch(grpc::CallbackServerContext* context,
                                                 const v1::WatchRequest* request) override;
  grpc::ServerWriteReactor<v1::JobStatus>* Jobs(grpc::CallbackServerContext* context,
                                                const v1::JobsRequest* request) override;
  grpc::ServerWriteReactor<v1::NodeInfo>* Nodes(grpc::CallbackServerContext* context,
                                                const v1::NodesRequest* request) override;
  grpc::ServerWriteReactor<v1::OutputChunk>* Logs(grpc::CallbackServerContext* context,
                                                  const v1::LogsRequest* request) override;

  // `done` is called once, with the reply if the status is OK; on the engine's thread, or on the caller's
  // before this returns.
  void SubmitFor(const core::Caller& caller, const v1::SubmitRequest& request,
                 std::function<void(absl::Status, v1::SubmitReply)> done);
  void StopFor(const core::Caller& caller, const v1::StopRequest& request,
               std::function<void(absl::Status, v1::StopReply)> done);

 private:
  // Who asks, when its wire version fits and `job` is a well-formed id, name or nothing.
  absl::StatusOr<core::Caller> CallerFor(const grpc::ServerContextBase& context, const std::string& job);
  void FinishLater(grpc::ServerUnaryReactor* reactor, absl::Status status);

  Engine* const engine_;
  Peers* const peers_;
  TailRouter* const tails_;
  EventLoop* const loop_;
};

// What is wrong with a submit before the core looks at it; owner, env_names and env_sha256 of `spec` are
// set. Shared with tests.
absl::Status CheckSubmit(const v1::SubmitRequest& request);
v1::JobSpec CompleteSpec(const v1::SubmitRequest& request, const core::Caller& caller,
                         const std::string& environment_bytes);

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_CONTROL_SERVICE_H_
