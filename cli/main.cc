// dgxrun: takes the words apart, calls one command, and turns its error into a line and an exit code.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/attach.h"
#include "cli/ckpt_command.h"
#include "cli/cluster_check.h"
#include "cli/cluster_init.h"
#include "cli/command_line.h"
#include "cli/dev_cluster.h"
#include "cli/exit_codes.h"
#include "cli/launch.h"
#include "cli/paths.h"
#include "cli/queries.h"
#include "spdlog/spdlog.h"

namespace dgxrun::cli {
namespace {

absl::StatusOr<int> InitClusterCommand(const ClusterInitOptions& options, const EnvMap& env) {
  std::vector<std::string> hosts = options.hosts, users = options.users;
  char host[256] = "";
  if (hosts.empty() && gethostname(host, sizeof host - 1) == 0) hosts.push_back(host);
  if (users.empty() && !Get(env, "USER").empty()) users.push_back(Get(env, "USER"));
  auto next = InitCluster(options.dir, options.name, hosts, users);
  if (!next.ok()) return next.status();
  fputs(next->c_str(), stdout);
  return kExitOk;
}

absl::StatusOr<int> Run(const Command& command, const EnvMap& env) {
  if (const auto* show = std::get_if<ShowText>(&command)) {
    fputs(show->text.c_str(), stdout);
    return kExitOk;
  }
  if (const auto* init = std::get_if<ClusterInitOptions>(&command)) return InitClusterCommand(*init, env);
  if (const auto* ckpt = std::get_if<CkptOptions>(&command)) return CkptCommand(*ckpt);
  auto paths = FindPaths(env, geteuid(), OnTmpfs);
  if (!paths.ok()) return paths.status();
  if (const auto* launch = std::get_if<LaunchOptions>(&command)) return Launch(*launch, env, *paths);
  if (const auto* status = std::get_if<StatusOptions>(&command)) return ShowStatus(*status, env, *paths);
  if (const auto* nodes = std::get_if<NodesOptions>(&command)) return ShowNodes(*nodes, env, *paths);
  if (const auto* logs = std::get_if<LogsOptions>(&command)) return ShowLogs(*logs, env, *paths);
  if (const auto* why = std::get_if<WhyOptions>(&command)) return ShowWhy(*why, env, *paths);
  if (const auto* attach = std::get_if<AttachOptions>(&command)) return AttachCommand(*attach, env, *paths);
  if (const auto* check = std::get_if<ClusterCheckOptions>(&command))
    return CheckClusterCommand(*check, env, *paths);
  if (const auto* stop = std::get_if<StopOptions>(&command)) return StopJobCommand(*stop, env, *paths);
  if (const auto* dev = std::get_if<DevOptions>(&command)) return DevCommand(*dev, env, *paths);
  return absl::InternalError("a command without a handler");
}

int Main(const std::vector<std::string>& words) {
  // Debian's gRPC and abseil are built without NDEBUG: its deadlock detector costs milliseconds of a start.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // The embedded controller and agent log for operators of daemons; a person at a terminal gets our lines.
  spdlog::set_level(spdlog::level::off);
  auto command = ParseCommandLine(words);
  absl::StatusOr<int> code = command.ok() ? Run(*command, ProcessEnvironment()) : command.status();
  // A program that reads us must not take half a text for the whole.
  if (fflush(stdout) != 0 && code.ok() && *code == kExitOk) {
    code = absl::InternalError(absl::StrCat("cannot write to stdout: ", strerror(errno)));
  }
  if (code.ok()) return *code;
  fprintf(stderr, "dgxrun: %s\n", std::string(code.status().message()).c_str());
  return ExitCodeOf(code.status());
}

}  // namespace
}  // namespace dgxrun::cli

int main(int argc, char** argv) { return dgxrun::cli::Main(std::vector<std::string>(argv + 1, argv + argc)); }
