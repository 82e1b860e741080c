// A job that has ended has left no process, nor has an older attempt of any job.
#include <map>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class NothingLeft : public Oracle {
 public:
  const char* name() const override { return "nothing left"; }
  void OnEnd(const std::vector<v1::JobStatus>& jobs, const std::vector<Process>& living,
             const Disk&) override {
    std::map<std::string, v1::JobStatus> by_id;
    for (const auto& job : jobs) by_id[job.job_id()] = job;
    for (const Process& p : living) {
      auto it = by_id.find(p.job);
      const bool may_live =
          it != by_id.end() && it->second.ended_unix_ns() == 0 && it->second.attempt() == p.attempt;
      if (may_live) continue;
      Complain("rank " + std::to_string(p.rank) + " of " + p.job + "." + std::to_string(p.attempt) +
               " still lives on " + p.node);
    }
  }
};

}  // namespace

std::unique_ptr<Oracle> MakeNothingLeftOracle() { return std::make_unique<NothingLeft>(); }

}  // namespace dgxrun::sim
