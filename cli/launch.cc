#include "cli/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/inventory.h"
#include "cli/attached.h"
#include "cli/client.h"
#include "cli/cluster_choice.h"
#include "cli/console.h"
#include "cli/exit_codes.h"
#include "cli/launch_command.h"
#include "cli/local_jobs.h"
#include "cli/local_mode.h"
#include "cli/peers.h"
#include "cli/render.h"
#include "launcher/cgroup.h"
#include "proto/rpc/wire_version.h"

namespace dgxrun::cli {
namespace {

// What is wrong with the folders of local mode is no fault of the command line's.
absl::Status AsConfiguration(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsNotFound(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

absl::StatusOr<std::string> SubmitKey() {
  std::string bytes(16, '\0');  // 128 random bits: no two submits share one
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError("no random bytes from the kernel");
  }
  return absl::BytesToHexString(bytes);
}

absl::StatusOr<std::string> WorkingFolder(const EnvMap& env) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::current_path(error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the working folder cannot be read: ", error.message()));
  }
  // $PWD keeps the links that the user went through (/data -> /mnt/x), which are the same on every node.
  const std::string logical = Get(env, "PWD");
  if (!logical.empty() && logical[0] == '/' && std::filesystem::equivalent(logical, real, error) && !error) {
    return logical;
  }
  return real.string();
}

}  // namespace

absl::StatusOr<v1::SubmitRequest> MakeSubmit(const LaunchOptions& options, const EnvMap& env, bool local) {
  auto cwd = WorkingFolder(env);
  if (!cwd.ok()) return cwd.status();
  auto spec = BuildSpec(options, env, *cwd, local);
  if (!spec.ok()) return spec.status();
  auto key = SubmitKey();
  if (!key.ok()) return key.status();
  v1::SubmitRequest request;
  request.set_key(*key);
  *request.mutable_version() = OurWireVersion();
  *request.mutable_environment() = FilterEnvironment(env, options.exports);
  *request.mutable_spec() = *std::move(spec);
  for (const v1::EnvVar& var : request.environment().vars()) {
    if (var.name() == "OMP_NUM_THREADS") request.mutable_spec()->set_omp_threads_set(true);
    if (var.name() == "CUDA_VISIBLE_DEVICES") request.mutable_spec()->set_visible_devices_set(true);
  }
  return request;
}

namespace {

// The id alone on stdout, for `job=$(dgxrun --detach ...)`; the line for people on stderr.
absl::StatusOr<int> Detach(const v1::SubmitRequest& request, Client& client, const std::string& where) {
  auto reply = client.Submit(request);
  if (!reply.ok()) return reply.status();
  const std::string& job = reply->job_id();
  fprintf(stderr, "dgxrun: %s (job %s), detached: dgxrun attach %s, dgxrun stop %s\n",
          Layout(reply->nodes(), reply->ranks_per_node(), where).c_str(), job.c_str(), job.c_str(),
          job.c_str());
  fputs((job + "\n").c_str(), stdout);
  return kExitOk;
}

absl::StatusOr<int> LaunchOnCluster(const LaunchOptions& options, const EnvMap& env, const Paths& paths) {
  auto cluster = NeedCluster(options.cluster, env, paths, options.nodes);
  if (!cluster.ok()) return cluster.status();
  auto request = MakeSubmit(options, env, /*local=*/false);
  if (!request.ok()) return request.status();
  const UniqueFd signals = TakeSignals();
  auto client = Client::Connect(cluster->file);
  if (!client.ok()) return client.status();
  if (auto info = client->Info(); !info.ok()) return info.status();
  if (options.detach) return Detach(*request, *client, cluster->file.name);
  Console console(STDOUT_FILENO, STDERR_FILENO);
  AttachedJob::Options attached;
  attached.say_cpu = options.device == v1::DEVICE_AUTO;
  attached.log_all = options.log_all;
  attached.where = cluster->file.name;
  AttachedJob job(*std::move(client), std::move(attached), &console, signals.get());
  return job.Run(*request);
}

absl::StatusOr<int> LaunchHere(const LaunchOptions& options, const EnvMap& env, const Paths& paths) {
  auto request = MakeSubmit(options, env, /*local=*/true);
  if (!request.ok()) return request.status();
  v1::JobSpec* spec = request->mutable_spec();
  agent::InventoryOptions inventory_options;
  inventory_options.cgroup_parent = FindCgroupParent();
  inventory_options.quick = true;
  const v1::Inventory inventory = agent::ReadInventory(inventory_options);
  bool on_cpu = false;
  if (options.ranks_are_cpus) spec->set_ranks_per_node(inventory.allowed_cpus());
  if (absl::Status fits = FitToMachine(inventory, spec, &on_cpu); !fits.ok()) return fits;
  const bool terminal =
      spec->ranks_per_node() == 1 && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  spec->set_inherit_terminal(terminal);

  const UniqueFd signals = TakeSignals();
  auto prepared = LocalMode::Prepare(paths);
  if (!prepared.ok()) return AsConfiguration(prepared.status());
  auto mode =
      LocalMode::Start(*std::move(prepared), paths, inventory, inventory_options.cgroup_parent, terminal);
  if (!mode.ok()) return AsConfiguration(mode.status());

  Console console(STDOUT_FILENO, STDERR_FILENO);
  const LocalJobs jobs(paths.local_dir());
  bool said_write_error = false;
  AttachedJob::Options attached;
  attached.local = true;
  attached.say_cpu = options.device == v1::DEVICE_AUTO;
  attached.show_output = !terminal;
  attached.log_all = options.log_all;
  attached.where = "this machine";
  attached.on_status = [&](const v1::JobStatus& status) {
    const absl::Status written = jobs.Write(status, (*mode)->control_socket());
    if (written.ok() || said_write_error) return;
    said_write_error = true;
    console.Notice(absl::StrCat("dgxrun status will not know this job: ", std::string(written.message())));
  };
  auto code =
      AttachedJob(Client((*mode)->controller(), "this machine"), std::move(attached), &console, signals.get())
          .Run(*request);
  mode->reset();
  jobs.Prune(kKeptLocalJobs);
  return code;
}

}  // namespace

absl::StatusOr<int> Launch(const LaunchOptions& options, const EnvMap& env, const Paths& paths) {
  if (options.peers) return LaunchPeers(options, env, paths);
  if (options.nodes > 0 || !options.cluster.empty()) return LaunchOnCluster(options, env, paths);
  return LaunchHere(options, env, paths);
}

}  // namespace dgxrun::cli
