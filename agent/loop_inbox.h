// The way back to an event loop for work that may outlive it: detached file tasks and gRPC reactors.
// Once closed, what is posted is dropped. Thread-safe.
#ifndef DGXRUN_AGENT_LOOP_INBOX_H_
#define DGXRUN_AGENT_LOOP_INBOX_H_

#include <functional>
#include <mutex>
#include <utility>

#include "launcher/base/event_loop.h"

namespace dgxrun::agent {

class LoopInbox {
 public:
  explicit LoopInbox(EventLoop* loop) : loop_(loop) {}

  void Post(std::function<void()> callback) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (loop_ != nullptr) loop_->Post(std::move(callback));
  }
  // The loop's owner calls it before the loop, or anything that callbacks use, goes away. Callbacks already
  // posted must not run after that: the loop is not run again.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  EventLoop* loop_;  // under mutex_
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_LOOP_INBOX_H_
