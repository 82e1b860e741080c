// The reports that the controller has not acknowledged yet, in the order of their numbers. Pure.
//
// Invariants: numbers start at 1 and have no gaps over the life of the node id, restarts included (so the
// last number given is kept even when all reports are acknowledged). The length is bounded by what lives:
// without a controller nothing new is launched, and an attempt makes at most ranks + 3 reports.
#ifndef DGXRUN_AGENT_REPORT_LOG_H_
#define DGXRUN_AGENT_REPORT_LOG_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

class ReportLog {
 public:
  ReportLog() = default;
  // `last`: highest number ever given; `unacked` ascending, its last number at most `last`.
  ReportLog(const std::vector<v1::Report>& unacked, uint64_t last);

  // Gives `report` the next number and keeps it.
  const v1::Report& Add(v1::Report report);

  enum class Acked { kDropped, kNothingNew, kNeverSent };
  // All up to `number` are durable at the controller. kNeverSent: a number that was never given; nothing is
  // dropped.
  Acked Ack(uint64_t number);

  bool Has(const std::string& job, uint32_t attempt, v1::Report::BodyCase body) const;
  uint64_t oldest() const { return unacked_.empty() ? 0 : unacked_.front().number(); }  // 0: none
  uint64_t last() const { return last_; }
  const std::deque<v1::Report>& unacked() const { return unacked_; }

 private:
  std::deque<v1::Report> unacked_;
  uint64_t last_ = 0;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_REPORT_LOG_H_
