// A node's voice: one thread that owns the shims' sockets, the stream to the controller and the tails of
// log files. Decides nothing about jobs; agent_core.h holds what it does decide (what to refuse, what to
// store, what to resend).
//
// Used by dgxrun-agent (a channel over the network or a unix socket) and by dgxrun in local mode (plain calls
// in one process, controller_line.h): the same code.
#ifndef DGXRUN_AGENT_AGENT_H_
#define DGXRUN_AGENT_AGENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/node.pb.h"
#include "dgxrun/v1/shim.pb.h"
#include "grpcpp/channel.h"
#include "proto/rpc/credentials.h"

namespace dgxrun {

namespace agent {
class ControllerLine;
class WitnessServer;
}  // namespace agent

// Peers mode: what the command of this node asks for, and what its ranks get in place of the submitter's
// environment. The values go to the shim and nowhere else.
struct PeerCommand {
  v1::PeerOffer offer;
  v1::Environment environment;
};

struct AgentOptions {
  std::string node_name;
  std::string
      state_dir;         // node id, agent.db; made if missing, mode 0700. Empty: nothing is kept (local mode)
  std::string run_dir;   // on a tmpfs; one folder per attempt below it
  std::string log_root;  // <log_root>/<job>/attempt_<k>/...
  std::string shim_binary;          // absolute
  std::string expected_cluster_id;  // empty: the one in state_dir, or the first that answers
  v1::Inventory inventory;
  v1::OnAgentGone on_agent_gone = v1::ON_AGENT_GONE_LEASE;
  uint32_t port_low = 0, port_high = 0;  // range of reserved ports; 0: any free port
  bool allow_root = false;               // a root agent runs ranks as root only if this is set
  bool single_user = false;  // agent of an ordinary user, or local mode: ranks run as the agent's own account
  bool inherit_terminal = false;             // local mode, one rank
  std::optional<std::string> cgroup_parent;  // nullopt: what FindCgroupParent() says; "": none
  std::optional<PeerCommand> peer;
  agent::WitnessServer* witness = nullptr;  // listens already; null: this agent bears no witness. Outlives it
  TlsFiles tls;                             // to ask other agents with
  bool reap_children = false;  // dgxrun-agent: a subreaper that has blocked SIGCHLD in all threads
  // Two channels to the same controller with connections of their own: control, and bulk output.
  std::shared_ptr<grpc::Channel> control;
  std::shared_ptr<grpc::Channel> bulk;
  std::shared_ptr<agent::ControllerLine> line;  // in place of the channels: a controller in this process
  // Called on the agent's thread when the agent cannot go on: the controller refused it for good
  // (FailedPrecondition), or its store failed (any other code). Shims live on until their leases end.
  std::function<void(const absl::Status&)> on_refused;
  // Peers mode: the job is over, as the controller says with its last word. On the agent's thread.
  std::function<void(const v1::JobStatus&)> on_job_ended;
};

class Agent {
 public:
  // An ack takes a round trip and a commit; a controller that does not answer keeps nobody longer.
  static constexpr absl::Duration kShutdownLimit = absl::Seconds(2);

  // Reads the state folder, finds living shims, starts the thread. Errors name the folder or file.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options);
  virtual ~Agent() = default;  // as Shutdown, without the wait

  // Ends the stream and the thread. Shims are left as they are: with ON_AGENT_GONE_KILL they kill their
  // ranks when they see the socket close. Waits at most kShutdownLimit for reports to be acknowledged.
  virtual void Shutdown() = 0;

  // Stops all that lives here, whatever the controller says, and for good. `gone` is called once, on the
  // agent's thread, when nothing lives.
  virtual void StopEverything(absl::Duration grace, std::string reason, std::function<void()> gone) = 0;
};

}  // namespace dgxrun

#endif  // DGXRUN_AGENT_AGENT_H_
