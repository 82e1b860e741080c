// What should happen out there, as values. Effects are idempotent: the engine may lose them all at a
// crash and Reconcile makes them again. An effect is performed only after the records it rests on are
// durable.
#ifndef DGXRUN_CONTROLLER_CORE_EFFECT_H_
#define DGXRUN_CONTROLLER_CORE_EFFECT_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "controller/core/input.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "proto/ids.h"

namespace dgxrun::core {

// A message to a node. `kind` with (job, attempt, node) is the effect's identity: the outbox sends each
// once per connection. For kLaunch the outbox adds the environment blob when sending.
struct SendToNode {
  enum class Kind {
    kWelcome,
    kRefuse,
    kHeartbeatAnswer,
    kAck,
    kPrepare,
    kLaunch,
    kStop,
    kForget,
    kCommittee,
    kRemove
  };
  Kind kind;
  NodeId node;
  ConnectionId connection = 0;
  JobId job;          // empty for kWelcome, kRefuse, kHeartbeatAnswer, kAck, kCommittee
  AttemptNo attempt;  // of kPrepare, kLaunch, kStop, kRemove
  v1::ControllerMsg message;
};
struct DeleteEnvironment {  // the job has ended: its blob goes
  JobId job;
};
struct ArchiveJob {  // ended, and every node has forgotten it or is gone for good
  JobId job;
};

using Effect = std::variant<SendToNode, DeleteEnvironment, ArchiveJob>;

// Answer to a caller; given after the records are durable.
struct Answer {
  RequestId request = 0;
  absl::Status status;
  JobId job;
};

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_EFFECT_H_
