// What an attempt that a node says it holds is to this controller's log.
#ifndef DGXRUN_CONTROLLER_CORE_STRAYS_H_
#define DGXRUN_CONTROLLER_CORE_STRAYS_H_

#include <cstdint>
#include <optional>

#include "controller/core/model.h"

namespace dgxrun::core {

enum class AttemptKind {
  kPlaced,    // the job's live attempt, and it may live on this node
  kOutlived,  // older, ended, fenced or never meant for this node: it has to go
  kArchived,  // of a job that ended long ago: it has to go, and the job be forgotten there
  kAhead,     // newer than the log (an old log was restored), or of another log: left alone, and said so
};

// Number n of a job id "<first 6 hex digits of the cluster id>-<n>"; nullopt: not an id of this cluster.
std::optional<uint64_t> JobNumber(const State& state, const JobId& job);

AttemptKind ClassifyAttempt(const State& state, const NodeId& node, const JobId& job, AttemptNo attempt);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_STRAYS_H_
