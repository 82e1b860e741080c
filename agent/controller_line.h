// The way from an agent to its controller: gRPC channels (grpc_line.h), or, where both live in one process,
// plain calls. One control stream at a time, and an output stream per tail.
#ifndef DGXRUN_AGENT_CONTROLLER_LINE_H_
#define DGXRUN_AGENT_CONTROLLER_LINE_H_

#include <functional>
#include <memory>
#include <string>

#include "agent/loop_inbox.h"
#include "agent/tail.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

// Called from any thread, also for a moment after the stream was broken off; messages in their order.
struct StreamEvents {
  std::function<void(v1::ControllerMsg)> message;
  std::function<void(const std::string& why)> closed;  // by the controller, or with the connection
};

class ControlStream {
 public:
  virtual ~ControlStream() = default;  // breaks the stream off
  // Never blocks; what is sent before the connection is there waits in the stream.
  virtual void Send(v1::AgentMsg message) = 0;
};

class ControllerLine {
 public:
  virtual ~ControllerLine() = default;
  virtual std::unique_ptr<ControlStream> Connect(StreamEvents events) = 0;
  // On the tail's thread.
  virtual std::unique_ptr<TailSink> OpenOutput(std::shared_ptr<LoopInbox> loop) = 0;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_CONTROLLER_LINE_H_
