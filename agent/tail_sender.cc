#include "agent/tail_sender.h"

#include <mutex>
#include <utility>

#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace dgxrun::agent {
namespace {

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

}  // namespace

std::unique_ptr<TailSink> MakeOutputSink(std::shared_ptr<grpc::Channel> bulk,
                                         std::shared_ptr<LoopInbox> loop) {
  auto* call = new OutputCall(std::move(bulk), std::move(loop));  // deletes itself in OnDone
  call->Begin();
  return std::make_unique<OutputSink>(call);
}

}  // namespace dgxrun::agent
