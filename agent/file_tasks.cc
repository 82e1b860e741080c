#include "agent/file_tasks.h"

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

namespace dgxrun::agent {

FileTasks::FileTasks(EventLoop* loop) : inbox_(std::make_shared<Inbox>()) { inbox_->loop = loop; }

FileTasks::~FileTasks() {
  std::lock_guard<std::mutex> lock(inbox_->mutex);
  inbox_->loop = nullptr;
}

bool FileTasks::Run(std::function<std::function<void()>()> work) {
  {
    std::lock_guard<std::mutex> lock(inbox_->mutex);
    if (inbox_->running >= kMaxRunning) return false;
    ++inbox_->running;
  }
  try {
    std::thread([inbox = inbox_, work = std::move(work)] {
      pthread_setname_np(pthread_self(), "dgx-files");
      std::function<void()> result = work();
      std::lock_guard<std::mutex> lock(inbox->mutex);
      --inbox->running;
      if (inbox->loop != nullptr && result != nullptr) inbox->loop->Post(std::move(result));
    }).detach();
  } catch (const std::system_error&) {  // no thread to be had (a pids limit)
    std::lock_guard<std::mutex> lock(inbox_->mutex);
    --inbox_->running;
    return false;
  }
  return true;
}

}  // namespace dgxrun::agent
