// Composition of an agent: the core in the middle, what performs its actions around it.
#include "agent/agent.h"

#include <errno.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <variant>

#include "absl/strings/str_cat.h"
#include "agent/agent_core.h"
#include "agent/agent_store.h"
#include "agent/explainer.h"
#include "agent/file_tasks.h"
#include "agent/grpc_line.h"
#include "agent/link.h"
#include "agent/owner_files.h"
#include "agent/ports.h"
#include "agent/prepare.h"
#include "agent/progress_watch.h"
#include "agent/shim_client.h"
#include "agent/tail.h"
#include "agent/witness.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/sys.h"
#include "launcher/cgroup.h"
#include "launcher/run_dir.h"
#include "proto/rpc/wire_version.h"
#include "spdlog/spdlog.h"

namespace dgxrun {
namespace agent {
namespace {

// A network file system that does not answer in this time is a reason to refuse, with the path in it.
constexpr absl::Duration kPrepareLimit = absl::Seconds(30);
constexpr absl::Duration kStartLimit = absl::Seconds(30);
// Judging checkpoints ends earlier, so that what was judged until then still counts.
constexpr absl::Duration kJudgeLimit = absl::Seconds(25);
// A living shim says hello within milliseconds; one that was stopped must not keep the node away.
constexpr absl::Duration kShimHelloLimit = absl::Seconds(1);
// So many answers may be missing before the stream is given up and dialled again.
constexpr int kMissedAnswers = 3;
constexpr absl::Duration kMinSilence = absl::Seconds(1);  // a busy machine stalls for some 100 ms
// The same reason for a broken link is logged again after this.
constexpr absl::Duration kLogAgain = absl::Minutes(1);

std::string ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string AccountName() {
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    return found->pw_name;
  }
  return absl::StrCat("uid ", geteuid());
}

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

class AgentImpl final : public Agent {
 public:
  explicit AgentImpl(AgentOptions options)
      : options_(std::move(options)),
        inbox_(std::make_shared<LoopInbox>(&loop_)),
        tasks_(inbox_),
        ports_(options_.port_low, options_.port_high),
        explainer_(
            &loop_, &tasks_, options_.log_root,
            [this](const AttemptKey& key, v1::ShimMsg message) {
              const bool hello = message.has_hello();
              Feed(ShimSaid{key, std::move(message)});
              if (hello) Greeted(key);
            },
            [this](v1::ShimFinal final) { Feed(FinalFound{std::move(final)}); }) {}

  ~AgentImpl() override {
    if (thread_.joinable()) {
      loop_.Quit();
      thread_.join();
    }
    inbox_->Close();
  }

  absl::Status Begin();
  void Shutdown() override;
  void StopEverything(absl::Duration grace, std::string reason, std::function<void()> gone) override;

 private:
  struct Starting {
    v1::Launch launch;
    uint64_t lease_deadline_ns = 0;
    EventLoop::TimerId limit = 0;
  };

  absl::Status MakeFolders();
  void MakeParts(const NodeId& node, StoredState stored);
  void Restore();
  void Greeted(const AttemptKey& shim);
  void DialNow();
  void WatchChildren();

  // Inputs that come while actions are performed wait for their turn.
  void Feed(decltype(Input::body) body);
  absl::Status Perform(Action& action);
  void Fail(const absl::Status& status);
  void CheckShutdown();
  void CheckGone();

  void Check(v1::Prepare prepare);
  void Checked(const std::pair<AttemptKey, std::string>& question, v1::Prepared prepared);
  void StartAttempt(StartShimFor& action);
  void FoldersMade(const AttemptKey& key, const absl::StatusOr<OwnerIds>& owner,
                   const absl::StatusOr<std::string>& log_dir);
  absl::Status StartShim(const AttemptKey& key, Starting starting, const OwnerIds& owner,
                         const std::string& log_dir);
  void StartFailedWith(const AttemptKey& key, const std::string& reason);
  void Relay(const ToShim& action);
  void Heartbeat();
  void Witness();
  void LinkIsDown(const std::string& why);

  OwnerPolicy policy() const { return {options_.single_user, options_.allow_root}; }

  const AgentOptions options_;
  EventLoop loop_;
  const std::shared_ptr<LoopInbox> inbox_;
  FileTasks tasks_;
  PortPool ports_;
  Explainer explainer_;
  std::unique_ptr<AgentStore> store_;
  std::unique_ptr<AgentCore> core_;
  std::unique_ptr<ShimClient> shims_;
  std::unique_ptr<ProgressWatch> progress_;
  std::unique_ptr<TailServer> tails_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<WitnessCalls> witness_calls_;
  UniqueFd child_signals_;

  std::deque<decltype(Input::body)> inputs_;
  bool performing_ = false;
  bool failed_ = false;
  bool shutting_down_ = false;
  std::function<void()> when_gone_;
  std::set<AttemptKey> silent_shims_;  // living ones that have not said hello since the start
  struct Checking {
    EventLoop::TimerId limit = 0;
    EventLoop::TimerId judge_limit = 0;
  };
  std::map<std::pair<AttemptKey, std::string>, Checking> checking_;  // by attempt and Prepare.resume
  std::map<AttemptKey, Starting> starting_;
  absl::Duration heartbeat_period_;
  EventLoop::TimerId heartbeat_ = 0;
  std::string last_down_;
  int64_t last_down_ns_ = 0;
  std::thread thread_;
};

absl::Status AgentImpl::MakeFolders() {
  if (options_.run_dir.empty() || options_.log_root.empty() || options_.shim_binary.empty()) {
    return absl::InvalidArgumentError("an agent needs run_dir, log_root and shim_binary");
  }
  if (access(options_.shim_binary.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(options_.shim_binary, ": ", strerror(errno)));
  }
  std::error_code error;
  std::filesystem::create_directories(options_.log_root, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(options_.log_root, ": ", error.message()));
  return PrepareRunDir(options_.run_dir);
}

void AgentImpl::MakeParts(const NodeId& node, StoredState stored) {
  AgentCoreOptions core;
  core.version = OurWireVersion();
  core.node_id = node;
  core.node_name = options_.node_name;
  core.boot_id = ReadBootId();
  core.agent_user = AccountName();
  core.expected_cluster_id = options_.expected_cluster_id;
  core.inventory = options_.inventory;
  if (options_.peer) core.offer = options_.peer->offer;
  if (options_.witness != nullptr) {
    core.witness_port = options_.witness->port();
    core.witness_path = options_.witness->path();
    witness_calls_ = std::make_unique<WitnessCalls>(
        inbox_, options_.tls, [this](WitnessAnswered answer) { Feed(std::move(answer)); });
  }
  core.leases = options_.on_agent_gone == v1::ON_AGENT_GONE_LEASE;
  core_ = std::make_unique<AgentCore>(std::move(core), std::move(stored));

  ShimClientOptions shims;
  shims.run_dir = options_.run_dir;
  shims.shim_binary = options_.shim_binary;
  shims.cgroup_parent = options_.cgroup_parent.has_value() ? *options_.cgroup_parent : FindCgroupParent();
  shims.mark_prefix = node.str();
  ShimClient::Events events;
  events.on_message = [this](const AttemptKey& key, v1::ShimMsg message) {
    // What its ranks said of their steps, before the word that they have ended.
    if (message.event().has_exited() || message.event().has_gone()) progress_->ReadSteps(key);
    explainer_.Pass(key, std::move(message));
  };
  events.on_disconnected = [this](const AttemptKey& key) { Feed(ShimDisconnected{key}); };
  events.on_final = [this](v1::ShimFinal final) { explainer_.Pass(std::move(final)); };
  events.on_strays_gone = [this](const AttemptKey& key, const std::string& why) {
    Feed(StraysGone{key, why});
  };
  shims_ = std::make_unique<ShimClient>(&loop_, &tasks_, std::move(shims), std::move(events));
  progress_ = std::make_unique<ProgressWatch>(
      &loop_, &tasks_, options_.run_dir, policy(),
      [this](v1::AttemptProgress progress) { Feed(ProgressHere{std::move(progress)}); });

  const std::shared_ptr<ControllerLine> line =
      options_.line != nullptr ? options_.line : MakeGrpcLine(options_.control, options_.bulk);
  tails_ = TailServer::Create(options_.node_name, options_.log_root, [line](std::shared_ptr<LoopInbox> loop) {
    return line->OpenOutput(std::move(loop));
  });
  Link::Events link;
  link.on_up = [this] { Feed(LinkUp{}); };
  link.on_down = [this](const std::string& why) { LinkIsDown(why); };
  link.on_message = [this](v1::ControllerMsg message) { Feed(FromController{std::move(message)}); };
  link_ = std::make_unique<Link>(&loop_, inbox_, line, std::move(link));
}

absl::Status AgentImpl::Begin() {
  if (absl::Status folders = MakeFolders(); !folders.ok()) return folders;
  absl::StatusOr<std::unique_ptr<AgentStore>> store = AgentStore::Open(options_.state_dir);
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  absl::StatusOr<StoredState> stored = store_->Load();
  if (!stored.ok()) return stored.status();
  // A port range that is used up is no reason not to start: what is short shows in the plans.
  if (absl::Status filled = ports_.Fill(); !filled.ok()) spdlog::warn("{}", std::string(filled.message()));
  MakeParts(store_->node_id(), *std::move(stored));
  if (options_.reap_children) WatchChildren();
  loop_.Post([this] { Restore(); });
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "dgx-agent");
    loop_.Run();
  });
  return absl::OkStatus();
}

// The final files first, since they may end what the store calls launched; then the link may speak.
void AgentImpl::Restore() {
  Feed(PortsFree{ports_.free()});
  ShimClient::Found found = shims_->Scan();
  progress_->Restore(found.living);
  const auto dial = [this, living = std::move(found.living), dead = std::move(found.dead)] {
    if (options_.peer) silent_shims_.insert(living.begin(), living.end());
    Feed(Restored{living, dead});
    if (options_.witness != nullptr) {
      options_.witness->Serve(inbox_, [this](WitnessAsked asked) { Feed(std::move(asked)); });
      Witness();
    }
    if (silent_shims_.empty()) return DialNow();
    loop_.After(kShimHelloLimit, [this] { DialNow(); });
  };
  explainer_.Finals(std::move(found.finals), dial);
}

// A controller that starts empty learns from the first Hello how far the ranks are, so that waits for the
// shims.
void AgentImpl::Greeted(const AttemptKey& shim) {
  if (silent_shims_.erase(shim) > 0 && silent_shims_.empty()) DialNow();
}

void AgentImpl::DialNow() {
  silent_shims_.clear();
  if (!failed_) link_->Dial();  // does nothing when it has dialled
}

void AgentImpl::Witness() {
  Feed(WitnessDue{});
  loop_.After(absl::Nanoseconds(AgentCore::kWitnessPeriodNs), [this] { Witness(); });
}

void AgentImpl::WatchChildren() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  child_signals_.Reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!child_signals_.valid()) return;
  loop_.Watch(child_signals_.get(), EPOLLIN, [this](uint32_t) {
    signalfd_siginfo info;
    while (read(child_signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    }
    ChildEnd end;
    while (RealSys().Reap(/*block=*/false, &end) == Reaped::kOne) {
    }
  });
}

void AgentImpl::Shutdown() {
  loop_.Post([this] {
    shutting_down_ = true;
    loop_.After(kShutdownLimit, [this] { loop_.Quit(); });
    CheckShutdown();
  });
  if (thread_.joinable()) thread_.join();
}

void AgentImpl::CheckShutdown() {
  if (shutting_down_ && (failed_ || !core_->welcomed() || core_->unacked().empty())) loop_.Quit();
}

void AgentImpl::StopEverything(absl::Duration grace, std::string reason, std::function<void()> gone) {
  loop_.Post([this, grace, reason = std::move(reason), gone = std::move(gone)]() mutable {
    when_gone_ = std::move(gone);
    Feed(agent::StopEverything{static_cast<uint64_t>(absl::ToInt64Milliseconds(grace)), std::move(reason)});
    CheckGone();  // Feed does nothing after a failure
  });
}

void AgentImpl::CheckGone() {
  if (when_gone_ == nullptr || (!failed_ && core_->AnythingLives())) return;
  std::exchange(when_gone_, nullptr)();
}

void AgentImpl::Feed(decltype(Input::body) body) {
  if (failed_) return;
  inputs_.push_back(std::move(body));
  if (performing_) return;
  performing_ = true;
  while (!inputs_.empty() && !failed_) {
    Actions actions = core_->Handle(Input{EventLoop::BoottimeNs(), std::move(inputs_.front())});
    inputs_.pop_front();
    for (Action& action : actions) {
      if (absl::Status done = Perform(action); !done.ok()) {
        Fail(done);  // what follows rests on it
        break;
      }
    }
  }
  performing_ = false;
  CheckShutdown();
  CheckGone();
}

// The store failed. Going on would send what is not kept; the next agent starts from the store and meets the
// shims again.
void AgentImpl::Fail(const absl::Status& status) {
  spdlog::error("{}", std::string(status.message()));
  failed_ = true;
  link_->Close(std::string(status.message()), true);
  if (options_.on_refused != nullptr) options_.on_refused(status);
}

absl::Status AgentImpl::Perform(Action& action) {
  return std::visit(
      Overloaded{
          [&](StoreCluster& a) { return store_->Store(a); },
          [&](StoreJob& a) { return store_->Store(a); },
          [&](StoreReport& a) { return store_->Store(a); },
          [&](StoreCapsule& a) { return store_->Store(a); },
          [&](DropCapsule& a) { return store_->Store(a); },
          [&](StoreCommittee& a) { return store_->Store(a); },
          [&](DropReports& a) { return store_->Store(a); },
          [&](DropJob& a) { return store_->Store(a); },
          [&](Send& a) { return link_->Send(std::move(a.message)), absl::OkStatus(); },
          [&](SetHeartbeat& a) {
            spdlog::info("node {}: the controller knows this node", options_.node_name);
            last_down_.clear();
            heartbeat_period_ = absl::Milliseconds(a.period_ms);
            link_->SetSilence(std::max(heartbeat_period_ * kMissedAnswers, kMinSilence));
            heartbeat_ = loop_.After(absl::ZeroDuration(), [this] { Heartbeat(); });
            return absl::OkStatus();
          },
          [&](CloseLink& a) {
            link_->Close(a.reason, a.final);
            if (a.final && options_.on_refused != nullptr)
              options_.on_refused(absl::FailedPreconditionError(a.reason));
            return absl::OkStatus();
          },
          [&](CheckPaths& a) { return Check(a.prepare), absl::OkStatus(); },
          [&](StartShimFor& a) { return StartAttempt(a), absl::OkStatus(); },
          [&](ToShim& a) { return Relay(a), absl::OkStatus(); },
          [&](Sweep& a) { return shims_->Sweep(a.key), absl::OkStatus(); },
          [&](AttemptEnded& a) {
            progress_->End(a.key);
            explainer_.Drop(a.key);
            shims_->Ended(a.key);
            tails_->AttemptEnded(a.key);
            return absl::OkStatus();
          },
          [&](ForgetJob& a) {  // its logs stay for people to read
            if (a.end.has_value() && options_.on_job_ended != nullptr) options_.on_job_ended(*a.end);
            return absl::OkStatus();
          },
          [&](StartTail& a) { return tails_->Start(std::move(a.request), a.ended), absl::OkStatus(); },
          [&](CancelTail& a) { return tails_->Cancel(a.tail_id), absl::OkStatus(); },
          [&](TidyCheckpoints& a) { return progress_->Tidy(a.key, std::move(a.remove)), absl::OkStatus(); },
          [&](AskCommittee& a) {
            v1::WitnessQuestion question;
            question.set_cluster_id(core_->cluster_id());
            question.set_node_id(store_->node_id().str());
            witness_calls_->Ask(a, question);
            return absl::OkStatus();
          },
          [&](AnswerWitness& a) { return options_.witness->Answer(a), absl::OkStatus(); },
          [&](Note& a) { return spdlog::warn("{}", a.text), absl::OkStatus(); },
      },
      action);
}

// ---- Link ----

void AgentImpl::Heartbeat() {
  // A port range that others had used up may have room again: a job waits for it.
  if (ports_.free().empty()) {
    (void)ports_.Fill().ok();
    if (!ports_.free().empty()) Feed(PortsFree{ports_.free()});
  }
  Feed(HeartbeatDue{});
  heartbeat_ = loop_.After(heartbeat_period_, [this] { Heartbeat(); });
}

void AgentImpl::LinkIsDown(const std::string& why) {
  loop_.Cancel(heartbeat_);
  tails_->CancelAll();
  const int64_t now = EventLoop::BoottimeNs();
  if (why != last_down_ || now - last_down_ns_ > absl::ToInt64Nanoseconds(kLogAgain)) {
    spdlog::warn("node {}: link to the controller is down: {}", options_.node_name, why);
    last_down_ = why;
    last_down_ns_ = now;
  }
  Feed(LinkDown{});
}

// ---- Prepare ----

void AgentImpl::Check(v1::Prepare prepare) {
  if (options_.peer) {
    for (const v1::EnvVar& var : options_.peer->environment.vars()) {
      if (var.name() == "PATH") prepare.set_path(var.value());
    }
  }
  const AttemptKey key{JobId(prepare.job_id()), AttemptNo(prepare.attempt())};
  const std::pair<AttemptKey, std::string> question(key, prepare.resume());
  const auto stop = std::make_shared<JudgeStop>();
  Checking& checking = checking_[question];
  loop_.Cancel(checking.limit);  // asked again while the answer was on its way
  loop_.Cancel(checking.judge_limit);
  checking.judge_limit = loop_.After(kJudgeLimit, [stop] { stop->Stop(); });
  checking.limit = loop_.After(kPrepareLimit, [this, question, cwd = prepare.cwd()] {
    v1::Prepared late;
    late.add_errors(absl::StrCat("the checks of ", cwd, " did not end within ",
                                 absl::FormatDuration(kPrepareLimit), ": a file system hangs"));
    Checked(question, std::move(late));
  });
  const bool running =
      tasks_.Run([this, question, stop, prepare, policy = policy()]() -> std::function<void()> {
        v1::Prepared prepared = CheckPrepare(prepare, policy, stop.get());
        return [this, question, prepared] { Checked(question, prepared); };
      });
  if (running) return;
  v1::Prepared refused;
  refused.add_errors("too many checks of other jobs hang on this node");
  Checked(question, std::move(refused));
}

void AgentImpl::Checked(const std::pair<AttemptKey, std::string>& question, v1::Prepared prepared) {
  auto it = checking_.find(question);
  if (it == checking_.end()) return;  // it was answered without waiting
  loop_.Cancel(it->second.limit);
  loop_.Cancel(it->second.judge_limit);
  checking_.erase(it);
  Feed(PreparedHere{question.first, std::move(prepared), question.second});
}

// ---- Start ----

void AgentImpl::StartAttempt(StartShimFor& action) {
  const AttemptKey key{JobId(action.launch.job_id()), AttemptNo(action.launch.attempt())};
  const v1::Owner owner = action.launch.plan().owner();
  Starting& starting = starting_[key];
  starting.launch = std::move(action.launch);
  starting.lease_deadline_ns = action.lease_deadline_ns;
  starting.limit = loop_.After(kStartLimit, [this, key] {
    StartFailedWith(key, absl::StrCat("the log folder in ", options_.log_root, " could not be made in time"));
  });
  const bool running =
      tasks_.Run([this, key, owner, policy = policy(), root = options_.log_root]() -> std::function<void()> {
        absl::StatusOr<OwnerIds> ids = ResolveOwner(owner, policy);
        const absl::StatusOr<std::string> folder =
            ids.ok() ? MakeLogFolder(root, key.job.str(), key.attempt.value(), *ids) : ids.status();
        return [this, key, ids, folder] { FoldersMade(key, ids, folder); };
      });
  if (!running) StartFailedWith(key, "too many checks of other jobs hang on this node");
}

void AgentImpl::FoldersMade(const AttemptKey& key, const absl::StatusOr<OwnerIds>& owner,
                            const absl::StatusOr<std::string>& log_dir) {
  auto it = starting_.find(key);
  if (it == starting_.end()) return;  // stopped, or given up
  if (!log_dir.ok()) return StartFailedWith(key, std::string(log_dir.status().message()));
  loop_.Cancel(it->second.limit);
  Starting starting = std::move(it->second);
  starting_.erase(it);
  const absl::Status started = StartShim(key, std::move(starting), *owner, *log_dir);
  if (!started.ok()) return Feed(StartFailed{key, std::string(started.message())});
  tails_->AttemptStarted(key);
}

absl::Status AgentImpl::StartShim(const AttemptKey& key, Starting starting, const OwnerIds& owner,
                                  const std::string& log_dir) {
  std::vector<UniqueFd> held;
  v1::ShimStart start;
  *start.mutable_plan() = std::move(*starting.launch.mutable_plan());
  if (start.plan().held_port() != 0) {
    absl::StatusOr<UniqueFd> port = ports_.Take(start.plan().held_port());
    if (!port.ok()) return port.status();
    held.push_back(*std::move(port));
    if (absl::Status filled = ports_.Fill(); !filled.ok()) spdlog::warn("{}", std::string(filled.message()));
    Feed(PortsFree{ports_.free()});
  }
  start.set_version(1);
  start.set_job_id(key.job.str());
  start.set_attempt(key.attempt.value());
  start.mutable_plan()->mutable_owner()->set_uid(owner.uid);
  start.mutable_plan()->mutable_owner()->set_gid(owner.gid);
  *start.mutable_environment() =
      options_.peer ? options_.peer->environment : std::move(*starting.launch.mutable_environment());
  start.set_log_dir(log_dir);
  start.set_on_agent_gone(options_.on_agent_gone);
  start.set_lease_deadline_ns(starting.lease_deadline_ns);
  start.set_node_name(options_.node_name);
  start.set_set_owner(geteuid() == 0 && owner.uid != 0);
  const bool terminal = options_.inherit_terminal && start.plan().inherit_terminal();
  progress_->Begin(key, owner, &start);
  return shims_->Start(key, std::move(start), std::move(held), terminal);
}

void AgentImpl::StartFailedWith(const AttemptKey& key, const std::string& reason) {
  auto it = starting_.find(key);
  if (it == starting_.end()) return;
  loop_.Cancel(it->second.limit);
  starting_.erase(it);
  Feed(StartFailed{key, reason});
}

void AgentImpl::Relay(const ToShim& action) {
  auto it = starting_.find(action.key);
  if (it == starting_.end()) return shims_->Send(action.key, action.command);
  // There is no shim yet.
  if (action.command.has_stop()) return StartFailedWith(action.key, "stopped before it was started");
  if (action.command.has_lease()) it->second.lease_deadline_ns = action.command.lease().deadline_ns();
}

}  // namespace
}  // namespace agent

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options) {
  auto made = std::make_unique<agent::AgentImpl>(std::move(options));
  if (absl::Status begun = made->Begin(); !begun.ok()) return begun;
  return made;
}

}  // namespace dgxrun
