#include "agent/shim_client.h"

#include <dirent.h>
#include <signal.h>
#include <sys/epoll.h>

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/file_tasks.h"
#include "launcher/base/sys.h"
#include "launcher/cgroup.h"
#include "launcher/run_dir.h"
#include "launcher/shim_start.h"

namespace dgxrun::agent {
namespace {

// Where the kernel has no pidfd, the guard's end is looked for so often: its final file is read once it is
// there.
constexpr absl::Duration kGuardPoll = absl::Milliseconds(50);
// Processes in an uninterruptible sleep cannot be killed now; they may be later.
constexpr absl::Duration kSweepAgain = absl::Seconds(1);
// A shim that accepts and closes without a hello is no shim of ours to wait for.
constexpr int kMaxSilentConnects = 3;

std::optional<AttemptKey> ParseFolder(const std::string& name) {
  const size_t dot = name.rfind('.');
  uint32_t attempt = 0;
  if (dot == std::string::npos || !absl::SimpleAtoi(name.substr(dot + 1), &attempt)) return std::nullopt;
  const std::string job = name.substr(0, dot);
  if (!IsValidName(job)) return std::nullopt;
  return AttemptKey{JobId(job), AttemptNo(attempt)};
}

// What a dead shim and guard left behind: the final file, else the journal, which tells no end.
std::optional<v1::ShimFinal> ReadLeft(const std::string& dir) {
  absl::StatusOr<v1::ShimFinal> left = ReadFinal(dir);
  if (!left.ok()) left = ReadJournal(dir);
  if (!left.ok()) return std::nullopt;
  return *std::move(left);
}

}  // namespace

ShimClient::ShimClient(EventLoop* loop, FileTasks* tasks, ShimClientOptions options, Events events)
    : loop_(loop), tasks_(tasks), options_(std::move(options)), events_(std::move(events)) {
  // Left by agents that nobody starts again, like those of local jobs.
  RemoveAbandonedCgroups(options_.cgroup_parent);
}

ShimClient::~ShimClient() {
  for (auto& [key, shim] : shims_) {
    if (shim.channel != nullptr) loop_->Unwatch(shim.channel->fd());
    if (shim.awaited && shim.guard.valid()) loop_->Unwatch(shim.guard.get());
    loop_->Cancel(shim.timer);
  }
}

std::string ShimClient::AttemptDir(const AttemptKey& key) const {
  return absl::StrCat(options_.run_dir, "/", key.job.str(), ".", key.attempt.value());
}

std::string ShimClient::MarkOf(const AttemptKey& key) const {
  return absl::StrCat(options_.mark_prefix, ":", key.job.str(), ".", key.attempt.value());
}

// The ports are ours until the shim holds them: closed here.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
absl::Status ShimClient::Start(const AttemptKey& key, v1::ShimStart start, std::vector<UniqueFd> held_ports,
                               bool inherit_terminal) {
  ShimStartOptions options;
  options.shim_binary = options_.shim_binary;
  options.run_dir = AttemptDir(key);
  options.inherit_terminal = inherit_terminal;
  for (const UniqueFd& port : held_ports) options.held_ports.push_back(port.get());
  RemoveAttemptDir(options.run_dir);  // attempts never run twice: what is there is of a lost state folder
  absl::Status made = PrepareRunDir(options.run_dir);
  if (!made.ok()) return made;
  absl::StatusOr<StartedShim> started = StartShim(options);
  if (!started.ok()) {
    RemoveAttemptDir(options.run_dir);
    return started.status();
  }
  Shim& shim = shims_[key];
  shim.guard = std::move(started->pidfd);
  shim.guard_pid = started->guard_pid;
  shim.guard_told = started->guard_pid;
  start.set_mark(MarkOf(key));
  start.set_cgroup_parent(options_.cgroup_parent);
  Connect(key, &shim, std::move(started->socket));
  v1::ShimCommand command;
  *command.mutable_start() = std::move(start);
  Send(key, command);
  return absl::OkStatus();
}

ShimClient::Found ShimClient::Scan() {
  Found found;
  const std::unique_ptr<DIR, void (*)(DIR*)> dir(opendir(options_.run_dir.c_str()), [](DIR* d) {
    if (d != nullptr) closedir(d);
  });
  if (dir == nullptr) return found;
  while (const dirent* entry = readdir(dir.get())) {
    const std::optional<AttemptKey> key = ParseFolder(entry->d_name);
    if (!key.has_value()) continue;
    absl::StatusOr<UniqueFd> socket = ConnectShim(AttemptDir(*key));
    if (socket.ok()) {
      Connect(*key, &shims_[*key], *std::move(socket));
      found.living.push_back(*key);
      continue;
    }
    absl::StatusOr<v1::ShimFinal> final = ReadFinal(AttemptDir(*key));
    if (final.ok()) {
      found.finals.push_back(*std::move(final));
    } else {
      found.dead.push_back(*key);
    }
  }
  return found;
}

void ShimClient::Connect(const AttemptKey& key, Shim* shim, UniqueFd socket) {
  shim->channel = std::make_unique<ShimChannel>(std::move(socket));
  shim->watches_write = false;
  loop_->Watch(shim->channel->fd(), EPOLLIN, [this, key](uint32_t ready) { OnReady(key, ready); });
}

void ShimClient::UpdateWatch(Shim* shim) {
  if (shim->channel->wants_write() == shim->watches_write) return;
  shim->watches_write = shim->channel->wants_write();
  loop_->Modify(shim->channel->fd(), shim->watches_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void ShimClient::Send(const AttemptKey& key, const v1::ShimCommand& command) {
  auto it = shims_.find(key);
  if (it == shims_.end() || it->second.channel == nullptr)
    return;  // what matters is said again after its hello
  // An error is a closed socket, which the loop reports as readable.
  if (it->second.channel->Send(command).ok()) UpdateWatch(&it->second);
}

void ShimClient::OnReady(const AttemptKey& key, uint32_t ready) {
  auto it = shims_.find(key);
  if (it == shims_.end() || it->second.channel == nullptr) return;
  Shim& shim = it->second;
  if ((ready & EPOLLOUT) != 0 && shim.channel->Flush().ok()) UpdateWatch(&shim);
  std::vector<v1::ShimMsg> messages;
  const absl::Status read = shim.channel->Read([&](const std::string& bytes) {
    v1::ShimMsg message;
    if (message.ParseFromString(bytes)) messages.push_back(std::move(message));
  });
  for (v1::ShimMsg& message : messages) {
    if (message.has_hello()) {
      shim.silent_connects = 0;
      if (!shim.guard.valid()) {
        shim.guard_told = message.hello().guard_pid();
        shim.guard = RealSys().PidfdOpen(shim.guard_told);
      }
    }
    events_.on_message(key, std::move(message));
  }
  if (!read.ok()) Lost(key);
}

void ShimClient::Lost(const AttemptKey& key) {
  Shim& shim = shims_[key];
  loop_->Unwatch(shim.channel->fd());
  shim.channel.reset();
  if (shim.ended) return AwaitGuard(key, &shim);
  events_.on_disconnected(key);
  absl::StatusOr<UniqueFd> again = ConnectShim(AttemptDir(key));
  if (again.ok() && ++shim.silent_connects <= kMaxSilentConnects)
    return Connect(key, &shim, *std::move(again));
  AwaitGuard(key, &shim);
}

void ShimClient::AwaitGuard(const AttemptKey& key, Shim* shim) {
  if (shim->awaited) return;
  shim->awaited = true;
  RealSys().Kill(shim->guard_told, SIGCONT);  // it may have been stopped; what the shim left is its to kill
  if (shim->guard.valid()) {
    loop_->Watch(shim->guard.get(), EPOLLIN, [this, key](uint32_t) { GuardEnded(key); });
    shim->timer = loop_->After(kGuardLimit, [this, key] { GuardOverdue(key); });
  } else {
    shim->deadline_ns = EventLoop::BoottimeNs() + absl::ToInt64Nanoseconds(kGuardLimit);
    PollGuard(key);
  }
}

void ShimClient::GuardOverdue(const AttemptKey& key) {
  Shim& shim = shims_[key];
  RealSys().Kill(shim.guard_told, SIGKILL);  // its pidfd is not ready, so the pid is still its own
  shim.timer = loop_->After(kKilledGuardLimit, [this, key] { GuardEnded(key); });
}

void ShimClient::PollGuard(const AttemptKey& key) {
  Shim& shim = shims_[key];
  ChildEnd end;
  const bool over =
      (shim.guard_pid > 0 && RealSys().ReapOne(shim.guard_pid, &end)) || ReadFinal(AttemptDir(key)).ok();
  if (over || EventLoop::BoottimeNs() >= shim.deadline_ns) return GuardEnded(key);
  shim.timer = loop_->After(kGuardPoll, [this, key] { PollGuard(key); });
}

void ShimClient::GuardEnded(const AttemptKey& key) {
  Shim& shim = shims_[key];
  if (shim.guard.valid()) loop_->Unwatch(shim.guard.get());
  loop_->Cancel(shim.timer);
  ChildEnd end;
  if (shim.guard_pid > 0) RealSys().ReapOne(shim.guard_pid, &end);
  shim.guard_pid = 0;
  shim.guard.Reset();
  shim.awaited = false;
  if (shim.ended) return Drop(key);
  absl::StatusOr<v1::ShimFinal> final = ReadFinal(AttemptDir(key));
  if (final.ok()) return events_.on_final(*std::move(final));
  Sweep(key);
}

void ShimClient::Sweep(const AttemptKey& key) {
  shims_[key];  // so that Ended finds it
  SweepTarget target;
  target.mark = MarkOf(key);
  absl::StatusOr<std::string> cgroup = ReadWholeFile(absl::StrCat(AttemptDir(key), "/", kCgroupName));
  if (cgroup.ok()) {
    target.cgroup = *cgroup;
  } else if (!options_.cgroup_parent.empty()) {
    target.cgroup = CgroupPathOf(options_.cgroup_parent, key.job.str(), key.attempt.value(), target.mark);
  }
  // Reading all of /proc may take seconds on a machine full of processes: heartbeats must go on.
  const auto sweep = [this, key, target]() -> std::function<void()> {
    const int left = SweepStrays(target, kSweepRounds);
    return [this, key, left] { Swept(key, left); };
  };
  if (!tasks_->Run(sweep)) loop_->After(kSweepAgain, [this, key] { Sweep(key); });
}

void ShimClient::Swept(const AttemptKey& key, int left) {
  if (left > 0) {
    loop_->After(kSweepAgain, [this, key] { Sweep(key); });
    return;
  }
  std::optional<v1::ShimFinal> final = ReadLeft(AttemptDir(key));
  if (final.has_value() && final->job_id() == key.job.str()) return events_.on_final(*std::move(final));
  events_.on_strays_gone(key, "the shim and its guard ended without a word");
}

void ShimClient::Ended(const AttemptKey& key) {
  auto it = shims_.find(key);
  if (it == shims_.end()) return RemoveAttemptDir(AttemptDir(key));
  it->second.ended = true;
  if (it->second.channel == nullptr && !it->second.awaited) Drop(key);
}

void ShimClient::Drop(const AttemptKey& key) {
  RemoveAttemptDir(AttemptDir(key));
  shims_.erase(key);
}

}  // namespace dgxrun::agent
