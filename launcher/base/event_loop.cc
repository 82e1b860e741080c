#include "launcher/base/event_loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

namespace dgxrun {
namespace {

constexpr int kMaxEventsPerWait = 64;  // keeps one wait's array on the stack; more are taken next time

[[noreturn]] void Die(const char* what) {
  perror(what);
  abort();
}

}  // namespace

int64_t EventLoop::BoottimeNs() {
  timespec ts;
  clock_gettime(CLOCK_BOOTTIME, &ts);
  return ts.tv_sec * int64_t{1000000000} + ts.tv_nsec;
}

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_.valid() || !wake_.valid()) Die("epoll_create1 or eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;  // generation 0 is the wake-up
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) Die("epoll_ctl");
}

EventLoop::~EventLoop() = default;

void EventLoop::Watch(int fd, uint32_t events, FdCallback callback) {
  const uint64_t generation = next_generation_++;
  epoll_event event{};
  event.events = events;
  // fd in the low half, generation (mod 2^32, never 0 in both) in the high half.
  event.data.u64 = (generation << 32) | static_cast<uint32_t>(fd);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) Die("epoll_ctl add");
  watched_[fd] = Watched{generation & 0xffffffffu, std::make_shared<FdCallback>(std::move(callback))};
}

void EventLoop::Modify(int fd, uint32_t events) {
  auto it = watched_.find(fd);
  if (it == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = (it->second.generation << 32) | static_cast<uint32_t>(fd);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::At(int64_t boottime_ns, std::function<void()> callback) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::make_pair(boottime_ns, id), std::move(callback));
  timer_at_[id] = boottime_ns;
  return id;
}

EventLoop::TimerId EventLoop::After(absl::Duration delay, std::function<void()> callback) {
  return At(BoottimeNs() + absl::ToInt64Nanoseconds(delay), std::move(callback));
}

void EventLoop::Cancel(TimerId id) {
  auto it = timer_at_.find(id);
  if (it == timer_at_.end()) return;
  timers_.erase({it->second, id});
  timer_at_.erase(it);
}

void EventLoop::Post(std::function<void()> callback) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(callback));
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wake_.get(), &one, sizeof one);
}

void EventLoop::Quit() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wake_.get(), &one, sizeof one);
}

void EventLoop::Run() {
  while (true) {
    RunOnce(absl::InfiniteDuration());
    std::lock_guard<std::mutex> lock(mutex_);
    if (quit_) {
      quit_ = false;
      return;
    }
  }
}

bool EventLoop::RunTimers() {
  bool ran = false;
  // Timers added by a callback for a time already past run in the next round, so that one that re-arms
  // itself cannot starve the fds.
  const TimerId limit = next_timer_;
  const int64_t now = BoottimeNs();
  while (!timers_.empty()) {
    auto it = timers_.begin();
    if (it->first.first > now || it->first.second >= limit) break;
    std::function<void()> callback = std::move(it->second);
    timer_at_.erase(it->first.second);
    timers_.erase(it);
    callback();
    ran = true;
  }
  return ran;
}

bool EventLoop::RunPosted() {
  std::vector<std::function<void()>> batch;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    batch.swap(posted_);
  }
  for (auto& callback : batch) callback();
  return !batch.empty();
}

bool EventLoop::RunOnce(absl::Duration limit) {
  int64_t wait_ns = limit == absl::InfiniteDuration() ? INT64_MAX : absl::ToInt64Nanoseconds(limit);
  if (!timers_.empty()) {
    wait_ns = std::min(wait_ns, std::max<int64_t>(0, timers_.begin()->first.first - BoottimeNs()));
  }
  // Round up, else a timer due in 0.4 ms makes the loop spin.
  const int64_t wait_ms =
      wait_ns == INT64_MAX ? -1 : std::min<int64_t>((wait_ns + 999999) / 1000000, 1 << 30);
  std::array<epoll_event, kMaxEventsPerWait> events;
  int n = epoll_wait(epoll_.get(), events.data(), kMaxEventsPerWait, static_cast<int>(wait_ms));
  if (n < 0 && errno != EINTR) Die("epoll_wait");
  bool did = false;
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u64 == 0) {
      uint64_t count;
      [[maybe_unused]] ssize_t r = read(wake_.get(), &count, sizeof count);
      continue;
    }
    const int fd = static_cast<int>(events[i].data.u64 & 0xffffffffu);
    auto it = watched_.find(fd);
    if (it == watched_.end() || it->second.generation != events[i].data.u64 >> 32) continue;
    std::shared_ptr<FdCallback> callback = it->second.callback;  // keeps it alive if it unwatches itself
    (*callback)(events[i].events);
    did = true;
  }
  did |= RunTimers();
  did |= RunPosted();
  return did;
}

}  // namespace dgxrun
