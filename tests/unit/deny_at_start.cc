// Linked into a test program: with DGXRUN_TEST_DENY=1 all of it runs without the newer system calls.
#include "tests/unit/launcher_deny.h"

namespace dgxrun::testing {
namespace {

[[maybe_unused]] const bool kPrepared = (DenyNewSyscallsIfRequested(), true);

}  // namespace
}  // namespace dgxrun::testing
