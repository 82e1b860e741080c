// What is wrong with the network settings of a job, found before it starts: a pure function of the facts of
// its nodes and of what the user and the cluster file set. Each finding says what will happen and how to put
// it right. The controller calls it at a launch and `dgxrun cluster check` for a file; findings of severity
// kError would make NCCL fail, hang or fall back to TCP, and stop a launch only where the user asked for
// that.
#ifndef DGXRUN_LAUNCHER_NCCL_LINT_H_
#define DGXRUN_LAUNCHER_NCCL_LINT_H_

#include <string>
#include <vector>

#include "launcher/nccl/name_list.h"
#include "launcher/nccl/network.h"

namespace dgxrun::nccl {

enum class Severity { kNote, kWarning, kError };
const char* Word(Severity severity);

struct Finding {
  Severity severity = Severity::kWarning;
  std::string rule;     // a stable word, for tests and for --json: "hca-netdev"
  std::string node;     // empty: of all nodes
  std::string message;  // what is wrong and what follows from it
  std::string fix;      // what to do; empty: nothing to do by hand
};

struct LintInput {
  std::vector<NodeNetwork> nodes;  // of the job
  Environment set;                 // of the user and of the cluster file
  int nccl_version = 0;            // 22809 for 2.28.9; 0: not known
  bool gpus = true;                // the job uses GPUs: what only they need is asked for
};

// Ordered by rule and node; the same finding on many nodes comes once for each.
std::vector<Finding> LintNetwork(const LintInput& input);

// "error: node n1: ...; fix: ..." on one line.
std::string Render(const Finding& finding);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_LINT_H_
