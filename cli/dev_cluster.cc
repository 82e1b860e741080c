#include "cli/dev_cluster.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/cluster_choice.h"
#include "cli/daemon.h"
#include "cli/exit_codes.h"
#include "cli/local_jobs.h"
#include "cli/local_mode.h"
#include "cli/render.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

constexpr uint32_t kDefaultNodes = 2;
constexpr absl::Duration kUpLimit =
    absl::Seconds(20);  // agents need well under a second; a loaded machine more
constexpr absl::Duration kUpPoll = absl::Milliseconds(10);  // the controller has no call that waits for nodes
constexpr absl::Duration kEndGrace = absl::Seconds(5);      // a daemon closes its streams and is gone
constexpr absl::Duration kDownGrace = absl::Seconds(5);     // for jobs that still run: shorter than their own
constexpr absl::Duration kJobsLimit = absl::Seconds(30);    // kDownGrace, kills, and slow disks
constexpr uint32_t kListedByDown = 1000;
constexpr size_t kLogLinesShown = 3;  // of a daemon that did not come up

// What daemons need of the caller's environment. Never all of it: it may hold secrets.
constexpr const char* kPassedOn[] = {"PATH",
                                     "HOME",
                                     "USER",
                                     "LOGNAME",
                                     "LANG",
                                     "LC_ALL",
                                     "TZ",
                                     "TMPDIR",
                                     "DGXRUN_SYSFS",
                                     "ASAN_OPTIONS",
                                     "LSAN_OPTIONS",
                                     "UBSAN_OPTIONS",
                                     "DGXRUN_NO_CGROUP",
                                     "LD_LIBRARY_PATH"};

// FNV-1a; stable over releases, unlike absl::Hash.
uint32_t HashOf(const std::string& text) {
  uint32_t hash = 2166136261u;
  for (const unsigned char c : text) hash = (hash ^ c) * 16777619u;
  return hash;
}

class DevCluster {
 public:
  DevCluster(const EnvMap& env, const Paths& paths)
      : dir_(paths.dev_dir()),
        config_(DevClusterFile(paths)),
        run_root_(paths.run_dir),
        run_(absl::StrFormat("%s/dev-%08x", paths.run_dir, HashOf(paths.state_dir))),
        socket_(run_ + "/control.sock") {
    for (const char* name : kPassedOn) {
      if (const auto it = env.find(name); it != env.end())
        environment_.push_back(absl::StrCat(name, "=", it->second));
    }
  }

  absl::StatusOr<int> Up(uint32_t asked_nodes);
  absl::StatusOr<int> Down();
  absl::StatusOr<int> Status(bool json);

 private:
  std::string NodeName(uint32_t i) const { return absl::StrCat("node", i); }
  Daemon Process(const std::string& name) const { return Daemon(absl::StrCat(dir_, "/", name, ".pid")); }
  bool is_up() const { return access(config_.c_str(), F_OK) == 0; }
  uint32_t KnownNodes() const;
  std::vector<std::string> Names() const;

  absl::StatusOr<UniqueFd> Lock();
  absl::Status WriteConfigs(uint32_t nodes);
  absl::Status StartMissing(uint32_t nodes);
  absl::Status StartOne(const std::string& name, const std::string& program, const std::string& config);
  absl::Status WaitFor(const std::function<absl::StatusOr<bool>()>& done);
  absl::Status WaitUp(uint32_t nodes);
  absl::Status ExplainDead(const std::string& name);
  absl::Status StopJobs();
  bool MayHaveRanks() const;

  std::string dir_, config_, run_root_, run_, socket_;
  std::vector<std::string> started_;  // by this process
  std::vector<std::string> environment_;
};

uint32_t DevCluster::KnownNodes() const {
  uint32_t n = 0;
  while (access(absl::StrCat(dir_, "/", NodeName(n + 1), ".toml").c_str(), F_OK) == 0) ++n;
  return n;
}

std::vector<std::string> DevCluster::Names() const {
  std::vector<std::string> names = {"controller"};
  for (uint32_t i = 1; i <= KnownNodes(); ++i) names.push_back(NodeName(i));
  return names;
}

// One `dgxrun dev` at a time.
absl::StatusOr<UniqueFd> DevCluster::Lock() {
  if (absl::Status made = MakeFolders(dir_, 0700); !made.ok()) return made;
  UniqueFd fd(open((dir_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid() || flock(fd.get(), LOCK_EX) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot lock ", dir_, "/lock"));
  }
  return fd;
}

absl::Status DevCluster::WriteConfigs(uint32_t nodes) {
  const std::string head = absl::StrCat(
      "# Made by dgxrun dev up.\n[cluster]\nname = \"dev\"\ncontroller = \"unix:", socket_, "\"\n");
  for (uint32_t i = 1; i <= nodes; ++i) {
    const std::string name = NodeName(i);
    for (const std::string& folder : {absl::StrCat(dir_, "/", name), absl::StrCat(run_, "/", name)}) {
      if (absl::Status made = MakeFolders(folder, 0700); !made.ok()) return made;
    }
    const std::string text = absl::StrCat(head, "[agent]\nname = \"", name, "\"\nstate_dir = \"", dir_, "/",
                                          name, "/state\"\nrun_dir = \"", run_, "/", name, "\"\nlog_dir = \"",
                                          dir_, "/", name, "/logs\"\nallow_root = true\n");
    absl::Status written = WriteFileAtomically(absl::StrCat(dir_, "/", name, ".toml"), text);
    if (!written.ok()) return written;
  }
  return WriteFileAtomically(config_, absl::StrCat(head, "[controller]\nstate_dir = \"", dir_,
                                                   "/controller\"\nunix_socket = \"", socket_, "\"\n"));
}

absl::Status DevCluster::StartMissing(uint32_t nodes) {
  auto controller = ProgramBeside("dgxrun-controller");
  if (!controller.ok()) return controller.status();
  auto agent = ProgramBeside("dgxrun-agent");
  if (!agent.ok()) return agent.status();
  if (absl::Status started = StartOne("controller", *controller, config_); !started.ok()) return started;
  // Nobody dials before it listens: a failed dial would wait for its next try.
  absl::Status listens = WaitFor([this]() -> absl::StatusOr<bool> { return SomebodyListens(socket_); });
  if (!listens.ok()) return listens;
  for (uint32_t i = 1; i <= nodes; ++i) {
    absl::Status started = StartOne(NodeName(i), *agent, absl::StrCat(dir_, "/", NodeName(i), ".toml"));
    if (!started.ok()) return started;
  }
  return absl::OkStatus();
}

absl::Status DevCluster::StartOne(const std::string& name, const std::string& program,
                                  const std::string& config) {
  Daemon process = Process(name);
  if (process.LivingPid() != 0) return absl::OkStatus();
  started_.push_back(name);
  return process.Start({program, "--config", config}, environment_, absl::StrCat(dir_, "/", name, ".log"));
}

absl::Status DevCluster::ExplainDead(const std::string& name) {
  const std::string path = absl::StrCat(dir_, "/", name, ".log");
  std::vector<std::string> lines;
  if (auto text = ReadFile(path); text.ok()) lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  std::string tail;
  for (size_t i = lines.size() - std::min(lines.size(), kLogLinesShown); i < lines.size(); ++i) {
    absl::StrAppend(&tail, "\n  ", Printable(lines[i]));
  }
  return absl::FailedPreconditionError(absl::StrCat("the dev cluster's ", name, " ended; ", path, ":", tail));
}

// Looks until `done` says so, a process that we started ends, or kUpLimit is over.
absl::Status DevCluster::WaitFor(const std::function<absl::StatusOr<bool>()>& done) {
  const absl::Time deadline = absl::Now() + kUpLimit;
  EventLoop loop;  // for its timer
  for (;;) {
    auto over = done();
    if (over.ok() && *over) return absl::OkStatus();
    for (const std::string& name : started_) {
      if (Process(name).LivingPid() == 0) return ExplainDead(name);
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the dev cluster is not up after ", absl::FormatDuration(kUpLimit),
          over.ok() ? "" : ": " + std::string(over.status().message()), "; see ", dir_, "/*.log"));
    }
    bool fired = false;
    loop.After(kUpPoll, [&] { fired = true; });
    while (!fired) loop.RunOnce(absl::InfiniteDuration());
  }
}

absl::Status DevCluster::WaitUp(uint32_t nodes) {
  auto file = ReadClusterFile(config_);
  if (!file.ok()) return absl::InternalError(std::string(file.status().message()));
  auto client = Client::Connect(*file);
  if (!client.ok()) return client.status();
  return WaitFor([&]() -> absl::StatusOr<bool> {
    auto info = client->Info();
    if (!info.ok()) return info.status();
    return info->nodes_up() >= nodes;
  });
}

absl::StatusOr<int> DevCluster::Up(uint32_t asked_nodes) {
  auto lock = Lock();
  if (!lock.ok()) return lock.status();
  const uint32_t known = is_up() ? KnownNodes() : 0;
  if (known > 0 && asked_nodes > 0 && asked_nodes < known) {
    return absl::FailedPreconditionError(
        absl::StrCat("the dev cluster has ", known, " nodes; dgxrun dev down first, to have ", asked_nodes));
  }
  const uint32_t nodes = asked_nodes > 0 ? asked_nodes : std::max(known, known > 0 ? 0u : kDefaultNodes);
  if (absl::Status made = MakePrivateFolder(run_root_); !made.ok()) return made;
  if (absl::Status made = MakePrivateFolder(run_); !made.ok()) return made;
  if (absl::Status written = WriteConfigs(nodes); !written.ok()) return written;
  if (absl::Status started = StartMissing(nodes); !started.ok()) return started;
  if (absl::Status up = WaitUp(nodes); !up.ok()) return up;
  printf(
      "dev cluster up: %u node%s (node1%s%s); dgxrun -n %u script.py runs on it, dgxrun dev down ends it\n",
      nodes, nodes == 1 ? "" : "s", nodes == 1 ? "" : "..", nodes == 1 ? "" : NodeName(nodes).c_str(), nodes);
  return kExitOk;
}

// Whether an agent's run folder shows an attempt: its shims outlive the agents.
bool DevCluster::MayHaveRanks() const {
  for (uint32_t i = 1; i <= KnownNodes(); ++i) {
    std::error_code error;
    if (!std::filesystem::is_empty(absl::StrCat(run_, "/", NodeName(i)), error) && !error) return true;
  }
  return false;
}

absl::Status DevCluster::StopJobs() {
  auto file = ReadClusterFile(config_);
  if (!file.ok()) return absl::InternalError(std::string(file.status().message()));
  auto client = Client::Connect(*file);
  if (!client.ok()) return client.status();
  auto jobs = client->Jobs(kListedByDown);
  if (!jobs.ok()) return jobs.status();
  std::vector<std::string> stopping;
  for (const v1::JobStatus& job : *jobs) {
    if (HasEnded(job.state())) continue;
    v1::StopRequest request;
    request.set_job(job.job_id());
    request.set_reason("dgxrun dev down");
    request.set_has_grace(true);
    request.set_grace_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(kDownGrace)));
    if (auto stopped = client->Stop(request); !stopped.ok()) return stopped.status();
    stopping.push_back(job.job_id());
  }
  for (const std::string& job : stopping) {
    if (auto ended = client->WaitEnded(job, kJobsLimit); !ended.ok()) return ended.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<int> DevCluster::Down() {
  auto lock = Lock();
  if (!lock.ok()) return lock.status();
  if (!is_up()) {
    printf("the dev cluster is not up\n");
    return kExitOk;
  }
  const std::vector<std::string> names = Names();
  const bool all_live = std::all_of(names.begin(), names.end(),
                                    [&](const std::string& name) { return Process(name).LivingPid() != 0; });
  absl::Status stopped;
  if (!all_live && MayHaveRanks()) {
    stopped = StartMissing(KnownNodes());
    if (stopped.ok()) stopped = WaitUp(KnownNodes());
  }
  if (stopped.ok() && (all_live || MayHaveRanks())) stopped = StopJobs();
  if (!stopped.ok()) {
    fprintf(stderr, "dgxrun: jobs may still run: %s\n", std::string(stopped.message()).c_str());
  }
  // Agents first: they would take the controller's end for an outage. In reverse, so the controller is last.
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    if (absl::Status ended = Process(*name).End(kEndGrace); !ended.ok()) return ended;
  }
  unlink(config_.c_str());
  std::error_code ignored;
  for (uint32_t i = KnownNodes(); i >= 1; --i) {
    std::filesystem::remove(absl::StrCat(dir_, "/", NodeName(i), ".toml"), ignored);
  }
  if (stopped.ok()) std::filesystem::remove_all(run_, ignored);
  printf("dev cluster down\n");
  return stopped.ok() ? kExitOk : ExitCodeOf(stopped);
}

absl::StatusOr<int> DevCluster::Status(bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool all = is_up();
  std::string text;
  for (const std::string& name : is_up() ? Names() : std::vector<std::string>()) {
    const int pid = Process(name).LivingPid();
    all = all && pid != 0;
    list.push_back({{"name", name}, {"pid", pid != 0 ? nlohmann::ordered_json(pid) : nullptr}});
    absl::StrAppend(&text, "  ", name,
                    pid != 0 ? absl::StrCat(" pid ", pid) : " is not running; dgxrun dev up", "\n");
  }
  if (json) {
    const nlohmann::ordered_json facts = {{"up", all}, {"folder", dir_}, {"processes", list}};
    printf("%s\n", facts.dump(2).c_str());
  } else {
    printf("%s\n%s", is_up() ? absl::StrCat("dev cluster in ", dir_).c_str() : "the dev cluster is not up",
           text.c_str());
  }
  return all ? kExitOk : kExitUnreachable;
}

}  // namespace

absl::StatusOr<int> DevCommand(const DevOptions& options, const EnvMap& env, const Paths& paths) {
  DevCluster cluster(env, paths);
  switch (options.what) {
    case DevOptions::What::kUp:
      return cluster.Up(options.nodes);
    case DevOptions::What::kDown:
      return cluster.Down();
    case DevOptions::What::kStatus:
      return cluster.Status(options.json);
  }
  return absl::InternalError("an unknown dev command");
}

}  // namespace dgxrun::cli
