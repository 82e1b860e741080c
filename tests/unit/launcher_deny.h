// With DGXRUN_TEST_DENY=1 in the environment, pidfd_open, clone3, close_range, openat2 and faccessat2 answer
// ENOSYS in this process and all that it starts, as on a kernel that does not have them.
#ifndef DGXRUN_TESTS_UNIT_LAUNCHER_DENY_H_
#define DGXRUN_TESTS_UNIT_LAUNCHER_DENY_H_

namespace dgxrun::testing {

bool DenyRequested();
// Aborts when the filter cannot be installed.
void DenyNewSyscallsIfRequested();

}  // namespace dgxrun::testing

#endif  // DGXRUN_TESTS_UNIT_LAUNCHER_DENY_H_
