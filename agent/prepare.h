// The checks before an attempt, with the owner's rights: working folder, script and program exist and may be
// used, and which checkpoints there are (first Prepare); or the checkpoint folder is put in order (second
// one, with `resume`; ckpt_resume.h). Blocks as long as the file systems do: for a thread of its own.
#ifndef DGXRUN_AGENT_PREPARE_H_
#define DGXRUN_AGENT_PREPARE_H_

#include "agent/ckpt_resume.h"
#include "agent/owner_files.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

// Where a program is looked up when the job's environment has no PATH; what execvp(3) does.
inline constexpr char kDefaultPath[] = "/bin:/usr/bin";

// `stop` ends the judging of checkpoints; what was not judged then counts as unverified.
v1::Prepared CheckPrepare(const v1::Prepare& prepare, const OwnerPolicy& policy, JudgeStop* stop);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_PREPARE_H_
