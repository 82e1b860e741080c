#include "agent/report_log.h"

#include <algorithm>
#include <utility>

namespace dgxrun::agent {

ReportLog::ReportLog(const std::vector<v1::Report>& unacked, uint64_t last)
    : unacked_(unacked.begin(), unacked.end()), last_(last) {}

const v1::Report& ReportLog::Add(v1::Report report) {
  report.set_number(++last_);
  unacked_.push_back(std::move(report));
  return unacked_.back();
}

ReportLog::Acked ReportLog::Ack(uint64_t number) {
  if (number > last_) return Acked::kNeverSent;
  if (unacked_.empty() || unacked_.front().number() > number) return Acked::kNothingNew;
  while (!unacked_.empty() && unacked_.front().number() <= number) unacked_.pop_front();
  return Acked::kDropped;
}

bool ReportLog::Has(const std::string& job, uint32_t attempt, v1::Report::BodyCase body) const {
  return std::any_of(unacked_.begin(), unacked_.end(), [&](const v1::Report& report) {
    return report.body_case() == body && report.job_id() == job && report.attempt() == attempt;
  });
}

}  // namespace dgxrun::agent
