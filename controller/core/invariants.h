// What is true of every state that the log can give. The engine checks it after each batch in debug builds
// and after replay; a broken one aborts, for then the log holds a wrong decision of ours.
#ifndef DGXRUN_CONTROLLER_CORE_INVARIANTS_H_
#define DGXRUN_CONTROLLER_CORE_INVARIANTS_H_

#include <string>

#include "absl/status/status.h"
#include "controller/core/model.h"

namespace dgxrun::core {

// OK, or Internal naming the job or node and what is broken:
//   a GPU is held by at most one attempt; a job has at most max_restarts restarts and number of attempts;
//   an ended job has no live attempt; ids and keys are unique; ranks belong to the node that reports them;
//   a launched attempt has its address and port, and no two live attempts share a port on one node.
absl::Status CheckInvariants(const State& state);

// The whole state as text, the same for equal states: for tests that replay, and for a person who debugs.
std::string DumpState(const State& state);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_INVARIANTS_H_
