// The verdict names something that was really done to the attempt, never a victim of it.
#include <set>
#include <tuple>
#include <utility>

#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Verdicts : public Oracle {
 public:
  const char* name() const override { return "verdict"; }
  void OnFault(const std::string& job, uint32_t attempt, int rank, const std::string& node) override {
    if (rank >= 0) {
      ranks_.insert({job, attempt, rank});
    } else {
      nodes_.insert(node);
    }
  }
  void OnEnd(const std::vector<v1::JobStatus>&, const std::vector<Process>&, const Disk& disk) override {
    // Peers mode: what an earlier controller had seen of the attempt went with its log, so its cause may be
    // unknown.
    std::set<std::pair<std::string, uint32_t>> adopted;
    for (const auto& r : disk) {
      if (r.has_job_adopted()) adopted.insert({r.job_adopted().job_id(), r.job_adopted().placed().attempt()});
    }
    for (const auto& r : disk) {
      if (!r.has_attempt_ended()) continue;
      if (adopted.count({r.attempt_ended().job_id(), r.attempt_ended().attempt()}) == 0)
        Check(r.attempt_ended());
    }
  }

 private:
  void Check(const v1::AttemptEnded& ended) {
    const v1::Why& why = ended.why();
    if (why.cause() == v1::CAUSE_UNSPECIFIED || why.cause() == v1::CAUSE_STOPPED) return;
    // Of a rank, unless the node's supervision failed, which may name a rank too.
    if (why.cause() == v1::CAUSE_EXIT_CODE || why.cause() == v1::CAUSE_SIGNAL ||
        why.cause() == v1::CAUSE_SPAWN_FAILED) {
      if (ranks_.count({ended.job_id(), ended.attempt(), why.rank()}) > 0) return;
    } else if (nodes_.count("") > 0 || nodes_.count(why.node()) > 0) {
      return;
    }
    Complain(ended.job_id() + "." + std::to_string(ended.attempt()) + " blames " + why.ShortDebugString());
  }
  std::set<std::tuple<std::string, uint32_t, int>> ranks_;
  std::set<std::string> nodes_;
};

}  // namespace

std::unique_ptr<Oracle> MakeVerdictOracle() { return std::make_unique<Verdicts>(); }

}  // namespace dgxrun::sim
