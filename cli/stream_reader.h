// Reads a stream of messages from the controller into an event loop.
//
// gRPC calls the reactor on its own threads; everything that the owner sees happens on the loop's thread:
// `message` for each one, in order, then `done` once. At most kMaxQueued messages wait: a reader that is
// held (or slow) stops reading, and gRPC's flow control stops the sender. The owner keeps the object until
// `done` was called, and may destroy it from then on.
#ifndef DGXRUN_CLI_STREAM_READER_H_
#define DGXRUN_CLI_STREAM_READER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "launcher/base/event_loop.h"

namespace dgxrun::cli {

template <class Message>
class StreamReader : public grpc::ClientReadReactor<Message> {
 public:
  // 64 chunks of at most 64 KiB: enough to keep the wire busy, little enough to hold in memory.
  static constexpr size_t kMaxQueued = 64;

  StreamReader(EventLoop* loop, std::function<void(const Message&)> message,
               std::function<void(const grpc::Status&)> done)
      : loop_(loop), on_message_(std::move(message)), on_done_(std::move(done)) {}

  grpc::ClientContext* context() { return &context_; }
  // After the stub's async call was made with this reactor.
  void Start() {
    this->StartRead(&reading_);
    this->StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  // While held, messages stay in the queue. Loop's thread only.
  void Hold(bool hold) {
    held_ = hold;
    if (!held_) Drain();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // the end; OnDone follows
    bool read_on = false, wake = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wake = queue_.empty();
      queue_.push_back(std::move(reading_));
      read_on = queue_.size() < kMaxQueued;
      waiting_for_room_ = !read_on;
    }
    if (wake) loop_->Post([this] { Drain(); });
    if (read_on) {
      reading_ = Message();
      this->StartRead(&reading_);
    }
  }

  void OnDone(const grpc::Status& status) override {
    loop_->Post([this, status] {
      ended_ = true;
      end_status_ = status;
      Drain();
    });
  }

  void Drain() {
    for (;;) {
      std::deque<Message> batch;
      bool read_on = false;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!held_) batch.swap(queue_);
        read_on = !held_ && waiting_for_room_;
        if (read_on) waiting_for_room_ = false;
      }
      if (read_on) {
        reading_ = Message();
        this->StartRead(&reading_);
      }
      while (!batch.empty() && !held_) {
        on_message_(batch.front());
        batch.pop_front();
      }
      if (batch.empty()) break;
      std::lock_guard<std::mutex> lock(mutex_);  // held in the middle: what is left goes back, in order
      queue_.insert(queue_.begin(), std::make_move_iterator(batch.begin()),
                    std::make_move_iterator(batch.end()));
      return;
    }
    if (!ended_ || held_ || !on_done_) return;
    std::function<void(const grpc::Status&)> done = std::move(on_done_);
    on_done_ = nullptr;
    done(end_status_);  // may destroy this
  }

  EventLoop* loop_;
  grpc::ClientContext context_;
  std::function<void(const Message&)> on_message_;
  std::function<void(const grpc::Status&)> on_done_;
  Message reading_;  // gRPC's while a read is under way
  std::mutex mutex_;
  std::deque<Message> queue_;      // under mutex_
  bool waiting_for_room_ = false;  // under mutex_
  // Loop's thread only:
  bool held_ = false;
  bool ended_ = false;
  grpc::Status end_status_;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_STREAM_READER_H_
