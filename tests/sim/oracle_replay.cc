// Replaying the disk gives the state that the controller had.
#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Replay : public Oracle {
 public:
  const char* name() const override { return "replay"; }
  void OnReplay(const std::string& before, const std::string& after) override {
    if (before == after) return;
    size_t at = 0;
    while (at < before.size() && at < after.size() && before[at] == after[at]) ++at;
    const size_t from = at < 60 ? 0 : at - 60;
    Complain("differs at byte " + std::to_string(at) + ": '" + before.substr(from, 120) + "' became '" +
             after.substr(from, 120) + "'");
  }
};

}  // namespace

std::unique_ptr<Oracle> MakeReplayOracle() { return std::make_unique<Replay>(); }

}  // namespace dgxrun::sim
