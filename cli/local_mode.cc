#include "cli/local_mode.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/inventory.h"
#include "cli/in_process_line.h"
#include "cli/local_jobs.h"
#include "launcher/cgroup.h"
#include "proto/ids.h"

namespace dgxrun::cli {
namespace {

constexpr char kFolderPrefix[] = "local-";
// A dgxrun that has just made its folder listens within this; younger folders are left alone.
constexpr absl::Duration kStartLimit = absl::Minutes(1);

std::string ControlSocket(const std::string& folder) { return folder + "/control.sock"; }

}  // namespace

std::string LocalNodeName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "localhost";
  std::string text(name);
  for (char& c : text) {
    if (!IsValidName(std::string(1, c)) && c != '.') c = '-';
  }
  text = text.substr(0, kMaxNameLength);
  return IsValidName(text) ? text : "localhost";
}

v1::NodeInfo LocalNode() {
  v1::NodeInfo node;
  node.set_name(LocalNodeName());
  node.set_state(v1::NODE_STATE_UP);
  agent::InventoryOptions options;
  options.cgroup_parent = FindCgroupParent();
  *node.mutable_inventory() = agent::ReadInventory(options);
  node.set_agent_version(DGXRUN_VERSION);
  if (node.inventory().addresses_size() > 0) node.set_address(node.inventory().addresses(0));
  return node;
}

absl::StatusOr<std::string> ProgramBeside(const std::string& name) {
  char self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  if (n <= 0 || n == static_cast<ssize_t>(sizeof self)) {
    return absl::InternalError(absl::StrCat("/proc/self/exe: ", strerror(errno)));
  }
  const std::string path =
      std::filesystem::path(std::string(self, static_cast<size_t>(n))).parent_path() / name;
  if (access(path.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is missing: it belongs beside dgxrun"));
  }
  return path;
}

void RemoveStaleRuns(const std::string& run_dir) {
  for (const std::string& name : ListFolder(run_dir)) {
    const std::string path = absl::StrCat(run_dir, "/", name);
    struct stat info;
    if (!absl::StartsWith(name, kFolderPrefix) || lstat(path.c_str(), &info) != 0) continue;
    if (info.st_uid != geteuid() || absl::Now() - absl::TimeFromTimespec(info.st_mtim) < kStartLimit)
      continue;
    // Asked of the socket, not of the pid: that one may be of another pid namespace.
    std::error_code ignored;
    if (!SomebodyListens(ControlSocket(path))) std::filesystem::remove_all(path, ignored);
  }
}

absl::Status FitToMachine(const v1::Inventory& inventory, v1::JobSpec* spec, bool* on_cpu) {
  const uint32_t gpus = static_cast<uint32_t>(inventory.gpus_size());
  const bool any = gpus > 0 || inventory.pci_gpus() > 0;
  *on_cpu = spec->device() == v1::DEVICE_CPU || (spec->device() != v1::DEVICE_GPU && !any);
  if (*on_cpu) {
    if (spec->ranks_per_node() == 0) {
      return absl::FailedPreconditionError(
          "-g all means one rank per GPU, and this job runs on the CPU; give a number");
    }
    spec->set_device(v1::DEVICE_CPU);
    return absl::OkStatus();
  }
  const std::string node = LocalNodeName();
  if (!any) return absl::FailedPreconditionError(absl::StrCat(node, " has no NVIDIA device on its PCI bus"));
  if (gpus == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        node, ": its ", inventory.pci_gpus(), " NVIDIA device(s) cannot be used: ", inventory.gpu_error(),
        "; --device cpu runs without them"));
  }
  if (spec->ranks_per_node() > gpus) {
    return absl::FailedPreconditionError(
        absl::StrCat("-g ", spec->ranks_per_node(), ": ", node, " has ", gpus, gpus == 1 ? " GPU" : " GPUs",
                     inventory.gpu_error().empty() ? "" : absl::StrCat(" (", inventory.gpu_error(), ")")));
  }
  if (spec->ranks_per_node() == 0) spec->set_ranks_per_node(gpus);
  spec->set_device(v1::DEVICE_GPU);
  return absl::OkStatus();
}

absl::StatusOr<LocalMode::Prepared> LocalMode::Prepare(const Paths& paths) {
  if (absl::Status made = MakePrivateFolder(paths.run_dir); !made.ok()) return made;
  RemoveStaleRuns(paths.run_dir);
  const std::string folder = absl::StrCat(paths.run_dir, "/", kFolderPrefix, getpid());
  auto janitor = Janitor::Start(folder);
  if (!janitor.ok()) return janitor.status();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);  // of a dead process that had our pid
  if (mkdir(folder.c_str(), 0700) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make ", folder, ": ", strerror(errno)));
  }
  return Prepared{folder, *std::move(janitor)};
}

absl::StatusOr<std::unique_ptr<LocalMode>> LocalMode::Start(Prepared prepared, const Paths& paths,
                                                            const v1::Inventory& inventory,
                                                            const std::string& cgroup_parent,
                                                            bool inherit_terminal) {
  auto shim = ProgramBeside("dgxrun-shim");
  if (!shim.ok()) return shim.status();
  if (absl::Status made = MakeFolders(paths.local_dir(), 0700); !made.ok()) return made;
  std::unique_ptr<LocalMode> mode(new LocalMode(std::move(prepared)));
  const std::string& folder = mode->prepared_.folder;
  const std::string shims = absl::StrCat(folder, "/", kShimsFolder);
  if (absl::Status made = MakeFolders(shims, 0700); !made.ok()) return made;
  mode->control_socket_ = ControlSocket(folder);

  ControllerOptions controller;
  controller.cluster_name = "local";
  controller.state_dir = folder + "/controller";
  controller.durable = false;
  controller.unix_socket = mode->control_socket_;
  auto started = Controller::Start(std::move(controller));
  if (!started.ok()) return started.status();
  mode->controller_ = *std::move(started);

  AgentOptions agent;
  agent.node_name = LocalNodeName();
  agent.run_dir = shims;
  agent.log_root = paths.local_dir();
  agent.shim_binary = *shim;
  agent.inventory = inventory;
  agent.on_agent_gone = v1::ON_AGENT_GONE_KILL;
  agent.allow_root = true;  // what a person types as root runs as root, as any program does
  agent.single_user = true;
  agent.inherit_terminal = inherit_terminal;
  agent.cgroup_parent = cgroup_parent;
  agent.line = MakeInProcessLine(&mode->controller_->in_process());
  auto running = Agent::Start(std::move(agent));
  if (!running.ok()) return running.status();
  mode->agent_ = *std::move(running);
  return mode;
}

LocalMode::~LocalMode() {
  if (agent_ != nullptr) agent_->Shutdown();
  agent_.reset();
  controller_.reset();
  prepared_.janitor.Finish();
}

}  // namespace dgxrun::cli
