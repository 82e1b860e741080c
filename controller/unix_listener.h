// A unix socket that belongs to one controller. The file appears with its final mode and is removed with
// the object; a file left by a dead controller is replaced, a living one is not disturbed.
#ifndef DGXRUN_CONTROLLER_UNIX_LISTENER_H_
#define DGXRUN_CONTROLLER_UNIX_LISTENER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun {

class UnixListener {
 public:
  // Mode 0600, or 0666 with `any_user`. Errors: the path is too long for a socket, a controller already
  // runs there, the folder cannot be written.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Open(const std::string& path, bool any_user);
  ~UnixListener();  // after StopAccepting, or without a loop

  // Calls `accepted` on the loop's thread with each connection (non-blocking, close-on-exec).
  void StartAccepting(EventLoop* loop, std::function<void(UniqueFd)> accepted);
  void StopAccepting();  // on the loop's thread

 private:
  UnixListener(std::string path, UniqueFd fd, uint64_t inode)
      : path_(std::move(path)), fd_(std::move(fd)), inode_(inode) {}
  void Accept();

  const std::string path_;
  UniqueFd fd_;
  const uint64_t inode_;  // of the file that we made: another's is not removed
  EventLoop* loop_ = nullptr;
  std::function<void(UniqueFd)> accepted_;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_UNIX_LISTENER_H_
