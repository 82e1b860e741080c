// A single-threaded epoll loop: fds, one-shot timers, and closures posted from other threads.
//
// Steppable: RunOnce handles what is ready and returns, so a test drives it by hand. All callbacks run on
// the thread that runs the loop. Watching an fd does not own it; Unwatch before closing. A callback may
// unwatch or cancel anything, itself included. Timers run on CLOCK_BOOTTIME, so a suspended machine finds
// its deadlines passed when it wakes.
#ifndef DGXRUN_LAUNCHER_BASE_EVENT_LOOP_H_
#define DGXRUN_LAUNCHER_BASE_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

class EventLoop {
 public:
  using TimerId = uint64_t;
  // `events`: EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR as reported.
  using FdCallback = std::function<void(uint32_t events)>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Watch(int fd, uint32_t events, FdCallback callback);
  void Modify(int fd, uint32_t events);
  void Unwatch(int fd);

  TimerId At(int64_t boottime_ns, std::function<void()> callback);
  TimerId After(absl::Duration delay, std::function<void()> callback);
  void Cancel(TimerId id);  // unknown or already run: nothing happens

  // Thread-safe; wakes the loop.
  void Post(std::function<void()> callback);
  // Thread-safe. Run returns after the callback in hand.
  void Quit();

  void Run();
  // Waits at most `limit` for something to happen and handles it. Returns false when nothing did.
  bool RunOnce(absl::Duration limit);

  static int64_t BoottimeNs();

 private:
  struct Watched {
    uint64_t generation;  // so that an event for a closed and reused fd number is dropped
    std::shared_ptr<FdCallback> callback;
  };
  bool RunTimers();
  bool RunPosted();

  UniqueFd epoll_;
  UniqueFd wake_;
  absl::flat_hash_map<int, Watched> watched_;
  uint64_t next_generation_ = 1;
  std::map<std::pair<int64_t, TimerId>, std::function<void()>> timers_;
  absl::flat_hash_map<TimerId, int64_t> timer_at_;
  TimerId next_timer_ = 1;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // under mutex_
  bool quit_ = false;                          // under mutex_
};

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BASE_EVENT_LOOP_H_
