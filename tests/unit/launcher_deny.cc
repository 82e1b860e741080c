#include "tests/unit/launcher_deny.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <vector>

namespace dgxrun::testing {
namespace {

// Numbers since 5.1 are the same on all architectures.
constexpr unsigned kDenied[] = {424 /* pidfd_send_signal */, 434 /* pidfd_open */, 435 /* clone3 */,
                                436 /* close_range */,       437 /* openat2 */,    439 /* faccessat2 */};

}  // namespace

bool DenyRequested() {
  const char* value = getenv("DGXRUN_TEST_DENY");
  return value != nullptr && strcmp(value, "1") == 0;
}

void DenyNewSyscallsIfRequested() {
  if (!DenyRequested()) return;
  std::vector<sock_filter> code;
  code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (unsigned number : kDenied) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    perror("seccomp");
    abort();
  }
}

}  // namespace dgxrun::testing
