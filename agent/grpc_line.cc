#include "agent/grpc_line.h"

#include <deque>
#include <mutex>
#include <utility>

#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace dgxrun::agent {
namespace {

// One stream. Lives until OnDone, which may be after whoever opened it; so it owns all that gRPC points to.
class LinkCall final : public grpc::ClientBidiReactor<v1::AgentMsg, v1::ControllerMsg> {
 public:
  LinkCall(std::shared_ptr<grpc::Channel> channel, StreamEvents events)
      : events_(std::move(events)), channel_(std::move(channel)), stub_(v1::AgentLink::NewStub(channel_)) {}

  void Begin() {
    stub_->async()->Connect(&context_, this);
    AddHold();  // writes start outside of reactions
    StartRead(&incoming_);
    StartCall();
  }
  void Send(v1::AgentMsg message) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(message));
    if (!writing_) WriteNext();
  }
  void Cancel() {
    context_.TryCancel();
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    // The end of the stream; whoever hears of it cancels, which lets OnDone come.
    if (!ok) return events_.closed("the controller closed the stream");
    events_.message(std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) return;  // OnReadDone(false) comes too
    queue_.pop_front();
    if (!queue_.empty()) WriteNext();
  }
  void OnDone(const grpc::Status&) override { delete this; }

 private:
  void WriteNext() {
    writing_ = true;
    StartWrite(&queue_.front());
  }

  const StreamEvents events_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::AgentLink::Stub> stub_;
  grpc::ClientContext context_;
  v1::ControllerMsg incoming_;
  std::mutex mutex_;
  std::deque<v1::AgentMsg> queue_;  // under mutex_; the front one is being written while writing_
  bool writing_ = false;            // under mutex_
};

class GrpcStream final : public ControlStream {
 public:
  explicit GrpcStream(LinkCall* call) : call_(call) {}
  ~GrpcStream() override { call_->Cancel(); }
  void Send(v1::AgentMsg message) override { call_->Send(std::move(message)); }

 private:
  LinkCall* const call_;  // held by its own hold until Cancel
};

// Lives until OnDone, which may be after the sink; so it owns all that gRPC points to.
class OutputCall final : public grpc::ClientWriteReactor<v1::OutputChunk> {
 public:
  OutputCall(std::shared_ptr<grpc::Channel> bulk, std::shared_ptr<LoopInbox> loop)
      : stub_(v1::AgentLink::NewStub(std::move(bulk))), loop_(std::move(loop)) {}

  void Begin() {
    stub_->async()->Output(&context_, &reply_, this);
    AddHold();  // writes start outside of reactions
    StartCall();
  }
  void Write(v1::OutputChunk chunk, std::function<void(bool)> done) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = std::move(done);
    }
    chunk_ = std::move(chunk);
    StartWrite(&chunk_);
  }
  void Finish() {
    StartWritesDone();
    RemoveHold();
  }
  void Cancel() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = nullptr;
    }
    context_.TryCancel();
    RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (done_ == nullptr) return;
    loop_->Post([done = std::exchange(done_, nullptr), ok] { done(ok); });
  }
  void OnDone(const grpc::Status&) override { delete this; }

 private:
  const std::unique_ptr<v1::AgentLink::Stub> stub_;
  const std::shared_ptr<LoopInbox> loop_;
  grpc::ClientContext context_;
  v1::OutputDone reply_;
  v1::OutputChunk chunk_;
  std::mutex mutex_;
  std::function<void(bool)> done_;  // under mutex_
};

class OutputSink final : public TailSink {
 public:
  explicit OutputSink(OutputCall* call) : call_(call) {}
  ~OutputSink() override {
    if (call_ != nullptr) call_->Cancel();
  }
  void Write(v1::OutputChunk chunk, std::function<void(bool)> done) override {
    call_->Write(std::move(chunk), std::move(done));
  }
  void Finish() override { std::exchange(call_, nullptr)->Finish(); }

 private:
  OutputCall* call_;  // held by its own hold until Finish or Cancel
};

class GrpcLine final : public ControllerLine {
 public:
  GrpcLine(std::shared_ptr<grpc::Channel> control, std::shared_ptr<grpc::Channel> bulk)
      : control_(std::move(control)), bulk_(std::move(bulk)) {}

  std::unique_ptr<ControlStream> Connect(StreamEvents events) override {
    auto* call = new LinkCall(control_, std::move(events));  // deletes itself in OnDone
    call->Begin();
    return std::make_unique<GrpcStream>(call);
  }
  std::unique_ptr<TailSink> OpenOutput(std::shared_ptr<LoopInbox> loop) override {
    auto* call = new OutputCall(bulk_, std::move(loop));  // deletes itself in OnDone
    call->Begin();
    return std::make_unique<OutputSink>(call);
  }

 private:
  const std::shared_ptr<grpc::Channel> control_;
  const std::shared_ptr<grpc::Channel> bulk_;
};

}  // namespace

std::shared_ptr<ControllerLine> MakeGrpcLine(std::shared_ptr<grpc::Channel> control,
                                             std::shared_ptr<grpc::Channel> bulk) {
  return std::make_shared<GrpcLine>(std::move(control), std::move(bulk));
}

}  // namespace dgxrun::agent
