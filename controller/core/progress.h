// How far a job's attempt has come, joined from what its nodes say in their heartbeats. Volatile: it is part
// of Contacts, begins empty with each controller and each attempt, and is never logged; what is decided from
// it is (alarms.h). Pure.
#ifndef DGXRUN_CONTROLLER_CORE_PROGRESS_H_
#define DGXRUN_CONTROLLER_CORE_PROGRESS_H_

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/job.pb.h"
#include "proto/ids.h"

namespace dgxrun::core {

struct State;
struct Contacts;
struct Job;
struct Attempt;

// Of one node.
struct NodeProgress {
  bool has_step = false;
  int64_t first_step = 0, step = 0, step_unix_ns = 0;
  std::map<std::string, v1::CheckpointFinding> seen;  // by path; at most kMaxSeen, those first seen latest
  uint64_t free_bytes = 0;                            // 0: not told
  std::set<std::string> held;     // names that pins, pointers and links hold there (--ckpt-keep)
  std::set<std::string> removed;  // of what it told before the attempt: gone since, by --ckpt-keep
};

// Of one attempt. `summary` is made anew with each piece of news, so that reading it costs nothing.
struct AttemptProgress {
  static constexpr size_t kMaxSeen = 32;     // checkpoints: enough for a usual interval
  static constexpr size_t kMaxSamples = 24;  // of the step; at kSampleEvery some minutes
  static constexpr absl::Duration kSampleEvery = absl::Seconds(10);
  static constexpr size_t kMaxNotes = 16;  // a person reads some

  AttemptNo attempt;
  std::map<NodeId, NodeProgress> nodes;
  v1::Progress summary;
  absl::Time first_at = absl::InfiniteFuture();     // the first complete one was first seen here
  absl::Time newest_at = absl::InfinitePast();      // the newest complete one was first seen here
  absl::Time short_since = absl::InfiniteFuture();  // since when one more would not fit; infinite: it would
  std::optional<v1::Checkpoint> first_new;          // the first complete one that the attempt wrote
  std::deque<std::pair<absl::Time, int64_t>> samples;
  std::vector<std::pair<NodeId, std::string>> notes;  // as told, each once
};

// News in a heartbeat. Of attempts that are not live, or have no share on the node: ignored.
void ObserveProgress(Contacts* contacts, const State& state, const NodeId& node,
                     const v1::Heartbeat& heartbeat, absl::Time now);
// Null: nothing was told of this attempt.
const AttemptProgress* ProgressOf(const Contacts& contacts, const Job& job);
// For status: what is known of the job's current attempt, the checkpoint it was given included.
v1::Progress DescribeProgress(const Contacts& contacts, const Job& job);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_PROGRESS_H_
