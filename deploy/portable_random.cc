// arc4random for release builds. Archives of the distribution that a release links (libstdc++, expat) call
// it, and the C library has it only since 2.36; a release must run with 2.34. This one asks the kernel,
// which has getrandom since 3.17.
//
// Linked into the programs of the static preset only. Hidden: no shared object shall find it here.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#include <cstddef>

extern "C" {

__attribute__((visibility("hidden"))) void arc4random_buf(void* buffer, size_t size) {
  auto* at = static_cast<unsigned char*>(buffer);
  while (size > 0) {
    const ssize_t got = getrandom(at, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      abort();  // callers take every value for random; there is no error to return
    }
    at += got;
    size -= static_cast<size_t>(got);
  }
}

__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value;
  arc4random_buf(&value, sizeof value);
  return value;
}

// Below `bound`, without the bias of a plain remainder: the lowest 2^32 mod bound values are drawn again.
__attribute__((visibility("hidden"))) uint32_t arc4random_uniform(uint32_t bound) {
  if (bound < 2) return 0;
  const uint32_t skip = -bound % bound;
  uint32_t value;
  do {
    value = arc4random();
  } while (value < skip);
  return value % bound;
}

}  // extern "C"
