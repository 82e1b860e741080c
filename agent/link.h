// The Connect stream to the controller: dials, dials again, passes messages on. Says nothing by itself.
//
//   down --dial--> up (on_up) --broken, silent, Close--> down (on_down) --after a back-off--> dial again
//
// A stream counts as up as soon as it is begun; what is sent before the connection is there waits in it. A
// stream on which nothing was heard for `silence` is given up, so that a Hello is never older than that.
//
// Loop's thread only. The line's callbacks come back through the inbox, tagged with the stream they belong
// to: they may come after the Link is gone, when the inbox is closed.
#ifndef DGXRUN_AGENT_LINK_H_
#define DGXRUN_AGENT_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/random/random.h"
#include "absl/time/time.h"
#include "agent/controller_line.h"
#include "agent/loop_inbox.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun::agent {

class Link {
 public:
  // The first attempt to come again is quick, since a controller's restart takes some 10 ms; then slower, so
  // that thousands of agents do not keep a starting controller from starting.
  static constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
  static constexpr absl::Duration kMaxBackoff = absl::Seconds(1);
  // Without a word for so long the stream is broken off: a dead peer, or a Hello that went stale. A Welcome
  // takes milliseconds; SetSilence follows the cluster's own timeouts afterwards.
  static constexpr absl::Duration kWelcomeLimit = absl::Seconds(5);

  struct Events {
    std::function<void()> on_up;
    std::function<void(const std::string& why)> on_down;
    std::function<void(v1::ControllerMsg)> on_message;
  };

  Link(EventLoop* loop, std::shared_ptr<LoopInbox> inbox, std::shared_ptr<ControllerLine> line,
       Events events);
  ~Link();  // breaks the stream off
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void Dial();
  void Send(v1::AgentMsg message);  // dropped when down
  // After on_down it does not dial again when `final`.
  void Close(const std::string& why, bool final);
  void SetSilence(absl::Duration silence) { silence_ = silence; }

 private:
  void OnMessage(uint64_t stream, v1::ControllerMsg message);
  void OnClosed(uint64_t stream, const std::string& why);
  void Down(const std::string& why);
  void WatchSilence();

  EventLoop* const loop_;
  const std::shared_ptr<LoopInbox> inbox_;
  const std::shared_ptr<ControllerLine> line_;
  const Events events_;
  std::unique_ptr<ControlStream> call_;  // null: down
  uint64_t stream_ = 0;                  // of call_
  bool final_ = false;
  absl::Duration backoff_ = kFirstBackoff;
  absl::Duration silence_ = kWelcomeLimit;
  int64_t heard_ns_ = 0;
  EventLoop::TimerId redial_ = 0;
  EventLoop::TimerId silence_timer_ = 0;
  absl::BitGen random_;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_LINK_H_
