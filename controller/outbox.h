// What the engine sends to nodes, on its way to their streams: each message once per connection (Reconcile
// repeats itself freely), with the job's environment added. Values of environment variables go from the
// blob into a Launch here and nowhere else.
#ifndef DGXRUN_CONTROLLER_OUTBOX_H_
#define DGXRUN_CONTROLLER_OUTBOX_H_

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "controller/engine.h"
#include "controller/environment_store.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun {

// Where messages go on: a node's stream. Must not block.
class NodeStreams {
 public:
  virtual ~NodeStreams() = default;
  // A message for a connection that has ended is dropped. `last`: the stream ends after it.
  virtual void SendOn(core::ConnectionId connection, v1::ControllerMsg message, bool last) = 0;
  virtual void CloseAllStreams() = 0;
};

// Called on the engine's thread only.
class Outbox : public NodeSink {
 public:
  // `lost`: the environment of a job that should start cannot be read; it will never start.
  using EnvironmentLost = std::function<void(const JobId& job, const std::string& why)>;
  // `environments_of_nodes`: each node has its own (peers mode), and none goes out.
  Outbox(EnvironmentStore environments, NodeStreams* streams, EnvironmentLost lost,
         bool environments_of_nodes = false)
      : environments_(std::move(environments)),
        streams_(streams),
        lost_(std::move(lost)),
        environments_of_nodes_(environments_of_nodes) {}

  void Send(const core::SendToNode& message) override;
  void CloseAll() override { streams_->CloseAllStreams(); }

 private:
  using Key = std::tuple<core::SendToNode::Kind, JobId, AttemptNo>;
  struct Sent {
    core::ConnectionId connection = 0;
    std::map<Key, std::string> last;  // serialized, as the core made it: without values
  };
  bool AlreadySent(const core::SendToNode& message);
  const v1::Environment* EnvironmentOf(const JobId& job);

  const EnvironmentStore environments_;
  NodeStreams* const streams_;
  const EnvironmentLost lost_;
  const bool environments_of_nodes_;
  std::map<NodeId, Sent> sent_;
  // Of the job that was sent last: a launch goes to all its nodes in a row.
  JobId cached_job_;
  v1::Environment cached_;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_OUTBOX_H_
