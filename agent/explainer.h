// Adds to what shims say why ranks failed (stderr tail, error file), before the core hears it.
//
// Reading those files may hang, so it is a file task; the messages of one attempt keep their order, and a
// message waits at most kLimit for its explanation. The shim sends `exited` once the rank's pipes are drained
// as far as that is quick; `gone` comes after all output is in the files, so its ranks are explained again.
//
// Loop's thread only. The inbox of the tasks must be closed before this object goes.
#ifndef DGXRUN_AGENT_EXPLAINER_H_
#define DGXRUN_AGENT_EXPLAINER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/agent_core.h"
#include "agent/file_tasks.h"
#include "dgxrun/v1/shim.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun::agent {

class Explainer {
 public:
  // A tail is read in under a millisecond from a disk that works; a first failure must stop the other ranks
  // soon.
  static constexpr absl::Duration kLimit = absl::Milliseconds(250);

  Explainer(EventLoop* loop, FileTasks* tasks, std::string log_root,
            std::function<void(const AttemptKey&, v1::ShimMsg)> on_message,
            std::function<void(v1::ShimFinal)> on_final);

  void Pass(const AttemptKey& key, v1::ShimMsg message);
  void Pass(v1::ShimFinal final);
  // All of them, then `done`.
  void Finals(std::vector<v1::ShimFinal> finals, std::function<void()> done);
  // The attempt has ended: what still waits is not passed on.
  void Drop(const AttemptKey& key);

 private:
  struct Waiting {
    v1::ShimMsg message;
    bool ready = false;
    uint64_t number = 0;
  };
  // Runs `explain` as a task and then, once, `then`: with its result, or with `plain` after kLimit.
  template <class Message>
  void Explain(const AttemptKey& key, const Message& plain, std::function<void(Message)> then);
  void Ready(const AttemptKey& key, uint64_t number, v1::ShimMsg message);
  void Flush(const AttemptKey& key);

  EventLoop* const loop_;
  FileTasks* const tasks_;
  const std::string log_root_;
  const std::function<void(const AttemptKey&, v1::ShimMsg)> on_message_;
  const std::function<void(v1::ShimFinal)> on_final_;
  std::map<AttemptKey, std::deque<Waiting>> waiting_;
  uint64_t next_number_ = 1;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_EXPLAINER_H_
