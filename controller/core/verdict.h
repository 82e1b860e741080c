// Which of all that went wrong in an attempt was the cause.
//
// Facts are ranked by whose fault they are, then by kind, and only then by the order in which the
// controller heard of them, since the clocks of nodes differ:
//
//   whose   its own  <  a node that failed, heard of after we said stop  <  victim of a broken collective
//           <  ended after we said stop
//   kind    node lost, fenced, supervisor lost, refused, not spawned, GPU fault, OOM kill, signal,
//           exit code (and SIGABRT, which a program does to itself), hang, preempted, stopped
//
// A victim never beats a non-victim. Facts come in until the attempt is gone everywhere; then it is judged
// once more, over all of them.
#ifndef DGXRUN_CONTROLLER_CORE_VERDICT_H_
#define DGXRUN_CONTROLLER_CORE_VERDICT_H_

#include <optional>
#include <string>

#include "controller/core/model.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::core {

// The cause so far; nullopt: nothing has failed.
std::optional<v1::Why> Judge(const Attempt& attempt);

// Whether a rank's exit looks like that of a rank whose peers went away: from the last lines of its stderr,
// its error message, and its signal. The table of patterns, with the source of each, is in verdict.cc.
bool LooksLikeVictim(const v1::RankReport& report);

// "exited with code 85", "killed by SIGSEGV (core dumped)".
std::string DescribeExit(const v1::RankReport& report);

// What dgxrun exits with, given how a job ended and, for STOPPED, what the user's wish said.
int ExitCodeOf(v1::JobState state, const v1::Why& why, const std::optional<StopWish>& stop);

v1::Why StoppedBy(const StopWish& wish, AttemptNo attempt);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_VERDICT_H_
