// The groups of rules of lint.h; private to it. Each adds its findings to the list.
#ifndef DGXRUN_LAUNCHER_NCCL_LINT_RULES_H_
#define DGXRUN_LAUNCHER_NCCL_LINT_RULES_H_

#include <string>
#include <vector>

#include "launcher/nccl/lint.h"

namespace dgxrun::nccl {

class Findings {
 public:
  void Add(Severity severity, std::string rule, std::string node, std::string message, std::string fix) {
    list_.push_back({severity, std::move(rule), std::move(node), std::move(message), std::move(fix)});
  }
  std::vector<Finding>& list() { return list_; }

 private:
  std::vector<Finding> list_;
};

// Values by themselves, without any node: numbers that are none, words that NCCL does not know, variables
// that nobody reads.
void LintValues(const LintInput& input, Findings* findings);
// NCCL_SOCKET_IFNAME against one node's interfaces, or NCCL's own pick there.
void LintInterfaces(const LintInput& input, const NodeNetwork& node, Findings* findings);
// NCCL_IB_HCA and the GIDs against one node's ports.
void LintPorts(const LintInput& input, const NodeNetwork& node, Findings* findings);
// /dev/shm, locked memory, peer memory of one node.
void LintLimits(const LintInput& input, const NodeNetwork& node, Findings* findings);
// What differs between nodes.
void LintAcross(const LintInput& input, Findings* findings);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_LINT_RULES_H_
