// The server's end of a stream of messages: a list that is sent whole, or values that come one by one until
// the last (Watch). The queue is bounded: when the client is slow, the newest value takes the place of the
// last one queued, so that it always learns the latest. Everything but gRPC's callbacks runs on the loop.
#ifndef DGXRUN_CONTROLLER_LIST_STREAM_H_
#define DGXRUN_CONTROLLER_LIST_STREAM_H_

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "grpcpp/support/server_callback.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

template <class T>
class ListStream : public grpc::ServerWriteReactor<T>, public std::enable_shared_from_this<ListStream<T>> {
 public:
  // A watcher that is this far behind has seen enough of the steps between.
  static constexpr size_t kMaxBehind = 256;

  static std::shared_ptr<ListStream> Make(EventLoop* loop) {
    std::shared_ptr<ListStream> stream(new ListStream(loop));
    stream->self_ = stream;
    return stream;
  }

  // On the loop. `value` of a list is never dropped; of a watch it may be replaced by the next.
  void Push(T value, bool droppable) {
    if (ended_) return;
    if (droppable && queue_.size() >= kMaxBehind) {
      queue_.back() = std::move(value);
    } else {
      queue_.push_back(std::move(value));
    }
    WriteNext();
  }
  // After what is queued; `status` not OK: at once.
  void Close(const grpc::Status& status) {
    closing_ = true;
    if (!status.ok()) return End(status);
    if (queue_.empty() && !writing_) End(status);
  }
  // Called once on the loop when the stream ends, by whoever's wish.
  void set_on_end(std::function<void()> on_end) {
    on_end_ = std::move(on_end);
    if (ended_ && on_end_) std::exchange(on_end_, nullptr)();
  }

  void OnWriteDone(bool ok) override {
    loop_->Post([self = this->shared_from_this(), ok] {
      self->writing_ = false;
      if (!ok) return self->End(grpc::Status::CANCELLED);
      self->WriteNext();
      if (self->closing_ && self->queue_.empty() && !self->writing_) self->End(grpc::Status::OK);
    });
  }
  void OnCancel() override {
    loop_->Post([self = this->shared_from_this()] { self->End(grpc::Status::CANCELLED); });
  }
  void OnDone() override {
    loop_->Post([self = std::move(self_)] {});
  }

 private:
  explicit ListStream(EventLoop* loop) : loop_(loop) {}
  void WriteNext() {
    if (writing_ || ended_ || queue_.empty()) return;
    out_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    this->StartWrite(&out_);
  }
  void End(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    queue_.clear();
    if (on_end_) std::exchange(on_end_, nullptr)();
    this->Finish(status);
  }

  EventLoop* const loop_;
  std::shared_ptr<ListStream> self_;  // until OnDone
  std::deque<T> queue_;
  T out_;
  std::function<void()> on_end_;
  bool writing_ = false;
  bool closing_ = false;
  bool ended_ = false;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_LIST_STREAM_H_
