#include "controller/agent_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/agent_stream.h"
#include "controller/tail_router.h"
#include "proto/rpc/status.h"
#include "proto/rpc/wire_version.h"
#include "spdlog/spdlog.h"

namespace dgxrun {
namespace {

constexpr absl::Duration kHelloTimeout = absl::Seconds(5);  // the first thing an agent does
// An agent that does not read holds at most this in our memory before it is dropped; it comes back.
constexpr size_t kMaxQueuedBytes = 64u << 20;
// One host runs one agent; tests and dev clusters run hundreds behind one address.
constexpr int kMaxStreamsPerAddress = 4096;
// While the engine is behind, a stream is read again after this.
constexpr absl::Duration kSaturatedPause = absl::Milliseconds(10);

// Ends at once with an error.
class RefusedStream : public grpc::ServerBidiReactor<v1::AgentMsg, v1::ControllerMsg> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

absl::Status CheckHello(const v1::Hello& hello) {
  absl::Status fits = CheckWireVersion(hello.version(), absl::StrCat("the agent of ", hello.node_name()));
  if (!fits.ok()) return fits;
  if (!IsValidName(hello.node_id())) return absl::InvalidArgumentError("the hello has no node id");
  if (!IsValidName(hello.node_name())) {
    return absl::InvalidArgumentError(absl::StrCat("\"", hello.node_name(), "\" is no node name"));
  }
  return absl::OkStatus();
}

v1::ControllerMsg Refusal(const absl::Status& why) {
  v1::ControllerMsg message;
  message.mutable_refused()->set_reason(std::string(why.message()));
  message.mutable_refused()->set_final(true);
  return message;
}

void AgentStream::Start() {
  self_ = shared_from_this();
  std::weak_ptr<AgentStream> weak = self_;
  service_->loop_->Post([weak, loop = service_->loop_] {
    loop->After(kHelloTimeout, [weak] {
      std::shared_ptr<AgentStream> stream = weak.lock();
      if (stream == nullptr) return;
      {
        std::lock_guard<std::mutex> lock(stream->mutex_);
        if (stream->greeted_) return;
      }
      v1::ControllerMsg message;
      message.mutable_refused()->set_reason("no hello within 5 s");
      stream->Send(std::move(message), true);
    });
  });
  StartRead(&in_);
}

bool AgentStream::welcomed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return welcomed_ && !ending_ && !broken_;
}

void AgentStream::Send(v1::ControllerMsg message, bool last) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_ || broken_ || finished_) return;
    if (message.has_welcome()) welcomed_ = true;
    ending_ = last;
    queued_bytes_ += message.ByteSizeLong();
    queue_.push_back(std::move(message));
    if (queued_bytes_ <= kMaxQueuedBytes) {
      if (writing_ || pump_posted_) return;
      pump_posted_ = true;
      service_->loop_->Post([self = shared_from_this()] { self->Pump(); });
      return;
    }
  }
  spdlog::warn("controller: connection {}: the agent does not read; closed", connection_);
  Cancel();
}

void AgentStream::Cancel() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }
  std::lock_guard<std::recursive_mutex> lock(context_mutex_);
  if (!done_) context_->TryCancel();
}

AgentStream::Next AgentStream::NextStep() {
  if (writing_ || finished_) return Next::kNothing;
  if (broken_ || (ending_ && queue_.empty())) {
    finished_ = true;
    return Next::kFinish;
  }
  if (queue_.empty()) return Next::kNothing;
  out_ = std::move(queue_.front());
  queue_.pop_front();
  queued_bytes_ -= out_.ByteSizeLong();
  writing_ = true;
  return Next::kWrite;
}

void AgentStream::Do(Next next) {
  switch (next) {
    case Next::kNothing:
      return;
    case Next::kWrite:
      return StartWrite(&out_);
    case Next::kFinish:
      return Finish(grpc::Status::OK);
  }
}

void AgentStream::Pump() {
  Next next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pump_posted_ = false;
    // A cancelled stream is finished by its failed read: this may run after gRPC is done with it.
    next = broken_ ? Next::kNothing : NextStep();
  }
  Do(next);
}

void AgentStream::OnWriteDone(bool ok) {
  Next next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) {
      // The read fails too and finishes the stream, if it has not failed already.
      if (!broken_) return;
    }
    next = NextStep();
  }
  Do(next);
}

void AgentStream::OnReadDone(bool ok) {
  if (ok) return HandleMessage();
  Next next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    next = NextStep();
  }
  Do(next);
}

void AgentStream::ReadOn() {
  if (!service_->engine_->saturated()) return StartRead(&in_);
  service_->loop_->Post([self = shared_from_this()] {
    self->service_->loop_->After(kSaturatedPause, [self] { self->ReadOn(); });
  });
}

bool AgentStream::HandleHello(const v1::Hello& hello) {
  if (absl::Status fits = CheckHello(hello); !fits.ok()) {
    Send(Refusal(fits), true);
    return false;
  }
  node_ = NodeId(hello.node_id());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    greeted_ = true;
  }
  service_->Greeted(shared_from_this(), node_);
  service_->engine_->Post({{}, core::NodeConnected{connection_, hello, peer_address_}});
  return true;
}

void AgentStream::HandleMessage() {
  switch (in_.body_case()) {
    case v1::AgentMsg::kHello:
      // A second hello would be another node on the same stream: the first one's reading ends here.
      if (!node_.empty() || !HandleHello(in_.hello())) return StartRead(&in_);
      break;
    case v1::AgentMsg::kHeartbeat:
      if (!node_.empty())
        service_->engine_->Post({{}, core::NodeHeartbeat{node_, connection_, in_.heartbeat()}});
      break;
    case v1::AgentMsg::kReport:
      if (!node_.empty()) service_->engine_->Post({{}, core::NodeReport{node_, connection_, in_.report()}});
      break;
    case v1::AgentMsg::BODY_NOT_SET:
      break;  // of a newer minor version
  }
  ReadOn();
}

void AgentStream::OnDone() {
  {
    std::lock_guard<std::recursive_mutex> lock(context_mutex_);
    done_ = true;
  }
  const std::shared_ptr<AgentStream> self = std::move(self_);
  service_->Ended(connection_, node_, peer_address_);
}

grpc::ServerBidiReactor<v1::AgentMsg, v1::ControllerMsg>* AgentService::Connect(
    grpc::CallbackServerContext* context) {
  absl::Status allowed = peers_->CheckAgent(*context);
  if (!allowed.ok()) return new RefusedStream(allowed);
  auto stream = std::make_shared<AgentStream>(this, context, NextConnection(), Peers::AddressOf(*context));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    int& from = streams_from_[Peers::AddressOf(*context)];
    if (from >= kMaxStreamsPerAddress) {
      return new RefusedStream(absl::ResourceExhaustedError("too many agents from one address"));
    }
    ++from;
    streams_[stream->connection()] = stream;
  }
  stream->Start();
  return stream.get();
}

grpc::ServerReadReactor<v1::OutputChunk>* AgentService::Output(grpc::CallbackServerContext* context,
                                                               v1::OutputDone*) {
  return tails_->NewOutput(context, peers_->CheckAgent(*context));
}

void AgentService::Add(const std::shared_ptr<NodeStream>& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_[stream->connection()] = stream;
}

void AgentService::Greeted(const std::shared_ptr<NodeStream>& stream, const NodeId& node) {
  std::shared_ptr<NodeStream> older;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    core::ConnectionId& newest = by_node_[node];
    auto it = streams_.find(newest);
    if (it != streams_.end() && it->second != stream) older = it->second;
    newest = stream->connection();
  }
  if (older != nullptr) older->Cancel();
}

void AgentService::Ended(core::ConnectionId connection, const NodeId& node, const std::string& peer_address) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.erase(connection);
    auto from = streams_from_.find(peer_address);
    if (from != streams_from_.end() && --from->second == 0) streams_from_.erase(from);
    auto newest = by_node_.find(node);
    if (newest != by_node_.end() && newest->second == connection) by_node_.erase(newest);
  }
  if (node.empty()) return;
  engine_->Post({{}, core::NodeDisconnected{node, connection}});
  loop_->Post([tails = tails_, node] { tails->NodeDown(node); });
}

void AgentService::SendOn(core::ConnectionId connection, v1::ControllerMsg message, bool last) {
  std::shared_ptr<NodeStream> stream;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = streams_.find(connection);
    if (it == streams_.end()) return;
    stream = it->second;
  }
  stream->Send(std::move(message), last);
}

void AgentService::CloseAllStreams() {
  std::vector<std::shared_ptr<NodeStream>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [connection, stream] : streams_) all.push_back(stream);
  }
  for (auto& stream : all) stream->Cancel();
}

bool AgentService::SendTo(const NodeId& node, v1::ControllerMsg message) {
  std::shared_ptr<NodeStream> stream;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto newest = by_node_.find(node);
    if (newest == by_node_.end()) return false;
    auto it = streams_.find(newest->second);
    if (it == streams_.end()) return false;
    stream = it->second;
  }
  if (!stream->welcomed()) return false;
  stream->Send(std::move(message), false);
  return true;
}

}  // namespace dgxrun
