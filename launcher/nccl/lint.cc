#include "launcher/nccl/lint.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "launcher/nccl/lint_rules.h"

namespace dgxrun::nccl {

const char* Word(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "";
}

std::vector<Finding> LintNetwork(const LintInput& input) {
  Findings findings;
  LintValues(input, &findings);
  for (const NodeNetwork& node : input.nodes) {
    LintLimits(input, node, &findings);
    if (input.nodes.size() < 2 && !input.set.contains("NCCL_SOCKET_IFNAME")) continue;
    LintInterfaces(input, node, &findings);
    LintPorts(input, node, &findings);
  }
  if (input.nodes.size() > 1) LintAcross(input, &findings);
  std::stable_sort(findings.list().begin(), findings.list().end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.rule, a.node) < std::tie(b.rule, b.node);
  });
  return findings.list();
}

std::string Render(const Finding& finding) {
  return absl::StrCat(Word(finding.severity), ": ",
                      finding.node.empty() ? "" : absl::StrCat("node ", finding.node, ": "), finding.message,
                      finding.fix.empty() ? "" : absl::StrCat("; ", finding.fix));
}

}  // namespace dgxrun::nccl
