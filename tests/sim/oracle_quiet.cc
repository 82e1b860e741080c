// After the quiet phase every job has ended, or runs with all its ranks alive, or names what it waits for.
#include <map>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Quiet : public Oracle {
 public:
  const char* name() const override { return "quiet"; }
  void OnEnd(const std::vector<v1::JobStatus>& jobs, const std::vector<Process>& living,
             const Disk&) override {
    std::map<std::pair<std::string, uint32_t>, uint32_t> ranks;
    for (const Process& p : living) ranks[{p.job, p.attempt}]++;
    for (const auto& job : jobs) {
      const std::string what = job.job_id() + " is " + v1::JobState_Name(job.state());
      switch (job.state()) {
        case v1::JOB_STATE_SUCCEEDED:
        case v1::JOB_STATE_FAILED:
        case v1::JOB_STATE_STOPPED:
          break;
        case v1::JOB_STATE_RUNNING:
          // An elastic attempt has fewer nodes; oracle_checkpoints.cc sees how few it may have.
          if (ranks[{job.job_id(), job.attempt()}] !=
              static_cast<uint32_t>(job.nodes_size()) * job.ranks_per_node()) {
            Complain(what + ", but " + std::to_string(ranks[{job.job_id(), job.attempt()}]) + " ranks live");
          }
          break;
        case v1::JOB_STATE_QUEUED:
          // Only for nodes, which may have died for good.
          if (job.waiting_for().find("node") == std::string::npos) {
            Complain(what + " and waits for '" + job.waiting_for() + "'");
          }
          break;
        case v1::JOB_STATE_STOPPING:
          // A majority of the committee died for good: no time proves that a node is off.
          if (job.waiting_for().find("proof that node ") == std::string::npos) {
            Complain(what + ", waiting for '" + job.waiting_for() + "'");
          }
          break;
        default:  // a proto enum is open
          Complain(what + ", waiting for '" + job.waiting_for() + "'");
      }
    }
  }
};

}  // namespace

std::unique_ptr<Oracle> MakeQuietOracle() { return std::make_unique<Quiet>(); }

}  // namespace dgxrun::sim
