// Inside of Decide: a draft of records that is applied to a private copy of the state as it grows, so that
// every rule sees the consequences of the rules before it. The state given to Decide is never changed.
//
// One file per kind of input says what that input means; decide.cc's Advance holds what follows from a
// job's state alone, whatever led there. Advance is the only place that places, launches, stops and ends.
#ifndef DGXRUN_CONTROLLER_CORE_DECIDE_H_
#define DGXRUN_CONTROLLER_CORE_DECIDE_H_

#include <optional>
#include <string>
#include <vector>

#include "controller/core/core.h"

namespace dgxrun::core {

class Draft {
 public:
  Draft(const State& state, const Contacts& contacts, absl::Time now)
      : base_(state), contacts_(contacts), now_(now) {}

  const State& state() const { return scratch_ ? *scratch_ : base_; }
  const Contacts& contacts() const { return contacts_; }
  absl::Time now() const { return now_; }

  // Stamps the record, applies it to the draft's state and keeps it.
  void Add(v1::Record record);
  void AddAnswer(RequestId request, absl::Status status, JobId job);
  bool HasRecords() const { return !decision_.records.empty(); }
  Decision Take() { return std::move(decision_); }

 private:
  const State& base_;
  const Contacts& contacts_;
  const absl::Time now_;
  std::optional<State> scratch_;
  Decision decision_;
};

// One function per input; each adds what the input itself means.
void DecideStarted(Draft* draft, const ControllerStarted& input);
void DecideTick(Draft* draft);
void DecideConnected(Draft* draft, const NodeConnected& input);
void DecideReport(Draft* draft, const NodeReport& input);
void DecideSubmit(Draft* draft, const SubmitJob& input);
void DecideStop(Draft* draft, const StopJob& input);
void DecideFence(Draft* draft, const FenceNode& input);

// All that follows for one job from the state as it is; then it is at rest until the next input.
void Advance(Draft* draft, const JobId& job);
// Advance for every job: restarts first, then in the order of submission.
void AdvanceAll(Draft* draft);

// A fault of the job's live attempt, unless the same was already seen there.
void AddFault(Draft* draft, const JobId& job, const NodeId& node, v1::Cause cause, int32_t rank,
              const std::string& detail, absl::Time since = absl::InfinitePast());

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_DECIDE_H_
