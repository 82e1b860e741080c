// The socket between agent and shim, and the files beside it. Any bytes, cut anywhere, are either messages
// or an error; the same bytes give the same messages however they are cut; and what a shim or an agent
// understood of a message survives being sent again.
#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dgxrun/v1/shim.pb.h"
#include "launcher/base/unique_fd.h"
#include "launcher/shim_channel.h"
#include "tests/fuzz/require.h"

namespace dgxrun {
namespace {

constexpr size_t kMaxInput = 16 << 10;  // of a stream: fits the socket's buffer

struct Heard {
  std::vector<std::string> messages;
  bool broken = false;
};

// `cuts`: how many bytes to write before each read.
Heard Hear(const std::string& stream, const std::vector<size_t>& cuts) {
  int fds[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
  UniqueFd writer(fds[0]);
  ShimChannel channel((UniqueFd(fds[1])));
  Heard heard;
  const auto read = [&] {
    const absl::Status status =
        channel.Read([&](const std::string& bytes) { heard.messages.push_back(bytes); });
    if (!status.ok()) heard.broken = true;
  };
  size_t at = 0;
  for (size_t i = 0; at < stream.size() && !heard.broken; ++i) {
    const size_t n = i < cuts.size() ? std::min(cuts[i], stream.size() - at) : stream.size() - at;
    Require(write(writer.get(), stream.data() + at, n) == static_cast<ssize_t>(n), "write");
    at += n;
    read();
  }
  return heard;
}

// Parsed, printed and parsed again it is the same.
template <class Message>
void RoundTrip(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  Message again;
  Require(again.ParseFromString(message.SerializeAsString()), "own bytes do not parse");
  Require(again.SerializeAsString() == message.SerializeAsString(), "own bytes change");
}

}  // namespace
}  // namespace dgxrun

// Protobuf would print a line for each string that is no UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > dgxrun::kMaxInput) return 0;
  FuzzedDataProvider input(data, size);
  std::vector<size_t> cuts;
  for (size_t n = input.ConsumeIntegralInRange<size_t>(0, 6); n > 0; --n) {
    cuts.push_back(input.ConsumeIntegralInRange<size_t>(1, 200));
  }
  const std::string stream = input.ConsumeRemainingBytesAsString();
  const dgxrun::Heard cut = dgxrun::Hear(stream, cuts);
  const dgxrun::Heard whole = dgxrun::Hear(stream, {});
  dgxrun::Require(cut.messages == whole.messages && cut.broken == whole.broken, "cuts change what is heard");
  for (const std::string& bytes : whole.messages) {
    dgxrun::RoundTrip<dgxrun::v1::ShimCommand>(bytes);
    dgxrun::RoundTrip<dgxrun::v1::ShimMsg>(bytes);
    dgxrun::RoundTrip<dgxrun::v1::ShimFinal>(bytes);
  }
  return 0;
}
