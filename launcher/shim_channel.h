// Length-delimited protobuf messages (varint size, then bytes) over a non-blocking unix stream socket.
// Used by both ends. Owns the fd; never blocks; output that does not fit the socket is queued up to
// kMaxQueuedBytes and flushed when the event loop reports the fd writable.
#ifndef DGXRUN_LAUNCHER_SHIM_CHANNEL_H_
#define DGXRUN_LAUNCHER_SHIM_CHANNEL_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

class ShimChannel {
 public:
  // A message may hold a whole NodePlan with the caller's environment: 16 MiB, like gRPC's limit.
  static constexpr size_t kMaxMessageBytes = 16u << 20;
  // An agent that does not read for this long a queue is treated as gone.
  static constexpr size_t kMaxQueuedBytes = 32u << 20;

  explicit ShimChannel(UniqueFd fd);

  int fd() const { return fd_.get(); }
  bool wants_write() const { return !out_.empty(); }

  // Queues and tries to write. Unavailable when the peer is gone, ResourceExhausted over the limit.
  absl::Status Send(const google::protobuf::MessageLite& message);
  absl::Status Flush();

  // Reads what is there and calls `on_message` with the bytes of each complete message.
  // Unavailable at EOF or a broken connection; InvalidArgument for a frame over the limit.
  absl::Status Read(const std::function<void(const std::string& bytes)>& on_message);

 private:
  UniqueFd fd_;
  std::string in_;
  std::string out_;
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_SHIM_CHANNEL_H_
