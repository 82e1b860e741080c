// Work that touches a user's file systems, which may hang for ever, off the agent's thread.
//
// Each task gets a short-lived thread of its own (named "dgx-files"): a hung one delays nobody, and cannot be
// joined either, so threads are detached and hold nothing of the agent but the inbox, which outlives it.
// Owner: the agent. At most kMaxRunning at once.
#ifndef DGXRUN_AGENT_FILE_TASKS_H_
#define DGXRUN_AGENT_FILE_TASKS_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "agent/loop_inbox.h"

namespace dgxrun::agent {

class FileTasks {
 public:
  // A thread blocked on a dead file server costs a stack and a kernel task; a node has far fewer jobs at
  // once.
  static constexpr size_t kMaxRunning = 128;

  explicit FileTasks(std::shared_ptr<LoopInbox> inbox) : inbox_(std::move(inbox)) {}

  // Runs `work` on a new thread, then what it returned on the loop. `work` must own all it uses. False: too
  // many are running, nothing happens.
  bool Run(std::function<std::function<void()>()> work);

 private:
  const std::shared_ptr<LoopInbox> inbox_;
  const std::shared_ptr<std::atomic<size_t>> running_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_FILE_TASKS_H_
