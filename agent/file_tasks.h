// Work that touches a user's file systems, which may hang for ever, off the agent's thread.
//
// Each task gets a short-lived thread of its own (named "dgx-files"): a hung one delays nobody, and cannot be
// joined either, so threads are detached and hold nothing of the agent but the inbox, which outlives it.
// Owner: the agent. At most kMaxRunning at once.
#ifndef DGXRUN_AGENT_FILE_TASKS_H_
#define DGXRUN_AGENT_FILE_TASKS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "launcher/base/event_loop.h"

namespace dgxrun::agent {

class FileTasks {
 public:
  // A thread blocked on a dead file server costs a stack and a kernel task; a node has far fewer jobs at
  // once.
  static constexpr size_t kMaxRunning = 128;

  explicit FileTasks(EventLoop* loop);
  ~FileTasks();  // results that come later are dropped
  FileTasks(const FileTasks&) = delete;
  FileTasks& operator=(const FileTasks&) = delete;

  // Runs `work` on a new thread, then what it returned on the loop. `work` must own all it uses. False: too
  // many are running, nothing happens.
  bool Run(std::function<std::function<void()>()> work);

 private:
  struct Inbox {
    std::mutex mutex;
    EventLoop* loop;     // under mutex; null once the agent is gone
    size_t running = 0;  // under mutex
  };
  std::shared_ptr<Inbox> inbox_;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_FILE_TASKS_H_
