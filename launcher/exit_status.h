// How a process ended, in the words of the protocol and of people.
#ifndef DGXRUN_LAUNCHER_EXIT_STATUS_H_
#define DGXRUN_LAUNCHER_EXIT_STATUS_H_

#include <string>

#include "dgxrun/v1/job.pb.h"
#include "launcher/base/sys.h"

namespace dgxrun {

// code is what a shell shows: the exit code, or 128 + signal.
v1::ExitStatus ToExitStatus(const ChildEnd& end);

// "exited with code 85", "killed by SIGSEGV (core dumped)".
std::string DescribeExit(const v1::ExitStatus& exit);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_EXIT_STATUS_H_
