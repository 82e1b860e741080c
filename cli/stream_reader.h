// Reads a stream of messages from the controller into an event loop. Begun by Client, over gRPC or within the
// process.
//
// Messages come in on other threads (gRPC's or the controller's); everything that the owner sees happens on
// the loop's thread: `message` for each one, in order, then `done` once. At most kMaxQueued messages wait: a
// reader that is held (or slow) stops reading, and flow control stops the sender. The owner keeps the object
// until `done` was called, and may destroy it from then on.
#ifndef DGXRUN_CLI_STREAM_READER_H_
#define DGXRUN_CLI_STREAM_READER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "controller/in_process.h"
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

  // Over gRPC: after the stub's async call was made with this reactor and its context.
  grpc::ClientContext* context() {
    if (context_ == nullptr) context_ = std::make_unique<grpc::ClientContext>();
    return context_.get();
  }
  void Start() {
    this->StartRead(&reading_);
    this->StartCall();
  }
  // Within the process: the call, and what it says, on any thread. `taken`, if given, is called when the
  // next message may come.
  void StartHere(std::unique_ptr<InProcess::Call> call) { call_ = std::move(call); }
  void Take(Message message, std::function<void()> taken) {
    bool wake = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wake = queue_.empty();
      queue_.push_back(std::move(message));
      waiting_for_room_ = taken != nullptr;
      taken_ = std::move(taken);
    }
    if (wake) loop_->Post([this] { Drain(); });
  }
  void End(const grpc::Status& status) {
    loop_->Post([this, status] {
      ended_ = true;
      end_status_ = status;
      Drain();
    });
  }

  void Cancel() {
    if (call_ != nullptr) {
      call_->Cancel();
    } else {
      context()->TryCancel();
    }
  }

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

  void OnDone(const grpc::Status& status) override { End(status); }

  void ReadOn(std::function<void()> taken) {
    if (taken != nullptr) return taken();
    reading_ = Message();
    this->StartRead(&reading_);
  }

  void Drain() {
    for (;;) {
      std::deque<Message> batch;
      std::function<void()> taken;
      bool read_on = false;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!held_) batch.swap(queue_);
        read_on = !held_ && waiting_for_room_;
        if (read_on) {
          waiting_for_room_ = false;
          taken = std::exchange(taken_, nullptr);
        }
      }
      if (read_on) ReadOn(std::move(taken));
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
    const grpc::Status status = end_status_;
    done(status);  // may destroy this
  }

  EventLoop* loop_;
  std::unique_ptr<grpc::ClientContext> context_;  // over gRPC
  std::unique_ptr<InProcess::Call> call_;         // within the process
  std::function<void(const Message&)> on_message_;
  std::function<void(const grpc::Status&)> on_done_;
  Message reading_;  // gRPC's while a read is under way
  std::mutex mutex_;
  std::deque<Message> queue_;      // under mutex_
  bool waiting_for_room_ = false;  // under mutex_
  std::function<void()> taken_;    // under mutex_; of the newest message, within the process
  // Loop's thread only:
  bool held_ = false;
  bool ended_ = false;
  grpc::Status end_status_;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_STREAM_READER_H_
