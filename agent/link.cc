#include "agent/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dgxrun::agent {

Link::Link(EventLoop* loop, std::shared_ptr<LoopInbox> inbox, std::shared_ptr<ControllerLine> line,
           Events events)
    : loop_(loop), inbox_(std::move(inbox)), line_(std::move(line)), events_(std::move(events)) {}

Link::~Link() {
  loop_->Cancel(redial_);
  loop_->Cancel(silence_timer_);
}

void Link::Dial() {
  if (call_ != nullptr || final_) return;
  ++stream_;
  StreamEvents events;
  events.message = [this, inbox = inbox_, number = stream_](v1::ControllerMsg message) {
    inbox->Post(
        [this, number, message = std::move(message)]() mutable { OnMessage(number, std::move(message)); });
  };
  events.closed = [this, inbox = inbox_, number = stream_](const std::string& why) {
    inbox->Post([this, number, why] { OnClosed(number, why); });
  };
  call_ = line_->Connect(std::move(events));
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
  call_.reset();
  loop_->Cancel(silence_timer_);
  events_.on_down(why);
  if (final_) return;
  // Half of the wait is random, so that agents that lost the same controller do not come back in step.
  const absl::Duration wait = backoff_ * absl::Uniform(random_, 0.5, 1.0);
  backoff_ = std::min(backoff_ * 2, kMaxBackoff);
  redial_ = loop_->After(wait, [this] { Dial(); });
}

}  // namespace dgxrun::agent
