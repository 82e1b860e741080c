// No queue passes its limit: what an agent keeps for the controller stays small in the storm, and is gone
// after the quiet phase.
#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

// A node runs a handful of attempts in a storm of a minute, each with some ten reports.
constexpr size_t kLimit = 400;

class Queue : public Oracle {
 public:
  const char* name() const override { return "queue"; }
  void OnUnacknowledged(const std::string& node, size_t reports, bool at_the_end) override {
    const size_t limit = at_the_end ? 0 : kLimit;
    if (reports > limit) Complain(node + " keeps " + std::to_string(reports) + " reports");
  }
};

}  // namespace

std::unique_ptr<Oracle> MakeQueueOracle() { return std::make_unique<Queue>(); }

}  // namespace dgxrun::sim
