// A cluster of one node inside this process: controller and agent, for a launch on this machine.
//
// Its files are in <run folder>/local-<pid>/ on a tmpfs: the controller's log and the environment blob, the
// control socket (through which `dgxrun status`, `logs -f` and `stop` of another shell come), and the
// shims' folders. When this process dies, by SIGKILL too, the shims kill the ranks and the janitor removes
// the folder.
#ifndef DGXRUN_CLI_LOCAL_MODE_H_
#define DGXRUN_CLI_LOCAL_MODE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "cli/janitor.h"
#include "cli/paths.h"
#include "controller/controller.h"
#include "dgxrun/v1/job.pb.h"
#include "dgxrun/v1/node.pb.h"

namespace dgxrun::cli {

// This machine's name as a node: the host name, with what is not allowed in a name replaced.
std::string LocalNodeName();
// This machine as a node of its own, for `dgxrun nodes` without a cluster.
v1::NodeInfo LocalNode();
// dgxrun-shim, dgxrun-agent, dgxrun-controller lie beside dgxrun. FailedPrecondition names what is missing.
absl::StatusOr<std::string> ProgramBeside(const std::string& name);
// Removes folders of dgxrun processes that are gone (both it and its janitor were killed).
void RemoveStaleRuns(const std::string& run_dir);

// Fills ranks_per_node of `-g all`, and refuses what this machine cannot give: FailedPrecondition with the
// reason. Sets *on_cpu.
absl::Status FitToMachine(const v1::Inventory& inventory, v1::JobSpec* spec, bool* on_cpu);

class LocalMode {
 public:
  struct Prepared {  // made while the process has one thread
    std::string folder;
    Janitor janitor;
  };
  static absl::StatusOr<Prepared> Prepare(const Paths& paths);

  static absl::StatusOr<std::unique_ptr<LocalMode>> Start(Prepared prepared, const Paths& paths,
                                                          const v1::Inventory& inventory,
                                                          const std::string& cgroup_parent,
                                                          bool inherit_terminal);
  ~LocalMode();  // ends agent, controller and janitor, in this order

  InProcess* controller() { return &controller_->in_process(); }
  const std::string& control_socket() const { return control_socket_; }

 private:
  explicit LocalMode(Prepared prepared) : prepared_(std::move(prepared)) {}

  Prepared prepared_;
  std::string control_socket_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<Agent> agent_;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LOCAL_MODE_H_
