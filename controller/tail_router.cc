#include "controller/tail_router.h"

#include <mutex>
#include <utility>
#include <vector>

#include "proto/rpc/status.h"

namespace dgxrun {

namespace {

// One Output RPC. gRPC's threads hand each chunk to the loop; the loop starts the next read.
class OutputRpc final : public grpc::ServerReadReactor<v1::OutputChunk>, public OutputReader {
 public:
  OutputRpc(TailRouter* router, EventLoop* loop, grpc::CallbackServerContext* context)
      : router_(router), loop_(loop), context_(context) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&in_);
  }
  void End(const absl::Status& status) {
    self_ = shared_from_this();
    Finish(ToGrpc(status));
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    loop_->Post([this, self = shared_from_this()] { router_->Arrived(self, std::move(in_)); });
  }
  void OnDone() override {
    // A peer that went away cancels the call; one that was done has let us finish it.
    const bool complete = !context_->IsCancelled();
    {
      std::lock_guard<std::recursive_mutex> lock(context_mutex_);
      done_ = true;
    }
    loop_->Post([this, self = std::move(self_), complete] {
      if (tail != 0) router_->ReaderEnded(tail, complete);
    });
  }

 private:
  void StartNext() override { StartRead(&in_); }
  void RejectHeld() override { Finish(grpc::Status::CANCELLED); }
  void Abort() override {
    // The read under way fails and finishes the RPC (or has succeeded: see Arrived).
    std::lock_guard<std::recursive_mutex> lock(context_mutex_);
    if (!done_) context_->TryCancel();
  }

  TailRouter* const router_;
  EventLoop* const loop_;
  grpc::CallbackServerContext* const context_;
  v1::OutputChunk in_;
  std::shared_ptr<OutputReader> self_;  // until OnDone
  std::recursive_mutex context_mutex_;  // TryCancel may run OnDone on the calling thread
  bool done_ = false;                   // under context_mutex_
};

}  // namespace

uint64_t TailRouter::Open(const NodeId& node, v1::TailRequest request, std::weak_ptr<TailReceiver> receiver) {
  const uint64_t id = next_tail_++;
  request.set_tail_id(id);
  v1::ControllerMsg message;
  *message.mutable_tail() = std::move(request);
  // Before sending: the first chunk may be quick (it is handled on this thread, but later).
  tails_[id] = Tail{node, std::move(receiver), nullptr};
  if (agents_->SendTo(node, std::move(message))) return id;
  tails_.erase(id);
  return 0;
}

void TailRouter::Cancel(uint64_t id) {
  auto it = tails_.find(id);
  if (it == tails_.end()) return;
  Tail tail = std::move(it->second);
  tails_.erase(it);
  v1::ControllerMsg message;
  message.mutable_tail_cancel()->set_tail_id(id);
  agents_->SendTo(tail.node, std::move(message));
  if (tail.reader != nullptr) tail.reader->Cancel();
}

void TailRouter::Resume(uint64_t id) {
  auto it = tails_.find(id);
  if (it == tails_.end() || it->second.reader == nullptr || !it->second.reader->holding()) return;
  it->second.reader->ReadOn();
}

grpc::ServerReadReactor<v1::OutputChunk>* TailRouter::NewOutput(grpc::CallbackServerContext* context,
                                                                absl::Status allowed) {
  auto reader = std::make_shared<OutputRpc>(this, loop_, context);
  OutputRpc* raw = reader.get();
  if (allowed.ok()) {
    reader->Start();
  } else {
    reader->End(allowed);
  }
  return raw;
}

void TailRouter::Arrived(const std::shared_ptr<OutputReader>& reader, v1::OutputChunk chunk) {
  reader->Hold();
  if (reader->tail == 0) {
    auto it = tails_.find(chunk.tail_id());
    // Unknown: cancelled meanwhile, or of a controller that is no more.
    if (it == tails_.end() || it->second.reader != nullptr) return reader->Cancel();
    reader->tail = chunk.tail_id();
    it->second.reader = reader;
  }
  auto it = tails_.find(reader->tail);
  if (it == tails_.end() || reader->cancelled()) return reader->Cancel();
  const std::shared_ptr<TailReceiver> receiver = it->second.receiver.lock();
  if (receiver == nullptr) return Cancel(reader->tail);
  if (receiver->OnChunk(reader->tail, std::move(chunk))) Resume(reader->tail);
}

void TailRouter::ReaderEnded(uint64_t id, bool complete) {
  auto it = tails_.find(id);
  if (it == tails_.end()) return;
  const std::shared_ptr<TailReceiver> receiver = it->second.receiver.lock();
  tails_.erase(it);
  if (receiver != nullptr) receiver->OnTailEnd(id, complete);
}

void TailRouter::NodeDown(const NodeId& node) {
  std::vector<uint64_t> lost;
  for (const auto& [id, tail] : tails_) {
    if (tail.node == node && tail.reader == nullptr) lost.push_back(id);
  }
  for (uint64_t id : lost) ReaderEnded(id, false);
}

}  // namespace dgxrun
