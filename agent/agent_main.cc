// dgxrun-agent --config FILE: the composition root of the daemon on each node.
//
// It is a subreaper, so that what a dead shim and guard leave comes to it, and reaps unknown children.
// SIGTERM and SIGINT end the agent but not its shims: their ranks run on until the next agent, or until their
// leases end (systemd: KillMode=process).
#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"
#include "agent/inventory.h"
#include "agent/witness.h"
#include "launcher/base/cluster_file.h"
#include "launcher/base/event_loop.h"
#include "launcher/cgroup.h"
#include "launcher/run_dir.h"
#include "proto/rpc/credentials.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace dgxrun {
namespace {

// As the CLI's (docs/states.md); a service manager need not start an agent again that ends with 78.
constexpr int kExitInternal = 70;
constexpr int kExitConfiguration = 78;

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const std::string full = name.data();
  return full.substr(0, full.find('.'));
}

// The user's state folder, as the CLI has it.
std::string UserStateDir() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string dir = variable("DGXRUN_STATE_DIR"); !dir.empty()) return dir;
  if (const std::string dir = variable("XDG_STATE_HOME"); !dir.empty()) return dir + "/dgxrun";
  const passwd* entry = getpwuid(geteuid());
  const std::string home = !variable("HOME").empty() ? variable("HOME")
                           : entry != nullptr        ? entry->pw_dir
                                                     : "/";
  return home + "/.local/state/dgxrun";
}

absl::StatusOr<AgentOptions> MakeOptions(const ClusterFile& file) {
  AgentOptions options;
  const bool root = geteuid() == 0;
  options.node_name = file.agent.name.empty() ? HostName() : file.agent.name;
  options.state_dir = file.agent.state_dir;
  if (options.state_dir.empty())
    options.state_dir = root ? "/var/lib/dgxrun/agent" : UserStateDir() + "/agent";
  options.log_root = file.agent.log_dir;
  // The state folder is closed to others, the logs are not: each job's folder belongs to its owner.
  if (options.log_root.empty()) options.log_root = root ? "/var/log/dgxrun" : options.state_dir + "/logs";
  options.run_dir = file.agent.run_dir;
  if (options.run_dir.empty()) {
    absl::Status made = PrepareRunDir(DefaultRunDir());
    if (!made.ok()) return made;
    options.run_dir = DefaultRunDir() + "/agent";
  }
  options.shim_binary = std::filesystem::canonical("/proc/self/exe").parent_path() / "dgxrun-shim";
  options.port_low = file.agent.port_low;
  options.port_high = file.agent.port_high;
  options.allow_root = file.agent.allow_root;
  options.reap_children = true;
  options.cgroup_parent = FindCgroupParent();
  agent::InventoryOptions inventory;
  inventory.declared_gpus = file.agent.declared_gpus;
  inventory.address = file.agent.address;
  inventory.cgroup_parent = *options.cgroup_parent;
  options.inventory = agent::ReadInventory(inventory);
  const TlsFiles tls{file.tls_ca, file.tls_cert, file.tls_key};
  absl::StatusOr<std::shared_ptr<grpc::Channel>> control = Dial(file.controller, tls, /*bulk=*/false);
  if (!control.ok()) return control.status();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> bulk = Dial(file.controller, tls, /*bulk=*/true);
  if (!bulk.ok()) return bulk.status();
  options.tls = tls;
  options.control = *std::move(control);
  options.bulk = *std::move(bulk);
  return options;
}

// Where other agents ask it, on the same kind of line as the controller's.
absl::StatusOr<std::unique_ptr<agent::WitnessServer>> ListenAsWitness(const ClusterFile& file,
                                                                      const AgentOptions& options) {
  agent::WitnessPlace place;
  if (absl::StartsWith(file.controller, "unix:")) {
    place.path = options.run_dir + "/witness.sock";
    if (absl::Status made = PrepareRunDir(options.run_dir); !made.ok()) return made;
  } else {
    place.port = file.agent.witness_port;
    place.tls = options.tls;
  }
  return agent::WitnessServer::Listen(place);
}

int Fail(const absl::Status& status) {
  spdlog::error("dgxrun-agent: {}", std::string(status.message()));
  return absl::IsInternal(status) ? kExitInternal : kExitConfiguration;
}

// Blocked in every thread; must be called before the first one is started.
sigset_t BlockSignals() {
  sigset_t ours;
  sigemptyset(&ours);
  for (int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&ours, signal);
  pthread_sigmask(SIG_BLOCK, &ours, nullptr);
  signal(SIGPIPE, SIG_IGN);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  return ending;
}

int Main(int argc, char** argv) {
  // Debian builds abseil with its deadlock detector on, which grows with the number of mutexes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const sigset_t ending = BlockSignals();
  CLI::App app("The agent of a dgxrun cluster: runs on each node, started by the service manager.");
  std::string config;
  app.add_option("--config", config, "the cluster file")->required();
  app.set_version_flag("--version", DGXRUN_VERSION);
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("agent"));

  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return Fail(absl::InternalError(absl::StrCat("PR_SET_CHILD_SUBREAPER: ", strerror(errno))));
  }
  absl::StatusOr<ClusterFile> file = ReadClusterFile(config);
  if (!file.ok()) return Fail(file.status());
  absl::StatusOr<AgentOptions> options = MakeOptions(*file);
  if (!options.ok()) return Fail(options.status());

  absl::StatusOr<std::unique_ptr<agent::WitnessServer>> witness = ListenAsWitness(*file, *options);
  if (!witness.ok()) return Fail(witness.status());
  options->witness = witness->get();

  EventLoop loop;
  absl::Status refused;
  options->on_refused = [&](const absl::Status& why) {
    loop.Post([&, why] {
      refused = why;
      loop.Quit();
    });
  };
  const UniqueFd signals(signalfd(-1, &ending, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals.valid()) return Fail(absl::InternalError(absl::StrCat("signalfd: ", strerror(errno))));
  loop.Watch(signals.get(), EPOLLIN, [&](uint32_t) { loop.Quit(); });
  spdlog::info("node {}: {} cores, {} GPUs{}{}", options->node_name, options->inventory.allowed_cores(),
               options->inventory.gpus_size(), options->inventory.gpu_error().empty() ? "" : "; ",
               options->inventory.gpu_error());
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(*std::move(options));
  if (!agent.ok()) return Fail(agent.status());
  loop.Run();
  (*agent)->Shutdown();
  agent->reset();
  return refused.ok() ? 0 : Fail(refused);
}

}  // namespace
}  // namespace dgxrun

int main(int argc, char** argv) { return dgxrun::Main(argc, argv); }
