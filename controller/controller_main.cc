// dgxrun-controller --config FILE: the controller of a cluster, as a daemon.
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <string>

#include "CLI/CLI.hpp"
#include "absl/synchronization/mutex.h"
#include "controller/controller.h"
#include "launcher/base/cluster_file.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace {

// sysexits.h, as in docs/states.md.
constexpr int kExitUsage = 64;
constexpr int kExitUnavailable = 69;
constexpr int kExitConfig = 78;

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:  // a port or a socket that is taken
    case absl::StatusCode::kUnavailable:    // a log in use
      return kExitUnavailable;
    default:
      return kExitConfig;
  }
}

dgxrun::ControllerOptions OptionsOf(const dgxrun::ClusterFile& file) {
  dgxrun::ControllerOptions options;
  options.cluster_name = file.name;
  options.state_dir = file.controller_options.state_dir;
  options.unix_socket = file.controller_options.unix_socket;
  options.any_user = file.controller_options.any_user;
  options.listen_address = file.controller_options.listen;
  options.tls = {file.tls_ca, file.tls_cert, file.tls_key};
  options.heartbeat_ms = file.heartbeat_ms;
  options.node_lease_ms = file.node_lease_ms;
  options.isolation_timeout_ms = file.isolation_timeout_ms;
  options.orphan_timeout_ms = file.orphan_timeout_ms;
  options.nccl = file.nccl;
  return options;
}

int Fail(const absl::Status& status) {
  fprintf(stderr, "dgxrun-controller: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

}  // namespace

int main(int argc, char** argv) {
  // Debian builds abseil with its deadlock detector on; it grows with every mutex of every stream.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  std::string config;
  CLI::App app("The controller of a dgxrun cluster: places jobs, watches nodes, decides about restarts.");
  app.add_option("--config", config, "cluster file (see configs/)")->required();
  app.set_version_flag("--version", DGXRUN_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("dgxrun-controller"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");

  // Blocked before any thread starts, so that sigwait alone gets them.
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigaddset(&end, SIGINT);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  signal(SIGPIPE, SIG_IGN);

  absl::StatusOr<dgxrun::ClusterFile> file = dgxrun::ReadClusterFile(config);
  if (!file.ok()) return Fail(file.status());
  if (file->controller_options.listen.empty() && file->controller_options.unix_socket.empty()) {
    return Fail(
        absl::InvalidArgumentError(file->path + ": [controller] needs \"listen\" or \"unix_socket\""));
  }
  absl::StatusOr<std::unique_ptr<dgxrun::Controller>> controller =
      dgxrun::Controller::Start(OptionsOf(*file));
  if (!controller.ok()) return Fail(controller.status());
  spdlog::info("controller of {} listens on {}", file->name, (*controller)->listening_on());

  int signal_number = 0;
  sigwait(&end, &signal_number);
  spdlog::info("controller ends on {}; agents and their ranks go on until isolation_timeout",
               strsignal(signal_number));
  controller->reset();
  return 0;
}
