// An accepted submit survives every crash, and a repeated key makes no second job.
#include <map>
#include <set>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Submits : public Oracle {
 public:
  const char* name() const override { return "submit"; }
  void OnSubmitAnswered(const std::string& key, const std::string& job, const Disk& disk) override {
    auto [it, fresh] = jobs_.insert({key, job});
    if (!fresh && it->second != job) Complain("key " + key + " made " + it->second + " and " + job);
    if (!OnDisk(disk, job)) Complain(job + " was accepted before it was on the disk");
  }
  void OnEnd(const std::vector<v1::JobStatus>&, const std::vector<Process>&, const Disk& disk) override {
    std::set<std::string> ids;
    for (const auto& [key, job] : jobs_) {
      if (!OnDisk(disk, job)) Complain(job + " was accepted and is lost");
      if (!ids.insert(job).second) Complain(job + " stands for two keys");
    }
  }

 private:
  static bool OnDisk(const Disk& disk, const std::string& job) {
    for (const auto& r : disk) {
      if (r.has_job_submitted() && r.job_submitted().job_id() == job) return true;
      if (r.has_job_archived() && r.job_archived().job_id() == job) return true;
    }
    return false;
  }
  std::map<std::string, std::string> jobs_;
};

}  // namespace

std::unique_ptr<Oracle> MakeSubmitOracle() { return std::make_unique<Submits>(); }

}  // namespace dgxrun::sim
