// No job runs in more attempts than its restarts allow.
#include <map>
#include <set>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Budget : public Oracle {
 public:
  const char* name() const override { return "budget"; }
  void OnStart(const Process& p) override { attempts_[p.job].insert(p.attempt); }
  void OnEnd(const std::vector<v1::JobStatus>& jobs, const std::vector<Process>&, const Disk&) override {
    for (const auto& job : jobs) {
      const size_t used = attempts_[job.job_id()].size();
      if (used > job.max_restarts() + 1) {
        Complain(job.job_id() + " ran " + std::to_string(used) + " attempts with " +
                 std::to_string(job.max_restarts()) + " restarts allowed");
      }
    }
  }

 private:
  std::map<std::string, std::set<uint32_t>> attempts_;
};

}  // namespace

std::unique_ptr<Oracle> MakeBudgetOracle() { return std::make_unique<Budget>(); }

}  // namespace dgxrun::sim
