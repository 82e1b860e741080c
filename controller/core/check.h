// A broken invariant of ours: says what and aborts, since going on would write a wrong decision into the
// log. Never used on anything that a peer, a user or the kernel may do.
#ifndef DGXRUN_CONTROLLER_CORE_CHECK_H_
#define DGXRUN_CONTROLLER_CORE_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>

namespace dgxrun::core {

[[noreturn]] inline void Broken(const char* where, const std::string& what) {
  std::fprintf(stderr, "dgxrun: broken invariant in %s: %s\n", where, what.c_str());
  std::abort();
}

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_CHECK_H_
