// The shims of this node, seen from the agent: one connection each.
//
//   starting or attaching -> connected -> disconnected -> (connected again | final file | swept)
//
// A connection that closes says nothing about the ranks. The client then looks: a shim that answers on its
// socket is connected to again; else the guard is awaited (it kills what the shim left and writes the final
// file), and then final.pb is read; without one the strays are swept. Exactly one of on_final, on_strays_gone
// or a new hello follows each on_disconnected.
//
// All on the loop's thread; nothing blocks, the sweep runs as a task.
#ifndef DGXRUN_AGENT_SHIM_CLIENT_H_
#define DGXRUN_AGENT_SHIM_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/agent_core.h"
#include "dgxrun/v1/shim.pb.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"
#include "launcher/shim_channel.h"

namespace dgxrun::agent {

class FileTasks;

struct ShimClientOptions {
  std::string run_dir;
  std::string shim_binary;
  std::string cgroup_parent;  // empty: none
  std::string mark_prefix;    // "<node id>": DGXRUN_MARK is "<node id>:<job>.<attempt>"
};

class ShimClient {
 public:
  // A guard that has a shim's descendants to kill needs some 0.1 s; one that cannot (processes in D state)
  // must not keep the attempt unanswered: then the sweep tries and reports.
  static constexpr absl::Duration kGuardLimit = absl::Seconds(5);
  // After that it is killed: a stopped guard would stay for ever. A killed process ends in some ms.
  static constexpr absl::Duration kKilledGuardLimit = absl::Seconds(1);
  static constexpr int kSweepRounds = 200;

  struct Events {
    std::function<void(const AttemptKey&, v1::ShimMsg)> on_message;
    std::function<void(const AttemptKey&)> on_disconnected;
    std::function<void(v1::ShimFinal)> on_final;
    std::function<void(const AttemptKey&, const std::string& detail)> on_strays_gone;
  };

  // The inbox of `tasks` must be closed before this object goes, since a sweep comes back to it.
  ShimClient(EventLoop* loop, FileTasks* tasks, ShimClientOptions options, Events events);
  ~ShimClient();  // closes the connections; shims go on as they were told
  ShimClient(const ShimClient&) = delete;
  ShimClient& operator=(const ShimClient&) = delete;

  // Makes the attempt's folder, starts a shim and sends `start`, whose mark and cgroup_parent are filled in
  // here. On an error nothing runs and nothing is left.
  absl::Status Start(const AttemptKey& key, v1::ShimStart start, std::vector<UniqueFd> held_ports,
                     bool inherit_terminal);

  // At the start of an agent: attaches to living shims, and tells what else is in the run folder.
  struct Found {
    std::vector<AttemptKey> living;
    std::vector<AttemptKey> dead;  // folders without a living shim and without a final file
    std::vector<v1::ShimFinal> finals;
  };
  Found Scan();

  void Send(const AttemptKey& key, const v1::ShimCommand& command);
  // Answers with on_final or on_strays_gone, from the loop.
  void Sweep(const AttemptKey& key);
  // The attempt's end is stored: its folder goes once the guard has ended.
  void Ended(const AttemptKey& key);

  std::string AttemptDir(const AttemptKey& key) const;

 private:
  struct Shim {
    std::unique_ptr<ShimChannel> channel;  // null: not connected
    bool watches_write = false;
    int silent_connects = 0;  // since the last hello
    UniqueFd guard;           // pidfd; invalid where it is not known
    int guard_pid = 0;        // while it is an unreaped child of this process
    int guard_told = 0;       // its pid, child or not; valid while `guard` says that it lives
    bool awaited = false;     // the guard's end is awaited
    int64_t deadline_ns = 0;  // of that wait, where there is no pidfd
    EventLoop::TimerId timer = 0;
    bool ended = false;
  };

  void Connect(const AttemptKey& key, Shim* shim, UniqueFd socket);
  void OnReady(const AttemptKey& key, uint32_t ready);
  void UpdateWatch(Shim* shim);
  void Lost(const AttemptKey& key);
  void AwaitGuard(const AttemptKey& key, Shim* shim);
  void GuardOverdue(const AttemptKey& key);
  void PollGuard(const AttemptKey& key);
  void GuardEnded(const AttemptKey& key);
  void Swept(const AttemptKey& key, int left);
  void Drop(const AttemptKey& key);
  std::string MarkOf(const AttemptKey& key) const;

  EventLoop* const loop_;
  FileTasks* const tasks_;
  const ShimClientOptions options_;
  const Events events_;
  std::map<AttemptKey, Shim> shims_;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_SHIM_CLIENT_H_
