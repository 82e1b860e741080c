// The output of one job, from its controller to a console: every byte once and in order, however often the
// connection breaks.
//
// A call that breaks off because the controller is away (UNAVAILABLE) is made again, after a pause that grows
// from kFirstRetry to kLastRetry, for the attempt that was being shown, from the places in its output that
// were reached; what comes again all the same (an older controller) is dropped by its offset. When nothing
// could be had for `give_up`, or for any other error, `done` gets it. Everything happens on the loop's
// thread. The owner keeps this until running() is false.
#ifndef DGXRUN_CLI_LOG_FOLLOWER_H_
#define DGXRUN_CLI_LOG_FOLLOWER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/console.h"
#include "cli/stream_reader.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun::cli {

inline constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
inline constexpr absl::Duration kLastRetry = absl::Seconds(2);
// A controller that is upgraded or moved is back within this.
inline constexpr absl::Duration kReconnectLimit = absl::Minutes(2);

// When to try again. One lost connection is a row of failures that begins with the first and ends with Ok.
class Retry {
 public:
  explicit Retry(absl::Duration limit) : limit_(limit) {}
  // The pause before the next try; nullopt: the row has lasted for `limit`.
  std::optional<absl::Duration> Failed(int64_t now_ns);
  void Ok();

 private:
  absl::Duration limit_;
  absl::Duration pause_ = kFirstRetry;
  std::optional<int64_t> since_ns_;
};

class LogFollower {
 public:
  struct Options {
    std::string job;
    std::vector<uint32_t> ranks;        // empty: all
    std::optional<uint32_t> attempt;    // the first one; without: the current one
    std::vector<v1::LogPosition> from;  // of that one: what the console has had
    bool follow = true;                 // false: one attempt, as far as it is written now
    bool show_stdout = true;
    bool may_be_unknown = false;  // NOT_FOUND too: a controller that begins anew will hear of the job
    absl::Duration give_up = kReconnectLimit;  // zero: a lost connection is an error
    bool say_lost = false;                     // a line when the connection is lost, and when it is back
  };

  // `done`: once, unless cancelled: OK when all was shown.
  LogFollower(EventLoop* loop, Client* client, Console* console, Options options,
              std::function<void(const absl::Status&)> done);

  void Start();
  void Hold(bool hold);  // a console that has enough to write: nothing more is read
  void Cancel();         // running() is false soon, in the loop
  bool running() const { return reader_ != nullptr || timer_ != 0; }

  uint64_t chunks() const { return chunks_; }  // that have come
  // The newest attempt of which output has come; nullopt: none has.
  std::optional<uint32_t> attempt() const { return seen_; }
  // How far its output has come, or where `from` says, if nothing has come.
  std::vector<v1::LogPosition> reached() const;

 private:
  void Call();
  void OnChunk(const v1::OutputChunk& chunk);
  void OnDone(const grpc::Status& status);
  void End(const absl::Status& status);

  EventLoop* const loop_;
  Client* const client_;
  Console* const console_;
  const Options options_;
  std::function<void(const absl::Status&)> done_;
  std::unique_ptr<StreamReader<v1::OutputChunk>> reader_;
  Retry retry_;
  EventLoop::TimerId timer_ = 0;
  int64_t called_ns_ = 0;
  std::optional<uint32_t> seen_;
  std::map<std::pair<uint32_t, v1::Stream>, uint64_t>
      next_;  // of seen_, or of the first: offset by rank, stream
  uint64_t chunks_ = 0;
  bool held_ = false;
  bool cancelled_ = false;
  bool said_lost_ = false;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LOG_FOLLOWER_H_
