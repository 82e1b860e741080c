// The controller's end of one node's control stream, whatever carries it: gRPC (agent_stream.h) or plain
// calls within this process (in_process.h). Thread-safe.
#ifndef DGXRUN_CONTROLLER_NODE_STREAM_H_
#define DGXRUN_CONTROLLER_NODE_STREAM_H_

#include "absl/status/status.h"
#include "controller/core/input.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun {

class NodeStream {
 public:
  virtual ~NodeStream() = default;
  virtual core::ConnectionId connection() const = 0;
  virtual bool welcomed() = 0;  // a Welcome was sent and the stream has not ended
  // Never blocks; messages leave in their order. `last`: the stream ends after this one.
  virtual void Send(v1::ControllerMsg message, bool last) = 0;
  virtual void Cancel() = 0;  // ends without a word
};

// Whether a node may be known by this hello; the error is for the agent's operator.
absl::Status CheckHello(const v1::Hello& hello);
v1::ControllerMsg Refusal(const absl::Status& why);  // for good

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_NODE_STREAM_H_
