// The shim's side of its agents: the first on the inherited socket, later ones on <run_dir>/shim.sock. The
// newest connection is the agent; an older one is closed. Only processes of the shim's own uid are let in.
#ifndef DGXRUN_LAUNCHER_SHIM_LINK_H_
#define DGXRUN_LAUNCHER_SHIM_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dgxrun/v1/shim.pb.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"
#include "launcher/shim_channel.h"

namespace dgxrun {

class ShimLink {
 public:
  struct Callbacks {
    std::function<void(v1::ShimCommand)> on_command;
    std::function<void()> on_later_agent;  // connected; a hello is due
    std::function<void()> on_lost;         // the connection closed, and no newer one had replaced it
  };

  ShimLink(EventLoop& loop, Callbacks callbacks) : loop_(loop), callbacks_(std::move(callbacks)) {}

  // Listens in `run_dir` and takes the inherited socket. False when the socket path cannot be bound.
  bool Open(const std::string& run_dir, int agent_fd);

  bool connected() const { return channel_ != nullptr; }
  // Dropped when no agent is connected: it is told when it attaches.
  void Send(const v1::ShimMsg& message);

 private:
  bool Listen(const std::string& run_dir);
  void Accept();
  void Connect(UniqueFd fd);
  void Close();
  void OnReady(uint32_t events);

  EventLoop& loop_;
  const Callbacks callbacks_;
  UniqueFd listener_;
  std::unique_ptr<ShimChannel> channel_;
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_SHIM_LINK_H_
