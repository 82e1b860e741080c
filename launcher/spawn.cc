#include "launcher/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/exit_status.h"

namespace dgxrun {
namespace {

constexpr int kMaxGroups = 65536;  // NGROUPS_MAX of Linux

template <class Char>
std::vector<Char*> Pointers(const std::vector<std::string>& words) {
  std::vector<Char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<Char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// What one rank's child needs, alive through its fork.
struct Flat {
  std::vector<const char*> programs;
  std::vector<char*> argv, envp;
};

int HighestFd() {
  // The lowest free number above all: what dup gives is at most the count of open ones, but a hole may
  // hide a higher one, so the limit of the process counts.
  const long limit = sysconf(_SC_OPEN_MAX);
  constexpr long kMost = 4096;  // the shim opens a few per rank; beyond this the loop would only cost time
  return static_cast<int>(limit < 0 ? kMost : std::min(limit, kMost));
}

const char* StageName(SpawnStage stage) {
  switch (stage) {
    case SpawnStage::kReady:
      return "ready";
    case SpawnStage::kAffinity:
      return "affinity";
    case SpawnStage::kSession:
      return "setsid";
    case SpawnStage::kOwner:
      return "setuid";
    case SpawnStage::kParentDeath:
      return "prctl";
    case SpawnStage::kChdir:
      return "chdir";
    case SpawnStage::kDescriptors:
      return "dup";
    case SpawnStage::kProgram:
    case SpawnStage::kExec:
      return "exec";
  }
  return "?";
}

std::string Detail(const SpawnMessage& message, const NodeSpawn& node, const RankSpawn& rank) {
  const std::string why = strerror(message.error);
  switch (message.stage) {
    case SpawnStage::kChdir:
      return absl::StrCat("cannot enter the working folder ", node.cwd, ": ", why);
    case SpawnStage::kOwner:
      return absl::StrCat("cannot become user ", node.user, " (uid ", node.uid, "): ", why);
    case SpawnStage::kProgram:
      if (message.error == ENOENT && rank.programs.size() > 1) {
        return absl::StrCat("program ", rank.argv[0], " is not in the job's PATH");
      }
      return absl::StrCat("cannot execute ", rank.programs[message.program], ": ", why);
    case SpawnStage::kExec:
      return absl::StrCat("cannot execute ", rank.programs[message.program], ": ", why,
                          message.error == ENOENT ? " (the interpreter in its first line)" : "");
    case SpawnStage::kReady:
    case SpawnStage::kAffinity:
    case SpawnStage::kSession:
    case SpawnStage::kParentDeath:
    case SpawnStage::kDescriptors:
      break;
  }
  return absl::StrCat(StageName(message.stage), ": ", why);
}

}  // namespace

std::vector<gid_t> GroupsOf(const std::string& user, gid_t gid) {
  if (user.empty()) return {gid};
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (getgrouplist(user.c_str(), gid, groups.data(), &count) < 0) {
    if (count <= static_cast<int>(groups.size()) || count > kMaxGroups) return {gid};
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

Spawner::Progress Spawner::Start(const std::vector<RankFds>& fds, int stdin_fd,
                                 const std::vector<gid_t>& groups, const std::string& oom_score_adj,
                                 const std::function<void(pid_t)>& forked) {
  int status[2], gate[2];
  if (pipe2(status, O_CLOEXEC) != 0) return Fail(0, "pipe", errno, absl::StrCat("pipe: ", strerror(errno)));
  status_.Reset(status[0]);
  UniqueFd status_write(status[1]);
  fcntl(status_.get(), F_SETFL, O_NONBLOCK);
  if (pipe2(gate, O_CLOEXEC) != 0) return Fail(0, "pipe", errno, absl::StrCat("pipe: ", strerror(errno)));
  UniqueFd gate_read(gate[0]);
  gate_.Reset(gate[1]);

  const int max_fd = HighestFd();
  const pid_t self = sys_.Self();
  for (size_t i = 0; i < node_.ranks.size(); ++i) {
    const RankSpawn& rank = node_.ranks[i];
    const Flat flat{Pointers<const char>(rank.programs), Pointers<char>(rank.argv), Pointers<char>(rank.env)};
    ChildPlan plan{};
    plan.index = static_cast<int32_t>(i);
    plan.programs = flat.programs.data();
    plan.argv = flat.argv.data();
    plan.envp = flat.envp.data();
    plan.cwd = node_.cwd.empty() ? nullptr : node_.cwd.c_str();
    plan.set_owner = node_.set_owner;
    plan.uid = node_.uid;
    plan.gid = node_.gid;
    plan.groups = groups.data();
    plan.group_count = groups.size();
    plan.cpus = rank.cpu_mask.data();
    plan.cpu_bytes = rank.cpu_mask.size() * sizeof(unsigned long);
    plan.oom_score_adj = oom_score_adj.empty() ? nullptr : oom_score_adj.c_str();
    plan.stdin_fd = stdin_fd;
    plan.stdout_fd = fds[i].out;
    plan.stderr_fd = fds[i].err;
    plan.status_fd = status_write.get();
    plan.gate_fd = gate_read.get();
    plan.gate_write = gate_.get();
    plan.max_fd = max_fd;
    plan.parent = self;
    absl::StatusOr<pid_t> pid = sys_.Fork([&plan] { RunSpawnChild(plan); });
    if (!pid.ok()) return Fail(i, "fork", errno, std::string(pid.status().message()));
    pids_.push_back(*pid);
    forked(*pid);
  }
  return Progress::kWaiting;
}

Spawner::Progress Spawner::OnReadable() {
  if (failed_) return Progress::kFailed;
  char buffer[64 * sizeof(SpawnMessage)];
  while (true) {
    const ssize_t n = read(status_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Progress::kWaiting;  // EAGAIN: no more for now
    if (n == 0) {
      // Nobody holds the other end: each has exec'ed, or ended.
      return released_ ? Progress::kStarted : Fail(0, "fork", ECHILD, "all ranks ended before their start");
    }
    pending_.append(buffer, static_cast<size_t>(n));
    while (pending_.size() >= sizeof(SpawnMessage)) {
      SpawnMessage message;
      memcpy(&message, pending_.data(), sizeof message);
      pending_.erase(0, sizeof message);
      if (Take(message) == Progress::kFailed) return Progress::kFailed;
    }
  }
}

Spawner::Progress Spawner::Take(const SpawnMessage& message) {
  const auto index = static_cast<size_t>(message.index);
  const RankSpawn& rank = node_.ranks[index];
  if (message.stage == SpawnStage::kAffinity) {
    warnings_.push_back(absl::StrCat("rank ", rank.rank, " is not bound: ", strerror(message.error)));
    return Progress::kWaiting;
  }
  if (message.stage != SpawnStage::kReady) {
    return Fail(index, StageName(message.stage), message.error, Detail(message, node_, rank));
  }
  if (++ready_ < node_.ranks.size()) return Progress::kWaiting;
  const std::string go(ready_, 'g');  // far below the 4 KiB that a pipe takes at once
  if (write(gate_.get(), go.data(), go.size()) != static_cast<ssize_t>(go.size())) {
    return Fail(0, "gate", errno, absl::StrCat("gate: ", strerror(errno)));
  }
  released_ = true;
  gate_.Reset();
  return Progress::kWaiting;
}

Spawner::Progress Spawner::Died(size_t index, const ChildEnd& end) {
  if (released_ || failed_) return failed_ ? Progress::kFailed : Progress::kWaiting;
  // Its last word may still be in the pipe, and says more.
  if (OnReadable() == Progress::kFailed) return Progress::kFailed;
  if (released_) return Progress::kWaiting;
  return Fail(index, "fork", ECHILD,
              absl::StrCat("rank ", node_.ranks[index].rank, " ", DescribeExit(ToExitStatus(end)),
                           " before its start"));
}

Spawner::Progress Spawner::Fail(size_t index, const std::string& stage, int error,
                                const std::string& detail) {
  if (failed_) return Progress::kFailed;
  failed_ = true;
  gate_.Reset();
  failure_.set_rank(node_.ranks[index].rank);
  failure_.set_stage(stage);
  failure_.set_error_number(error);
  failure_.set_detail(detail);
  return Progress::kFailed;
}

}  // namespace dgxrun
