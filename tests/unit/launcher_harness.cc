#include "tests/unit/launcher_harness.h"

#include <ftw.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/base/sys.h"
#include "launcher/cgroup.h"
#include "launcher/run_dir.h"
#include "launcher/shim_start.h"
#include "tests/unit/launcher_deny.h"

namespace dgxrun::testing {
namespace {

constexpr int kPollMs = 2;

// The filter is inherited, so it is in place before the first shim; strays that lose shim and guard come to
// us.
const bool kPrepared = [] {
  DenyNewSyscallsIfRequested();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return true;
}();

const std::string& CgroupParentOnce() {
  static const std::string parent = FindCgroupParent();
  return parent;
}

std::string MakeFolder(const char* pattern) {
  std::string path = pattern;
  if (mkdtemp(path.data()) == nullptr) abort();
  return path;
}

int RemoveOne(const char* path, const struct stat*, int, struct FTW*) { return remove(path); }

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    poll(nullptr, 0, kPollMs);
  }
  return true;
}

std::string Slurp(const std::string& path) {
  absl::StatusOr<std::string> text = ReadWholeFile(path);
  return text.ok() ? *text : "";
}

bool Lives(int pid) {
  const std::string stat = Slurp(absl::StrCat("/proc/", pid, "/stat"));
  const size_t end = stat.rfind(')');
  return end != std::string::npos && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}

Harness::Harness(bool with_cgroup)
    : folder_(MakeFolder("/tmp/dgxrun-test-XXXXXX")), run_dir_(MakeFolder("/dev/shm/dgxrun-test-XXXXXX")) {
  static std::atomic<int> count{0};
  job_ = absl::StrCat("test", getpid(), "-", ++count);
  mark_ = absl::StrCat("node:", job_, ".0");
  if (with_cgroup) cgroup_parent_ = CgroupParentOnce();
}

Harness::~Harness() {
  channel_.reset();
  if (guard_pid_ > 0 && !guard_reaped_) {
    if (hello_.shim_pid() > 0 && Lives(hello_.shim_pid())) kill(hello_.shim_pid(), SIGKILL);
    Eventually([this] { return waitpid(guard_pid_, nullptr, WNOHANG) != 0; });
  }
  EXPECT_EQ(SweepStrays({mark_, cgroup()}, 10), 0);
  for (const std::string& path : {folder_, run_dir_}) nftw(path.c_str(), RemoveOne, 8, FTW_DEPTH | FTW_PHYS);
}

v1::ShimStart Harness::Plan(int ranks, std::vector<std::string> argv) {
  v1::ShimStart start;
  start.set_version(1);
  start.set_job_id(job_);
  start.set_mark(mark_);
  start.set_node_name("n1");
  start.set_log_dir(folder_);
  start.set_on_agent_gone(v1::ON_AGENT_GONE_LEASE);
  start.set_cgroup_parent(cgroup_parent_);
  v1::EnvVar* path = start.mutable_environment()->add_vars();
  path->set_name("PATH");
  path->set_value("/usr/local/bin:/usr/bin:/bin");
  for (std::string& word : argv) start.mutable_plan()->add_argv(std::move(word));
  start.mutable_plan()->set_cwd(folder_);
  for (int i = 0; i < ranks; ++i) {
    v1::RankPlan* rank = start.mutable_plan()->add_ranks();
    rank->set_rank(static_cast<uint32_t>(i));
    rank->set_local_rank(static_cast<uint32_t>(i));
    for (const char* name : {"RANK", "LOCAL_RANK"}) {
      v1::EnvVar* var = rank->add_env();
      var->set_name(name);
      var->set_value(absl::StrCat(i));
    }
  }
  return start;
}

std::vector<std::string> Harness::Rank(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), DGXRUN_RANK_BINARY);
  return arguments;
}

void Harness::Start(const v1::ShimStart& start, std::vector<int> held_ports) {
  ShimStartOptions options;
  options.held_ports = std::move(held_ports);
  StartWith(start, options);
}

void Harness::StartOnTerminal(const v1::ShimStart& start, int in, int out) {
  ShimStartOptions options;
  options.inherit_terminal = true;
  UniqueFd old_in(dup(STDIN_FILENO)), old_out(dup(STDOUT_FILENO));
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  StartWith(start, options);
  dup2(old_in.get(), STDIN_FILENO);
  dup2(old_out.get(), STDOUT_FILENO);
}

void Harness::StartWith(const v1::ShimStart& start, const ShimStartOptions& wanted) {
  ShimStartOptions options = wanted;
  options.shim_binary = DGXRUN_SHIM_BINARY;
  options.run_dir = run_dir_;
  absl::StatusOr<StartedShim> started = StartShim(options);
  ASSERT_TRUE(started.ok()) << started.status();
  guard_pid_ = started->guard_pid;
  pidfd_ = std::move(started->pidfd);
  channel_ = std::make_unique<ShimChannel>(std::move(started->socket));
  v1::ShimCommand command;
  *command.mutable_start() = start;
  ASSERT_TRUE(channel_->Send(command).ok());
}

void Harness::Attach(uint64_t last_event) {
  absl::StatusOr<UniqueFd> fd = ConnectShim(run_dir_);
  ASSERT_TRUE(fd.ok()) << fd.status();
  channel_ = std::make_unique<ShimChannel>(*std::move(fd));
  v1::ShimCommand command;
  command.mutable_attach()->set_version(1);
  command.mutable_attach()->set_last_event(last_event);
  ASSERT_TRUE(channel_->Send(command).ok());
}

void Harness::Stop(uint64_t grace_ms) {
  v1::ShimCommand command;
  command.mutable_stop()->set_grace_ms(grace_ms);
  command.mutable_stop()->set_reason("the test says so");
  ASSERT_TRUE(channel_->Send(command).ok());
}

void Harness::Lease(int64_t deadline_ns) {
  v1::ShimCommand command;
  command.mutable_lease()->set_deadline_ns(static_cast<uint64_t>(deadline_ns));
  ASSERT_TRUE(channel_->Send(command).ok());
}

void Harness::Ack(uint64_t number) {
  v1::ShimCommand command;
  command.mutable_ack()->set_number(number);
  ASSERT_TRUE(channel_->Send(command).ok());
}

void Harness::Take(const std::string& bytes) {
  v1::ShimMsg message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  if (message.has_hello()) hello_ = message.hello();
  if (message.has_event()) seen_.push_back(message.event());
}

std::optional<v1::ShimEvent> Harness::Next() {
  const absl::Time end = absl::Now() + kPatience;
  while (next_ == seen_.size()) {
    if (channel_ == nullptr || absl::Now() > end) return std::nullopt;
    pollfd one{channel_->fd(), POLLIN, 0};
    poll(&one, 1, 1000);
    if (!channel_->Read([this](const std::string& bytes) { Take(bytes); }).ok()) channel_.reset();
  }
  return seen_[next_++];
}

v1::AttemptGone Harness::UntilGone() {
  while (std::optional<v1::ShimEvent> event = Next()) {
    if (!event->has_gone()) continue;
    if (channel_ != nullptr) Ack(event->number());
    return event->gone();
  }
  ADD_FAILURE() << "no AttemptGone";
  return v1::AttemptGone();
}

bool Harness::GuardEnds() {
  if (guard_reaped_) return true;
  guard_reaped_ = Eventually([this] { return waitpid(guard_pid_, nullptr, WNOHANG) != 0; });
  return guard_reaped_;
}

int Harness::PidFrom(const std::string& name) {
  int pid = 0;
  EXPECT_TRUE(Eventually([&] { return absl::SimpleAtoi(Slurp(File(name)), &pid); })) << name;
  return pid;
}

std::string Harness::cgroup() const {
  return cgroup_parent_.empty() ? "" : CgroupPathOf(cgroup_parent_, job_, 0, mark_);
}

bool Harness::NothingLeft() {
  const std::string path = cgroup();
  if (!path.empty() && access(path.c_str(), F_OK) == 0) return false;
  const std::string wanted = absl::StrCat("DGXRUN_MARK=", mark_);
  RealSys sys;
  for (pid_t pid : Descendants(sys, getpid(), {})) {
    if (Lives(pid)) return false;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (Slurp((entry.path() / "environ").string()).find(wanted) != std::string::npos) return false;
  }
  return true;
}

}  // namespace dgxrun::testing
