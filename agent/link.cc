#include "agent/link.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace dgxrun::agent {

// One stream. Lives until OnDone, which may be after the Link; `link` is only used on the loop, while the
// inbox is open and the stream's number is still the link's.
class LinkCall final : public grpc::ClientBidiReactor<v1::AgentMsg, v1::ControllerMsg> {
 public:
  LinkCall(Link* link, uint64_t number)
      : link_(link),
        number_(number),
        inbox_(link->inbox_),
        channel_(link->channel_),
        stub_(v1::AgentLink::NewStub(channel_)) {}

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
    if (!ok) {
      // The end of the stream; the link answers with Cancel, which lets OnDone come.
      return inbox_->Post(
          [link = link_, number = number_] { link->OnClosed(number, "the controller closed the stream"); });
    }
    inbox_->Post([link = link_, number = number_, message = std::move(incoming_)]() mutable {
      link->OnMessage(number, std::move(message));
    });
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

  Link* const link_;
  const uint64_t number_;
  const std::shared_ptr<LoopInbox> inbox_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::AgentLink::Stub> stub_;
  grpc::ClientContext context_;
  v1::ControllerMsg incoming_;
  std::mutex mutex_;
  std::deque<v1::AgentMsg> queue_;  // under mutex_; the front one is being written while writing_
  bool writing_ = false;            // under mutex_
};

Link::Link(EventLoop* loop, std::shared_ptr<LoopInbox> inbox, std::shared_ptr<grpc::Channel> channel,
           Events events)
    : loop_(loop), inbox_(std::move(inbox)), channel_(std::move(channel)), events_(std::move(events)) {}

Link::~Link() {
  loop_->Cancel(redial_);
  loop_->Cancel(silence_timer_);
  if (call_ != nullptr) call_->Cancel();
}

void Link::Dial() {
  if (call_ != nullptr || final_) return;
  call_ = new LinkCall(this, ++stream_);  // deletes itself in OnDone
  call_->Begin();
  silence_ = kWelcomeLimit;
  heard_ns_ = EventLoop::BoottimeNs();
  WatchSilence();
  events_.on_up();
}

void Link::Send(v1::AgentMsg message) {
  if (call_ != nullptr) call_->Send(std::move(message));
}

void Link::Close(const std::string& why, bool final) {
  final_ = final_ || final;
  if (call_ != nullptr) Down(why);
}

void Link::WatchSilence() {
  silence_timer_ = loop_->At(heard_ns_ + absl::ToInt64Nanoseconds(silence_), [this] {
    if (call_ == nullptr) return;
    if (EventLoop::BoottimeNs() - heard_ns_ < absl::ToInt64Nanoseconds(silence_)) return WatchSilence();
    Down(absl::StrCat("no word from the controller for ", absl::FormatDuration(silence_)));
  });
}

void Link::OnMessage(uint64_t stream, v1::ControllerMsg message) {
  if (call_ == nullptr || stream != stream_) return;  // of a stream that was given up
  heard_ns_ = EventLoop::BoottimeNs();
  backoff_ = kFirstBackoff;
  events_.on_message(std::move(message));
}

void Link::OnClosed(uint64_t stream, const std::string& why) {
  if (call_ != nullptr && stream == stream_) Down(why);
}

void Link::Down(const std::string& why) {
  std::exchange(call_, nullptr)->Cancel();
  loop_->Cancel(silence_timer_);
  events_.on_down(why);
  if (final_) return;
  // Half of the wait is random, so that agents that lost the same controller do not come back in step.
  const absl::Duration wait = backoff_ * absl::Uniform(random_, 0.5, 1.0);
  backoff_ = std::min(backoff_ * 2, kMaxBackoff);
  redial_ = loop_->After(wait, [this] { Dial(); });
}

}  // namespace dgxrun::agent
