#include "agent/file_tasks.h"

#include <pthread.h>

#include <system_error>
#include <thread>

namespace dgxrun::agent {

bool FileTasks::Run(std::function<std::function<void()>()> work) {
  if (running_->fetch_add(1) >= kMaxRunning) {
    running_->fetch_sub(1);
    return false;
  }
  try {
    std::thread([inbox = inbox_, running = running_, work = std::move(work)] {
      pthread_setname_np(pthread_self(), "dgx-files");
      std::function<void()> result = work();
      running->fetch_sub(1);
      if (result != nullptr) inbox->Post(std::move(result));
    }).detach();
  } catch (const std::system_error&) {  // no thread to be had (a pids limit)
    running_->fetch_sub(1);
    return false;
  }
  return true;
}

}  // namespace dgxrun::agent
