// No command leaves the controller before the record that it rests on is on the disk, and no report is
// acknowledged before what it says is.
#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Durable : public Oracle {
 public:
  const char* name() const override { return "durable"; }
  void OnMessage(const std::string& node, const v1::ControllerMsg& m, const Disk& disk) override {
    bool found = true;
    if (m.has_prepare()) {
      found = Has(disk, [&](const v1::Record& r) {
        return r.has_attempt_placed() && Same(r.attempt_placed(), m.prepare());
      });
    } else if (m.has_launch()) {
      found = Has(disk, [&](const v1::Record& r) {
        return r.has_attempt_launched() && Same(r.attempt_launched(), m.launch()) &&
               r.attempt_launched().master_port() == PortOf(m.launch());
      });
    } else if (m.has_stop()) {
      found = Has(disk, [&](const v1::Record& r) {
        return (r.has_attempt_stopping() && Same(r.attempt_stopping(), m.stop())) ||
               (r.has_attempt_ended() && Same(r.attempt_ended(), m.stop())) ||
               (r.has_node_gone() && Same(r.node_gone(), m.stop())) || Archived(r, m.stop().job_id());
      });
    } else if (m.has_forget()) {
      found = Has(disk, [&](const v1::Record& r) {
        return (r.has_job_ended() && r.job_ended().job_id() == m.forget().job_id()) ||
               Archived(r, m.forget().job_id());
      });
    } else if (m.has_welcome()) {
      found = Has(disk, [&](const v1::Record& r) {
        return r.has_term_raised() && r.term_raised().term() == m.welcome().term();
      });
    }
    if (!found) Complain("to " + node + " before its record: " + m.ShortDebugString().substr(0, 200));
  }

 private:
  template <class F>
  static bool Has(const Disk& disk, F f) {
    for (auto it = disk.rbegin(); it != disk.rend(); ++it) {
      if (f(*it)) return true;
    }
    return false;
  }
  template <class A, class B>
  static bool Same(const A& a, const B& b) {
    return a.job_id() == b.job_id() && a.attempt() == b.attempt();
  }
  static bool Archived(const v1::Record& r, const std::string& job) {
    return r.has_job_archived() && r.job_archived().job_id() == job;
  }
  static uint32_t PortOf(const v1::Launch& launch) {
    for (const auto& var : launch.plan().common_env()) {
      if (var.name() == "MASTER_PORT") return static_cast<uint32_t>(std::stoul(var.value()));
    }
    return 0;
  }
};

}  // namespace

std::unique_ptr<Oracle> MakeDurableOracle() { return std::make_unique<Durable>(); }

}  // namespace dgxrun::sim
