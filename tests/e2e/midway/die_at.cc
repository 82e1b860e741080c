// Preloaded into a controller: SIGKILL, right before what a count says: the n-th flush of a file
// ($DGXRUN_TEST_DIE_AT "flush:n"), or the n-th message to a socket ("send:n"). Before the n-th is after the
// one before it, so all n together are all places between two steps that anybody else can see.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

namespace {

// Left when this is to die at the n-th; 0: never.
std::atomic<int> flushes{0}, sends{0};

__attribute__((constructor)) void ReadWhen() {
  const char* when = getenv("DGXRUN_TEST_DIE_AT");
  int count = 0;
  if (when == nullptr) return;
  if (sscanf(when, "flush:%d", &count) == 1) flushes = count;
  if (sscanf(when, "send:%d", &count) == 1) sends = count;
}

void Count(std::atomic<int>* left) {
  if (left->load() > 0 && left->fetch_sub(1) == 1) kill(getpid(), SIGKILL);
}

}  // namespace

extern "C" {

int fdatasync(int fd) {
  Count(&flushes);
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"));
  return real(fd);
}

int fsync(int fd) {
  Count(&flushes);
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  return real(fd);
}

ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  Count(&sends);
  static const auto real =
      reinterpret_cast<ssize_t (*)(int, const struct msghdr*, int)>(dlsym(RTLD_NEXT, "sendmsg"));
  return real(fd, message, flags);
}
}
