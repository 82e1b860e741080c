#include "controller/in_process.h"

#include <mutex>
#include <utility>

#include "controller/logs_stream.h"
#include "controller/node_stream.h"
#include "proto/rpc/status.h"

namespace dgxrun {
namespace {

// The controller's end of the node in this process.
class LocalNode final : public NodeStream, public std::enable_shared_from_this<LocalNode> {
 public:
  LocalNode(AgentService* service, Engine* engine, core::ConnectionId connection,
            std::function<void(v1::ControllerMsg)> message,
            std::function<void(const std::string& why)> closed)
      : service_(service),
        engine_(engine),
        connection_(connection),
        message_(std::move(message)),
        closed_(std::move(closed)) {}

  core::ConnectionId connection() const override { return connection_; }
  bool welcomed() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return welcomed_ && !ended_;
  }
  void Send(v1::ControllerMsg message, bool last) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ended_) return;
      if (message.has_welcome()) welcomed_ = true;
      message_(std::move(message));  // under the lock, for the order: it only queues
    }
    if (last) Cancel();
  }
  void Cancel() override { End(/*by_controller=*/true); }

  // The agent's side; one thread.
  void Receive(const v1::AgentMsg& message) {
    switch (message.body_case()) {
      case v1::AgentMsg::kHello:
        return Greet(message.hello());
      case v1::AgentMsg::kHeartbeat:
        if (!node_.empty()) engine_->Post({{}, core::NodeHeartbeat{node_, connection_, message.heartbeat()}});
        return;
      case v1::AgentMsg::kReport:
        if (!node_.empty()) engine_->Post({{}, core::NodeReport{node_, connection_, message.report()}});
        return;
      case v1::AgentMsg::BODY_NOT_SET:
        return;
    }
  }
  void BreakOff() { End(/*by_controller=*/false); }

 private:
  void Greet(const v1::Hello& hello) {
    if (!node_.empty()) return;
    if (absl::Status fits = CheckHello(hello); !fits.ok()) return Send(Refusal(fits), true);
    node_ = NodeId(hello.node_id());
    service_->Greeted(shared_from_this(), node_);
    engine_->Post({{}, core::NodeConnected{connection_, hello, ""}});
  }
  void End(bool by_controller) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ended_) return;
      ended_ = true;
      if (by_controller) closed_("the controller closed the stream");
    }
    service_->Ended(connection_, node_, "");
  }

  AgentService* const service_;
  Engine* const engine_;
  const core::ConnectionId connection_;
  NodeId node_;  // set by the hello, before anything is sent to it
  std::mutex mutex_;
  const std::function<void(v1::ControllerMsg)> message_;      // called under mutex_
  const std::function<void(const std::string& why)> closed_;  // called under mutex_
  bool welcomed_ = false;                                     // under mutex_
  bool ended_ = false;                                        // under mutex_
};

class NodeEnd final : public InProcess::Node {
 public:
  explicit NodeEnd(std::shared_ptr<LocalNode> stream) : stream_(std::move(stream)) {}
  ~NodeEnd() override { stream_->BreakOff(); }
  void Send(const v1::AgentMsg& message) override { stream_->Receive(message); }

 private:
  const std::shared_ptr<LocalNode> stream_;
};

// One tail's bytes. Write and the end come on the tail's thread, the rest on the loop; one chunk is under
// way at a time, so `done_` passes back and forth with it.
class LocalOutput final : public OutputReader {
 public:
  LocalOutput(TailRouter* router, EventLoop* loop) : router_(router), loop_(loop) {}

  void Write(v1::OutputChunk chunk, std::function<void(bool ok)> done) {
    done_ = std::move(done);
    loop_->Post([self = shared_from_this(), router = router_, chunk = std::move(chunk)]() mutable {
      router->Arrived(self, std::move(chunk));
    });
  }
  void End(bool complete) {
    loop_->Post([self = shared_from_this(), router = router_, complete] {
      if (self->tail != 0) router->ReaderEnded(self->tail, complete);
    });
  }

 private:
  void StartNext() override { std::exchange(done_, nullptr)(true); }
  void RejectHeld() override { std::exchange(done_, nullptr)(false); }
  void Abort() override {}  // its next chunk is rejected

  TailRouter* const router_;
  EventLoop* const loop_;
  std::function<void(bool ok)> done_;
};

class OutputEnd final : public InProcess::Output {
 public:
  explicit OutputEnd(std::shared_ptr<LocalOutput> output) : output_(std::move(output)) {}
  ~OutputEnd() override {
    if (output_ != nullptr) output_->End(/*complete=*/false);
  }
  void Write(v1::OutputChunk chunk, std::function<void(bool ok)> done) override {
    output_->Write(std::move(chunk), std::move(done));
  }
  void Finish() override { std::exchange(output_, nullptr)->End(/*complete=*/true); }

 private:
  std::shared_ptr<LocalOutput> output_;
};

class LocalLogs final : public LogsRelay {
 public:
  LocalLogs(Engine* engine, TailRouter* tails, EventLoop* loop, const v1::LogsRequest& request,
            InProcess::TakeChunk chunk, std::function<void(const grpc::Status&)> ended)
      : LogsRelay(engine, tails, loop, request),
        loop_(loop),
        chunk_(std::move(chunk)),
        ended_(std::move(ended)) {}

 private:
  void StartSending(const v1::OutputChunk& chunk) override {
    chunk_(chunk, [loop = loop_, weak = weak_from_this()] {
      loop->Post([weak] {
        if (std::shared_ptr<LogsRelay> self = weak.lock()) self->Sent(true);
      });
    });
  }
  void FinishSending(const grpc::Status& status) override {
    ended_(status);
    Release();
  }

  EventLoop* const loop_;
  const InProcess::TakeChunk chunk_;
  const std::function<void(const grpc::Status&)> ended_;
};

class LogsCall final : public InProcess::Call {
 public:
  explicit LogsCall(std::weak_ptr<LogsRelay> relay) : relay_(std::move(relay)) {}
  void Cancel() override {
    if (std::shared_ptr<LogsRelay> relay = relay_.lock()) relay->Cancelled();
  }

 private:
  const std::weak_ptr<LogsRelay> relay_;
};

// Tells of a job until its end, or until it is cancelled.
class LocalWatch final : public InProcess::Call, public std::enable_shared_from_this<LocalWatch> {
 public:
  LocalWatch(Engine* engine, std::function<void(const v1::JobStatus&)> status,
             std::function<void(const grpc::Status&)> ended)
      : engine_(engine), status_(std::move(status)), ended_(std::move(ended)) {}

  void Begin(const absl::StatusOr<v1::JobStatus>& job) {  // the engine's thread
    if (!job.ok()) return End(ToGrpc(job.status()));
    if (core::IsEnded(job->state())) return Tell(*job);
    const uint64_t watch = engine_->WatchJob(
        JobId(job->job_id()), [self = shared_from_this()](const v1::JobStatus& now) { self->Tell(now); });
    std::lock_guard<std::mutex> lock(mutex_);
    watch_ = watch;
    if (over_) engine_->Unwatch(watch);
  }
  void End(const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (over_) return;
    over_ = true;
    if (watch_ != 0) engine_->Unwatch(watch_);
    ended_(status);
  }
  void Cancel() override { End(grpc::Status::CANCELLED); }

 private:
  void Tell(const v1::JobStatus& now) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!over_) status_(now);
    }
    if (core::IsEnded(now.state())) End(grpc::Status::OK);
  }

  Engine* const engine_;
  std::mutex mutex_;
  const std::function<void(const v1::JobStatus&)> status_;  // called under mutex_
  const std::function<void(const grpc::Status&)> ended_;    // called under mutex_
  bool over_ = false;                                       // under mutex_
  uint64_t watch_ = 0;                                      // under mutex_
};

class WatchCall final : public InProcess::Call {
 public:
  explicit WatchCall(std::shared_ptr<LocalWatch> watch) : watch_(std::move(watch)) {}
  void Cancel() override { watch_->Cancel(); }

 private:
  const std::shared_ptr<LocalWatch> watch_;
};

}  // namespace

std::unique_ptr<InProcess::Node> InProcess::ConnectNode(std::function<void(v1::ControllerMsg)> message,
                                                        std::function<void(const std::string& why)> closed) {
  auto stream = std::make_shared<LocalNode>(agents_, engine_, agents_->NextConnection(), std::move(message),
                                            std::move(closed));
  agents_->Add(stream);
  return std::make_unique<NodeEnd>(std::move(stream));
}

std::unique_ptr<InProcess::Output> InProcess::OpenOutput() {
  return std::make_unique<OutputEnd>(std::make_shared<LocalOutput>(tails_, loop_));
}

void InProcess::Submit(const v1::SubmitRequest& request,
                       std::function<void(absl::Status, v1::SubmitReply)> done) {
  control_->SubmitFor(peers_->OwnCaller(), request, std::move(done));
}

void InProcess::Stop(const v1::StopRequest& request, std::function<void(absl::Status, v1::StopReply)> done) {
  control_->StopFor(peers_->OwnCaller(), request, std::move(done));
}

std::unique_ptr<InProcess::Call> InProcess::Watch(const v1::WatchRequest& request,
                                                  std::function<void(const v1::JobStatus&)> status,
                                                  std::function<void(const grpc::Status&)> ended) {
  auto watch = std::make_shared<LocalWatch>(engine_, std::move(status), std::move(ended));
  engine_->FindStatus(peers_->OwnCaller(), core::Verb::kSee, request.job(),
                      [watch](absl::StatusOr<v1::JobStatus> job) { watch->Begin(job); });
  return std::make_unique<WatchCall>(std::move(watch));
}

std::unique_ptr<InProcess::Call> InProcess::Logs(const v1::LogsRequest& request, TakeChunk chunk,
                                                 std::function<void(const grpc::Status&)> ended) {
  auto logs =
      std::make_shared<LocalLogs>(engine_, tails_, loop_, request, std::move(chunk), std::move(ended));
  logs->Start(peers_->OwnCaller());
  return std::make_unique<LogsCall>(logs);
}

}  // namespace dgxrun
