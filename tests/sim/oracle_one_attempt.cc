// At no instant do two attempts of one job have living ranks.
#include <map>
#include <set>
#include <tuple>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class OneAttempt : public Oracle {
 public:
  const char* name() const override { return "one attempt"; }
  void OnStart(const Process& p) override {
    std::map<uint32_t, int>& attempts = living_[p.job];
    for (const auto& [attempt, count] : attempts) {
      if (attempt == p.attempt || count == 0) continue;
      Complain("rank " + std::to_string(p.rank) + " of " + p.job + "." + std::to_string(p.attempt) +
               " starts on " + p.node + " while attempt " + std::to_string(attempt) + " lives");
    }
    attempts[p.attempt]++;
    if (!ranks_.insert({p.job, p.attempt, p.rank}).second) {
      Complain("rank " + std::to_string(p.rank) + " of " + p.job + "." + std::to_string(p.attempt) +
               " was started twice");
    }
  }
  void OnDeath(const Process& p) override { living_[p.job][p.attempt]--; }

 private:
  std::map<std::string, std::map<uint32_t, int>> living_;
  std::set<std::tuple<std::string, uint32_t, uint32_t>> ranks_;
};

}  // namespace

std::unique_ptr<Oracle> MakeOneAttemptOracle() { return std::make_unique<OneAttempt>(); }

}  // namespace dgxrun::sim
