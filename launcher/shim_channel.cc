#include "launcher/shim_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dgxrun {
namespace {

constexpr size_t kReadChunk = 64 << 10;  // one read takes a usual plan whole and fits the stack
constexpr int kMaxVarintBytes = 5;       // 16 MiB needs 4; a longer one is no length of ours

// Bytes that the varint at `in[at]` takes; 0: incomplete; -1: not a length.
int ParseLength(const std::string& in, size_t at, uint64_t* length) {
  *length = 0;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    if (at + i >= in.size()) return 0;
    const auto byte = static_cast<unsigned char>(in[at + i]);
    *length |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) return i + 1;
  }
  return -1;
}

}  // namespace

ShimChannel::ShimChannel(UniqueFd fd) : fd_(std::move(fd)) {
  const int flags = fcntl(fd_.get(), F_GETFL);
  if (flags >= 0) fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
}

absl::Status ShimChannel::Send(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxMessageBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("message of ", size, " bytes is over the limit"));
  }
  if (out_.size() + size > kMaxQueuedBytes) {
    return absl::ResourceExhaustedError("the peer does not read");
  }
  uint64_t length = size;
  do {
    const auto low = static_cast<unsigned char>(length & 0x7f);
    length >>= 7;
    out_.push_back(static_cast<char>(length != 0 ? low | 0x80 : low));
  } while (length != 0);
  message.AppendToString(&out_);
  return Flush();
}

absl::Status ShimChannel::Flush() {
  size_t done = 0;
  absl::Status status;
  while (done < out_.size()) {
    const ssize_t n = send(fd_.get(), out_.data() + done, out_.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    } else {
      status = absl::UnavailableError(absl::StrCat("send: ", strerror(errno)));
      break;
    }
  }
  out_.erase(0, done);
  return status;
}

absl::Status ShimChannel::Read(const std::function<void(const std::string& bytes)>& on_message) {
  absl::Status status;
  char buffer[kReadChunk];
  while (status.ok()) {
    const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      in_.append(buffer, static_cast<size_t>(n));
      if (in_.size() > kMaxMessageBytes + kReadChunk) break;  // parse before taking more
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    status = absl::UnavailableError(n == 0 ? std::string("closed by the peer")
                                           : absl::StrCat("recv: ", strerror(errno)));
  }
  // The messages that came before an EOF still count.
  size_t at = 0;
  while (at < in_.size()) {
    uint64_t length;
    const int head = ParseLength(in_, at, &length);
    if (head == 0) break;
    if (head < 0 || length > kMaxMessageBytes) return absl::InvalidArgumentError("frame over the limit");
    if (in_.size() - at - static_cast<size_t>(head) < length) break;
    const std::string message = in_.substr(at + static_cast<size_t>(head), length);
    at += static_cast<size_t>(head) + length;
    on_message(message);
  }
  in_.erase(0, at);
  return status;
}

}  // namespace dgxrun
