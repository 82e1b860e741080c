// Everything that can happen to the controller, as values.
//
// An Input is made by the engine (or the simulator) from a gRPC message, a timer or a closed stream.
// `now` is the only clock the core ever sees. Inputs refer to peers by id and carry the wire messages
// unchanged, so that nothing is translated twice.
#ifndef DGXRUN_CONTROLLER_CORE_INPUT_H_
#define DGXRUN_CONTROLLER_CORE_INPUT_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/control.pb.h"
#include "dgxrun/v1/job.pb.h"
#include "proto/ids.h"

namespace dgxrun::core {

// Who asks. Filled by the service from the socket's peer credentials or the client certificate.
struct Caller {
  std::string user;
  uint32_t uid = 0;
  uint32_t gid = 0;
  bool admin = false;  // may act on jobs of others
};

// Connection of a node: raised by the service at each new stream, so that what is said on a stream
// that was replaced is never taken for news.
using ConnectionId = uint64_t;

// Matches an Answer to the RPC that waits for it; unique within a run of the controller.
using RequestId = uint64_t;

struct ControllerStarted {       // first input of every run, after the log was replayed
  std::string fresh_cluster_id;  // random; used only if the log has none yet
};
struct Tick {};
struct NodeConnected {
  ConnectionId connection = 0;
  v1::Hello hello;
  std::string peer_address;  // IP as the controller sees it; "" over a unix socket or in process
};
struct NodeDisconnected {
  NodeId node;
  ConnectionId connection = 0;
};
struct NodeHeartbeat {
  NodeId node;
  ConnectionId connection = 0;
  v1::Heartbeat heartbeat;
};
struct NodeReport {
  NodeId node;
  ConnectionId connection = 0;
  v1::Report report;
};
struct SubmitJob {
  RequestId request = 0;
  Caller caller;
  std::string key;
  v1::JobSpec spec;  // env_names and env_sha256 filled by the service, which has stored the blob
};
struct StopJob {
  RequestId request = 0;
  Caller caller;
  JobId job;
  bool has_grace = false;
  absl::Duration grace;
  std::string reason;
};

struct FenceNode {  // a person's word that a lost node is off
  RequestId request = 0;
  Caller caller;
  std::string node;  // id or name
};

struct Input {
  absl::Time now;
  std::variant<ControllerStarted, Tick, NodeConnected, NodeDisconnected, NodeHeartbeat, NodeReport, SubmitJob,
               StopJob, FenceNode>
      body;
};

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_INPUT_H_
