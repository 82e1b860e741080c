#include "launcher/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/base/clock.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/sys.h"
#include "launcher/cgroup.h"
#include "launcher/exit_status.h"
#include "launcher/gang.h"
#include "launcher/output.h"
#include "launcher/plan.h"
#include "launcher/run_dir.h"
#include "launcher/shim_link.h"
#include "launcher/spawn.h"

namespace dgxrun {
namespace {

constexpr uint32_t kProtocolVersion = 1;
// How long the end of an attempt waits for the writer to put the last bytes into files.
constexpr absl::Duration kDrainLimit = absl::Seconds(2);
// How long after that a killed writer may take to vanish; one on a hung disk never does.
constexpr absl::Duration kWriterKillLimit = absl::Milliseconds(200);
// A writer that has work and does nothing for so many looks hangs: longer than a disk that is busy, and short
// for a rank that waits on a full pipe. Counted in looks, so that a machine that was frozen is no hang.
constexpr absl::Duration kWriterLook = absl::Seconds(1);
constexpr int kWriterHangLooks = 5;
// How long a failed rank's report waits for its last output to be in the file, so that its reader finds
// the traceback there.
constexpr absl::Duration kExitDrainLimit = absl::Milliseconds(100);
// How long the shim stays to be told that "gone" was stored; final.pb is there for later.
constexpr absl::Duration kAckLimit = absl::Seconds(5);
constexpr int kProtectedOomScore = -500;

int64_t NowNs() { return EventLoop::BoottimeNs(); }

// Lowers our own score where that is allowed and returns what the ranks get back; empty: unchanged.
std::string ProtectFromOomKiller() {
  constexpr char kPath[] = "/proc/self/oom_score_adj";
  absl::StatusOr<std::string> before = ReadWholeFile(kPath);
  UniqueFd fd(open(kPath, O_WRONLY | O_CLOEXEC));
  if (!before.ok() || !fd.valid()) return "";
  int score;
  if (!absl::SimpleAtoi(*before, &score) || score <= kProtectedOomScore) return "";
  const std::string wanted = absl::StrCat(kProtectedOomScore);
  if (write(fd.get(), wanted.data(), wanted.size()) < 0) return "";
  return absl::StrCat(score);
}

// Pid as the process itself sees it, where that differs; else 0.
int32_t InnerPid(pid_t pid) {
  absl::StatusOr<std::string> status = ReadWholeFile(absl::StrCat("/proc/", pid, "/status"));
  if (!status.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (line.substr(0, 6) != "NSpid:") continue;
    const std::vector<std::string> fields = absl::StrSplit(line, '\t', absl::SkipEmpty());
    int32_t inner = 0;
    if (fields.size() > 2 && absl::SimpleAtoi(fields.back(), &inner)) return inner;
  }
  return 0;
}

class Shim {
 public:
  explicit Shim(const ShimOptions& options) : options_(options) {}
  int Run();

 private:
  // A rank's death that waits until its output is in the file.
  struct PendingExit {
    RankExit exit;
    int64_t deadline_ns = 0;
  };

  // Agents.
  void OnAgentLost();
  void OnCommand(v1::ShimCommand command);
  void OnStart(v1::ShimStart start);
  void SendHello();
  void SendEventsAfter(uint64_t number);

  // The attempt.
  void Begin();
  void FailBeforeFork(const std::string& stage, const absl::Status& status);
  void MakeCgroup();
  void Forked(pid_t pid);
  void WatchSpawner();
  void OnSpawn(Spawner::Progress progress);
  void OnChildren();
  void TakeEnd(const ChildEnd& end);
  void DeliverExits(bool all);
  void SayLost();
  void Perform(const GangActions& actions);
  void Do(const SignalRanks& action);
  void Do(const KillAll& action);
  void Do(const ReportEvent& action);
  void Do(const ArmTimer& action);
  void Do(const Finish& action);

  // The end.
  void CheckGone();
  void LookAtWriter();
  void StartWriter();
  bool WriterIsDone();
  void WriterEnded(const ChildEnd& end);
  void LeaveWhenAcked();
  void Clean();

  const ShimOptions& options_;
  EventLoop loop_;
  RealClock clock_;
  RealSys sys_;
  UniqueFd signals_, journal_;
  ShimLink link_{loop_,
                 ShimLink::Callbacks{[this](v1::ShimCommand command) { OnCommand(std::move(command)); },
                                     [this] { SendHello(); }, [this] { OnAgentLost(); }}};
  v1::ShimStart start_;
  std::optional<Gang> gang_;
  NodeSpawn node_;
  std::vector<gid_t> groups_;
  std::optional<Spawner> spawner_;
  bool spawned_ = false;
  std::vector<bool> reaped_;  // by rank index
  std::vector<UniqueFd> pidfds_;
  std::unique_ptr<Output> output_;
  std::optional<Cgroup> cgroup_;
  uint64_t oom_kills_seen_ = 0;
  std::deque<PendingExit> exits_;
  uint64_t say_lost_at_ = 1;  // bytes of lost output at which it is said (again)
  uint64_t writer_progress_ = 0;
  int writer_idle_looks_ = 0;  // with work to do
  pid_t killed_writer_ = 0;    // by us, since it hangs, or since another is to take its turn
  std::vector<std::string> warnings_;
  EventLoop::TimerId gang_timer_ = 0, exit_timer_ = 0, drain_timer_ = 0;
  enum class Drain { kNotYet, kWaiting, kKilled, kGivenUp } drain_ = Drain::kNotYet;
  uint64_t acked_ = 0;
  bool finished_ = false;
};

int Shim::Run() {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  signals_.Reset(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid() || !link_.Open(options_.run_dir, options_.agent_fd)) return 1;
  loop_.Watch(signals_.get(), EPOLLIN, [this](uint32_t) { OnChildren(); });
  loop_.Watch(options_.guard_pipe, EPOLLIN, [this](uint32_t) {
    loop_.Unwatch(options_.guard_pipe);
    if (!gang_) return loop_.Quit();
    DeliverExits(true);
    Perform(gang_->GuardGone(NowNs()));
  });
  loop_.Run();
  Clean();
  return 0;
}

void Shim::OnAgentLost() {
  if (!gang_ || finished_) return loop_.Quit();  // nothing was begun, or nobody is left to tell
  DeliverExits(true);
  Perform(gang_->AgentGone(NowNs()));
}

void Shim::OnCommand(v1::ShimCommand command) {
  if (command.has_start()) {
    if (!gang_) OnStart(std::move(*command.mutable_start()));
    return;
  }
  if (!gang_) return;
  switch (command.body_case()) {
    case v1::ShimCommand::kStop:
      DeliverExits(true);  // what died before the word "stop" did not die of it
      Perform(gang_->Stop(NowNs(), command.stop().grace_ms(), command.stop().reason()));
      break;
    case v1::ShimCommand::kLease:
      Perform(gang_->Lease(NowNs(), command.lease().deadline_ns()));
      break;
    case v1::ShimCommand::kAck:
      acked_ = std::max(acked_, command.ack().number());
      LeaveWhenAcked();
      break;
    case v1::ShimCommand::kAttach:
      SendEventsAfter(command.attach().last_event());
      break;
    case v1::ShimCommand::kSignal:
      Perform(gang_->Signal(command.signal().number(), command.signal().signal()));
      break;
    case v1::ShimCommand::kStart:
    case v1::ShimCommand::BODY_NOT_SET:
      break;
  }
}

void Shim::SendHello() {
  v1::ShimMsg message;
  v1::ShimHello* hello = message.mutable_hello();
  hello->set_version(kProtocolVersion);
  hello->set_shim_pid(getpid());
  hello->set_guard_pid(options_.guard_pid);
  if (gang_) {
    hello->set_job_id(start_.job_id());
    hello->set_attempt(start_.attempt());
    *hello->mutable_snapshot() = gang_->Snapshot();
    hello->set_last_event(gang_->last_event());
  }
  link_.Send(message);
}

void Shim::SendEventsAfter(uint64_t number) {
  for (const v1::ShimEvent& event : gang_->events()) {
    if (event.number() <= number) continue;
    v1::ShimMsg message;
    *message.mutable_event() = event;
    link_.Send(message);
  }
}

void Shim::OnStart(v1::ShimStart start) {
  start_ = std::move(start);
  gang_.emplace(start_);
  SendHello();
  journal_.Reset(open(absl::StrCat(options_.run_dir, "/", kJournalName).c_str(),
                      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  v1::ShimFinal head;
  head.set_job_id(start_.job_id());
  head.set_attempt(start_.attempt());
  head.set_log_dir(start_.log_dir());
  head.set_dies_with_agent(start_.on_agent_gone() == v1::ON_AGENT_GONE_KILL);
  const std::string bytes = DelimitedBytes(head);
  if (!journal_.valid() || write(journal_.get(), bytes.data(), bytes.size()) < 0) {
    warnings_.push_back("the run folder takes no journal");
  }
  Begin();
}

void Shim::FailBeforeFork(const std::string& stage, const absl::Status& status) {
  v1::SpawnFailed failure;
  if (start_.plan().ranks_size() > 0) failure.set_rank(start_.plan().ranks(0).rank());
  failure.set_stage(stage);
  failure.set_detail(std::string(status.message()));
  Perform(gang_->SpawnFailed(NowNs(), failure));
}

void Shim::Begin() {
  absl::StatusOr<NodeSpawn> node = PlanSpawn(start_);
  start_.clear_environment();  // flattened by now; no second copy of secrets is kept
  if (!node.ok()) return FailBeforeFork("plan", node.status());
  node_ = *std::move(node);
  reaped_.assign(node_.ranks.size(), false);
  if (node_.set_owner) groups_ = GroupsOf(node_.user, node_.gid);
  absl::StatusOr<std::unique_ptr<Output>> output = Output::Make(node_);
  if (!output.ok()) return FailBeforeFork("pipe", output.status());
  output_ = *std::move(output);
  if (absl::Status status = output_->StartWriter(sys_, node_, groups_); !status.ok()) {
    return FailBeforeFork("fork", status);
  }
  loop_.Watch(output_->bell(), EPOLLIN, [this](uint32_t) {
    output_->ClearBell();
    SayLost();
    DeliverExits(false);
  });
  loop_.After(kWriterLook, [this] { LookAtWriter(); });
  MakeCgroup();
  UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  spawner_.emplace(sys_, node_);
  const int stdin_fd = node_.inherit_terminal && options_.terminal ? STDIN_FILENO : null.get();
  const Spawner::Progress progress = spawner_->Start(
      output_->rank_fds(), stdin_fd, groups_, ProtectFromOomKiller(), [this](pid_t pid) { Forked(pid); });
  output_->CloseWriteEnds();
  if (options_.terminal) {  // the rank's alone from here on
    UniqueFd rdwr(open("/dev/null", O_RDWR | O_CLOEXEC));
    dup2(rdwr.get(), STDIN_FILENO);
    dup2(rdwr.get(), STDOUT_FILENO);
  }
  Perform(gang_->Tick(NowNs()));  // arms the lease
  if (progress == Spawner::Progress::kFailed) return OnSpawn(progress);
  WatchSpawner();
}

void Shim::MakeCgroup() {
  if (start_.cgroup_parent().empty()) return;
  const std::string path =
      CgroupPathOf(start_.cgroup_parent(), start_.job_id(), start_.attempt(), start_.mark());
  // Said to the guard first: a folder that it knows but that is not there does no harm.
  absl::Status status = WriteFileAtomically(absl::StrCat(options_.run_dir, "/", kCgroupName), path);
  absl::StatusOr<Cgroup> cgroup = Cgroup::Make(path);
  if (cgroup.ok()) {
    cgroup_ = *std::move(cgroup);
    oom_kills_seen_ = cgroup_->OomKills();
  } else {
    warnings_.push_back(absl::StrCat("no cgroup: ", cgroup.status().message()));
    unlink(absl::StrCat(options_.run_dir, "/", kCgroupName).c_str());
  }
}

void Shim::Forked(pid_t pid) {
  if (cgroup_) {
    if (absl::Status status = cgroup_->Add(pid); !status.ok()) {
      warnings_.push_back(absl::StrCat("no cgroup: ", status.message()));
      (void)cgroup_->Remove().ok();
      cgroup_.reset();
      unlink(absl::StrCat(options_.run_dir, "/", kCgroupName).c_str());
    }
  }
  UniqueFd pidfd = sys_.PidfdOpen(pid);
  if (!pidfd.valid()) return;  // SIGCHLD tells too
  const int fd = pidfd.get();
  loop_.Watch(fd, EPOLLIN, [this, fd](uint32_t) {
    loop_.Unwatch(fd);  // stays readable for ever
    OnChildren();
  });
  pidfds_.push_back(std::move(pidfd));
}

void Shim::WatchSpawner() {
  const int fd = spawner_->status_fd();
  loop_.Watch(fd, EPOLLIN, [this](uint32_t) { OnSpawn(spawner_->OnReadable()); });
}

void Shim::OnSpawn(Spawner::Progress progress) {
  if (progress == Spawner::Progress::kWaiting || spawned_) return;
  loop_.Unwatch(spawner_->status_fd());
  spawned_ = true;
  if (progress == Spawner::Progress::kFailed) {
    Perform(gang_->SpawnFailed(NowNs(), spawner_->failure()));
  } else {
    std::vector<SpawnedRank> ranks;
    for (size_t i = 0; i < spawner_->pids().size(); ++i) {
      const pid_t pid = spawner_->pids()[i];
      ranks.push_back(SpawnedRank{pid, reaped_[i] ? 0 : InnerPid(pid)});
    }
    warnings_.insert(warnings_.end(), spawner_->warnings().begin(), spawner_->warnings().end());
    Perform(gang_->Spawned(NowNs(), ranks, warnings_));
  }
  DeliverExits(false);
}

void Shim::OnChildren() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) > 0) {
  }
  // One SIGCHLD may stand for many deaths.
  ChildEnd end;
  while (sys_.Reap(false, &end) == Reaped::kOne) TakeEnd(end);
  if (!gang_) return;
  DeliverExits(false);
  CheckGone();
}

void Shim::TakeEnd(const ChildEnd& end) {
  if (output_ != nullptr && end.pid == output_->writer()) return WriterEnded(end);
  if (output_ != nullptr && output_->AbandonedEnded(end.pid)) {
    if (output_->HasAbandoned() || drain_ != Drain::kNotYet) return;
    killed_writer_ = output_->writer();  // the disk answers again: one that writes takes its turn
    if (killed_writer_ != 0) sys_.Kill(killed_writer_, SIGKILL);
    return;
  }
  if (!spawner_) return;
  const std::vector<pid_t>& pids = spawner_->pids();
  for (size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] != end.pid || reaped_[i]) continue;
    reaped_[i] = true;
    PendingExit pending;
    pending.exit.index = i;
    pending.exit.exit = ToExitStatus(end);
    pending.exit.unix_ns = clock_.UnixNs();
    if (cgroup_ && end.signal == SIGKILL) {
      const uint64_t kills = cgroup_->OomKills();
      pending.exit.oom_killed = kills > oom_kills_seen_;
      oom_kills_seen_ = kills;
    }
    const bool failed = end.signal != 0 || end.exit_code != 0;
    pending.deadline_ns = failed ? NowNs() + absl::ToInt64Nanoseconds(kExitDrainLimit) : 0;
    exits_.push_back(std::move(pending));
    if (!spawned_) OnSpawn(spawner_->Died(i, end));
    return;
  }
  // A stray that was given to us as its subreaper: reaped, that is all.
}

// In the order of the deaths. Those of a start that is not yet reported wait for it.
void Shim::DeliverExits(bool all) {
  if (spawner_ && !spawned_) return;
  loop_.Cancel(exit_timer_);
  while (!exits_.empty()) {
    const PendingExit& next = exits_.front();
    const bool killing = gang_->state() == GangState::kKilling;
    if (!all && !killing && NowNs() < next.deadline_ns && !output_->Drained(next.exit.index)) {
      exit_timer_ = loop_.At(next.deadline_ns, [this] { DeliverExits(false); });
      return;
    }
    const RankExit exit = next.exit;
    exits_.pop_front();
    Perform(gang_->RankExited(NowNs(), exit));
  }
}

void Shim::SayLost() {
  const v1::OutputLost lost = output_->Lost();
  if (lost.bytes() < say_lost_at_) return;
  while (say_lost_at_ <= lost.bytes()) say_lost_at_ *= Output::kLossStep;
  Perform(gang_->OutputLost(lost));
}

void Shim::Perform(const GangActions& actions) {
  for (const GangAction& action : actions) {
    std::visit([this](const auto& one) { Do(one); }, action);
  }
}

void Shim::Do(const SignalRanks& action) {
  const std::vector<pid_t>& pids = spawner_->pids();
  std::vector<bool> has_group(pids.size(), false);
  for (size_t i = 0; i < pids.size(); ++i) has_group[i] = !reaped_[i];
  // The pid of a reaped rank may be another's by now, unless children of it keep its group alive.
  for (pid_t pid : Descendants(sys_, getpid(), output_->WriterPids())) {
    const pid_t group = sys_.Group(pid);
    for (size_t i = 0; i < pids.size(); ++i) {
      if (pids[i] == group) has_group[i] = true;
    }
  }
  for (size_t i = 0; i < pids.size(); ++i) {
    if (!has_group[i]) continue;
    sys_.KillGroup(pids[i], action.signal);
    if (action.and_continue) sys_.KillGroup(pids[i], SIGCONT);
  }
}

void Shim::Do(const KillAll&) {
  if (cgroup_) cgroup_->KillAll();
  // What left the cgroup, or was never in one.
  if (output_ != nullptr) KillDescendantsOnce(sys_, output_->WriterPids());
  loop_.Post([this] { CheckGone(); });  // there may be none, and so no death to wake us
}

void Shim::Do(const ReportEvent& action) {
  const std::string bytes = DelimitedBytes(action.event);
  if (journal_.valid() && write(journal_.get(), bytes.data(), bytes.size()) < 0) journal_.Reset();
  if (action.event.has_gone()) {
    v1::ShimFinal final;
    final.set_job_id(start_.job_id());
    final.set_attempt(start_.attempt());
    final.set_log_dir(start_.log_dir());
    final.set_dies_with_agent(start_.on_agent_gone() == v1::ON_AGENT_GONE_KILL);
    for (const v1::ShimEvent& event : gang_->events()) *final.add_events() = event;
    (void)WriteFinal(options_.run_dir, final).ok();  // a full tmpfs: the event itself still goes out
  }
  v1::ShimMsg message;
  *message.mutable_event() = action.event;
  link_.Send(message);
}

void Shim::Do(const ArmTimer& action) {
  loop_.Cancel(gang_timer_);
  gang_timer_ = 0;
  if (action.boottime_ns == 0) return;
  gang_timer_ = loop_.At(action.boottime_ns, [this] {
    DeliverExits(true);
    Perform(gang_->Tick(NowNs()));
    CheckGone();
  });
}

void Shim::Do(const Finish&) {
  finished_ = true;
  loop_.After(kAckLimit, [this] { loop_.Quit(); });
  if (!link_.connected()) loop_.Quit();
  LeaveWhenAcked();
}

void Shim::LeaveWhenAcked() {
  if (finished_ && acked_ >= gang_->last_event()) loop_.Quit();
}

void Shim::WriterEnded(const ChildEnd& end) {
  output_->WriterEnded();
  const bool at_the_end = end.signal == 0 && end.exit_code == 0;
  if (at_the_end || drain_ == Drain::kKilled) return;
  if (end.signal == 0) return;  // it gave up by itself (not the owner): another would do the same
  if (end.pid != killed_writer_) output_->WriterDied();
  StartWriter();
}

void Shim::StartWriter() {
  killed_writer_ = 0;
  writer_idle_looks_ = 0;
  if (!output_->StartWriter(sys_, node_, groups_).ok())
    return;  // ranks wait on full pipes; Problems() says why
}

void Shim::LookAtWriter() {
  loop_.After(kWriterLook, [this] { LookAtWriter(); });
  const pid_t writer = output_->writer();
  if (writer == 0 || drain_ != Drain::kNotYet) return;
  const uint64_t progress = output_->Progress();
  const bool hangs = output_->HasWork() && progress == writer_progress_;
  writer_progress_ = progress;
  writer_idle_looks_ = hangs ? writer_idle_looks_ + 1 : 0;
  if (writer_idle_looks_ < kWriterHangLooks || killed_writer_ == writer) return;
  output_->WriterHung();
  killed_writer_ = writer;
  sys_.Kill(writer, SIGKILL);
  loop_.After(kWriterKillLimit, [this, writer] {
    if (output_->writer() != writer || drain_ != Drain::kNotYet) return;
    output_->AbandonWriter();
    StartWriter();
  });
}

// The writer ends by itself once nobody holds a pipe's other end.
bool Shim::WriterIsDone() {
  if (output_ == nullptr || output_->writer() == 0) return true;
  switch (drain_) {
    case Drain::kNotYet:
      drain_ = Drain::kWaiting;
      drain_timer_ = loop_.After(kDrainLimit, [this] {
        drain_ = Drain::kKilled;
        sys_.Kill(output_->writer(), SIGKILL);
        drain_timer_ = loop_.After(kWriterKillLimit, [this] {
          drain_ = Drain::kGivenUp;
          CheckGone();
        });
      });
      return false;
    case Drain::kWaiting:
    case Drain::kKilled:
      return false;
    case Drain::kGivenUp:
      return true;
  }
  return true;
}

void Shim::CheckGone() {
  if (!gang_ || gang_->state() != GangState::kKilling) return;
  const std::vector<pid_t> writers = output_ == nullptr ? std::vector<pid_t>() : output_->WriterPids();
  // Each death may have given us children that were born after the last pass.
  if (KillDescendantsOnce(sys_, writers) > 0) return;
  if (cgroup_ && !cgroup_->Empty()) {
    cgroup_->KillAll();
    return;  // the next death, or the gang's timer
  }
  if (!WriterIsDone()) return;
  ChildEnd end;
  const bool writer_stays = drain_ == Drain::kGivenUp || (output_ != nullptr && output_->HasAbandoned());
  if (!writer_stays) {
    const Reaped reaped = sys_.Reap(false, &end);
    if (reaped == Reaped::kOne) {
      TakeEnd(end);
      return loop_.Post([this] { CheckGone(); });
    }
    if (reaped == Reaped::kNone) return;  // somebody lives after all: the next death, or the timer
  }
  if (cgroup_ && !cgroup_->Remove().ok()) return;  // still being freed: the gang's timer
  loop_.Cancel(drain_timer_);
  DeliverExits(true);
  std::vector<std::string> notes;
  v1::OutputLost lost;
  if (output_ != nullptr) {
    SayLost();  // a short job may end before the bell was heard
    notes = output_->Problems();
    lost = output_->Lost();
  }
  if (writer_stays) notes.push_back("the log writer hangs; its last bytes may be lost");
  Perform(gang_->NoDescendants(notes, lost));
}

void Shim::Clean() {
  for (const char* name : {kShimSocketName, kJournalName, kCgroupName}) {
    unlink(absl::StrCat(options_.run_dir, "/", name).c_str());
  }
  // In local mode nobody comes to read what is left.
  const bool nobody = !link_.connected() && start_.on_agent_gone() == v1::ON_AGENT_GONE_KILL;
  if (nobody || !gang_) RemoveAttemptDir(options_.run_dir);
}

}  // namespace

int RunShim(const ShimOptions& options) { return Shim(options).Run(); }

}  // namespace dgxrun
