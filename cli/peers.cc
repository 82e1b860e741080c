#include "cli/peers.h"

#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/agent.h"
#include "agent/inventory.h"
#include "cli/attached.h"
#include "cli/client.h"
#include "cli/console.h"
#include "cli/exit_codes.h"
#include "cli/launch.h"
#include "cli/local_jobs.h"
#include "cli/local_mode.h"
#include "cli/peers_key.h"
#include "cli/peers_place.h"
#include "cli/peers_probe.h"
#include "cli/render.h"
#include "controller/controller.h"
#include "launcher/cgroup.h"
#include "proto/rpc/credentials.h"

namespace dgxrun::cli {
namespace {

constexpr absl::Duration kAskPause = absl::Milliseconds(100);    // how soon a job that has begun is noticed
constexpr absl::Duration kProbePause = absl::Milliseconds(500);  // a connection of its own each time
constexpr absl::Duration kProbeLimit = absl::Seconds(2);         // answers come in milliseconds, if they come
constexpr absl::Duration kSayFirst = absl::Milliseconds(500);    // of the wait, if it lasts
constexpr absl::Duration kSayAgain = absl::Minutes(1);
// An endpoint that is just starting or ending looks like a stranger for a moment.
constexpr int kSureOfStranger = 4;
// The peers learn the end within a round trip, and then show what output is left.
constexpr absl::Duration kLastToLeave = absl::Seconds(5);
constexpr absl::Duration kKillLimit = absl::Seconds(10);  // SIGKILL to all, and the shims' last words
// Over the orphan timeout: the ranks are dead then, whatever comes.
constexpr absl::Duration kGiveUpMargin = absl::Seconds(5);

std::string OwnAccount() {
  const passwd* entry = getpwuid(geteuid());
  return entry != nullptr ? entry->pw_name : absl::StrCat(geteuid());
}

class PeersProcess {
 public:
  PeersProcess(const LaunchOptions& options, const EnvMap& env, const Paths& paths)
      : options_(options), peers_(*options.peers), env_(env), paths_(paths) {}
  ~PeersProcess();

  absl::StatusOr<int> Run();

 private:
  // The job has begun, or a signal asks to leave before that.
  struct Begun {
    std::optional<int> leave;
    v1::JobStatus status;
  };

  absl::Status MakeRequest();
  absl::Status MakePlace();
  absl::Status FindEndpoint();
  absl::Status StartController();
  absl::StatusOr<std::optional<int>> AwaitEndpoint();
  absl::Status StartAgent();
  absl::StatusOr<Begun> AwaitJob();
  void HearEndIn(AttachedJob* job);
  absl::StatusOr<int> Follow(const v1::JobStatus& begun);
  void SeeOthersOff();

  absl::Status OtherKey() const;
  absl::Status Busy(const std::string& detail) const;
  absl::Status NobodyCame(const std::string& why) const;
  std::string OwnAddressesText() const;
  absl::Status Refusal();
  std::optional<int> TakeSignal(absl::Duration pause);
  bool Overdue() const {
    return peers_.join_timeout > absl::ZeroDuration() && Waited() > peers_.join_timeout;
  }
  absl::Duration Waited() const { return absl::Now() - since_; }
  void SayWait(const std::string& line);
  void StopOwnRanks(absl::Duration grace, std::function<void()> gone);

  const LaunchOptions& options_;
  const PeersOptions& peers_;
  const EnvMap& env_;
  const Paths& paths_;
  Console console_{STDOUT_FILENO, STDERR_FILENO};
  UniqueFd signals_;
  v1::SubmitRequest request_;
  v1::Inventory inventory_;
  PeersCertificate certificate_;
  TlsPems pems_;
  std::string node_name_;
  bool own_host_ = false;
  std::string host_error_;
  std::optional<PeersPlace> place_;
  std::unique_ptr<Controller> controller_;  // of the endpoint's process
  std::unique_ptr<Agent> agent_;
  std::optional<Client> client_;
  UniqueFd life_;
  absl::Time since_;
  absl::Time said_ = absl::InfinitePast();
  std::mutex mutex_;
  absl::Status refusal_;              // under mutex_
  std::optional<v1::JobStatus> end_;  // under mutex_; as this node's agent has heard
  AttachedJob* attached_ = nullptr;   // under mutex_; while it lives
  bool ended_ = false;                // the job has
  bool keep_ = false;                 // the place and its ranks stay, for another process
};

absl::Status PeersProcess::MakeRequest() {
  auto request = MakeSubmit(options_, env_, /*local=*/true);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  v1::JobSpec* spec = request_.mutable_spec();
  agent::InventoryOptions inventory;
  inventory.cgroup_parent = FindCgroupParent();
  inventory.quick = true;
  inventory_ = agent::ReadInventory(inventory);
  bool on_cpu = false;
  if (options_.ranks_are_cpus) spec->set_ranks_per_node(inventory_.allowed_cpus());
  if (absl::Status fits = FitToMachine(inventory_, spec, &on_cpu); !fits.ok()) return fits;
  if (on_cpu && options_.device == v1::DEVICE_AUTO) {
    console_.Notice("no NVIDIA device on the PCI bus: ranks run on the CPU");
  }
  for (const v1::EnvVar& var : request_.environment().vars()) spec->add_env_names(var.name());
  return absl::OkStatus();
}

absl::Status PeersProcess::MakePlace() {
  auto secret = FindPeersSecret(env_, paths_);
  if (!secret.ok()) return secret.status();
  if (secret->made) {
    console_.Notice(absl::StrCat("made ", secret->from,
                                 "; where the home folder is not shared: ", HowToShareTheKey(paths_)));
  }
  auto certificate = MakePeersCertificate(secret->bytes);
  if (!certificate.ok()) return certificate.status();
  certificate_ = *std::move(certificate);
  pems_ = TlsPems{certificate_.ca, certificate_.cert, certificate_.key};
  auto place = PeersPlace::Take(paths_.run_dir, peers_, LocalNodeName());
  if (!place.ok()) return place.status();
  place_ = *std::move(place);
  place_->Live();
  keep_ = place_->found_living();
  node_name_ = Get(env_, "DGXRUN_NODE_NAME");
  if (node_name_.empty()) {
    const std::string suffix = place_->slot() == 0 ? "" : absl::StrCat("-", place_->slot() + 1);
    node_name_ = LocalNodeName().substr(0, kMaxNameLength - suffix.size()) + suffix;
  }
  return absl::OkStatus();
}

absl::Status PeersProcess::OtherKey() const {
  return absl::PermissionDeniedError(
      absl::StrCat("the dgxrun at ", peers_.endpoint(), " has another key: ", HowToShareTheKey(paths_)));
}

absl::Status PeersProcess::Busy(const std::string& detail) const {
  return absl::FailedPreconditionError(absl::StrCat("port ", peers_.port, " of ", peers_.host,
                                                    " is busy: what answers ", detail,
                                                    "; choose another port (`ss -ltnp` says who has it)"));
}

std::string PeersProcess::OwnAddressesText() const {
  const std::vector<std::string> addresses = OwnAddresses();
  return addresses.empty() ? "none" : absl::StrJoin(addresses, ", ");
}

// Decides what this process is: with a controller it is the endpoint's.
absl::Status PeersProcess::FindEndpoint() {
  own_host_ = IsOwnHost(peers_.host, &host_error_);
  const bool may = peers_.node_rank ? *peers_.node_rank == 0 : own_host_;
  int strange = 0;
  while (may) {
    if (!PortTaken(peers_)) {
      const absl::Status started = StartController();
      if (!absl::IsAlreadyExists(started)) return started;  // else somebody was quicker
    }
    const ProbeResult probe =
        ProbeEndpoint(peers_.host, peers_.port, certificate_, kProbeLimit, signals_.get());
    switch (probe.answer) {
      case EndpointAnswer::kOurs:
        if (!peers_.node_rank) return absl::OkStatus();
        return absl::FailedPreconditionError(absl::StrCat("another dgxrun is the endpoint at ",
                                                          peers_.endpoint(),
                                                          " already; of all nodes one has --node-rank 0"));
      case EndpointAnswer::kOtherKey:
        return OtherKey();
      case EndpointAnswer::kStranger:
      case EndpointAnswer::kNobody:
        if (++strange >= kSureOfStranger) {
          return Busy(probe.answer == EndpointAnswer::kStranger ? probe.detail : "is silent");
        }
        break;
    }
    pollfd wait{signals_.get(), POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(kProbePause))) > 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status PeersProcess::StartController() {
  core::PeersConfig config;
  config.rdzv_id = peers_.rdzv_id;
  config.endpoint_host = peers_.host;
  config.join_timeout = peers_.join_timeout;
  config.spec = request_.spec();
  config.spec.mutable_owner()->set_user(OwnAccount());
  config.spec.mutable_owner()->set_uid(geteuid());
  config.spec.mutable_owner()->set_gid(getegid());
  ControllerOptions controller;
  controller.cluster_name = peers_.endpoint();
  controller.state_dir = place_->controller();
  controller.durable = false;
  controller.unix_socket = place_->control_socket();
  controller.listen_address = ListenAddress(peers_);
  controller.pems = pems_;
  controller.isolation_timeout_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(peers_.orphan_timeout));
  controller.peers = std::move(config);
  auto started = Controller::Start(std::move(controller));
  if (!started.ok()) return started.status();
  controller_ = *std::move(started);
  return absl::OkStatus();
}

void PeersProcess::SayWait(const std::string& line) {
  if (Waited() < kSayFirst || absl::Now() - said_ < kSayAgain) return;
  said_ = absl::Now();
  console_.Notice(line);
  console_.Flush(/*wait=*/true);
}

// A signal that came within `pause`, as an exit code.
std::optional<int> PeersProcess::TakeSignal(absl::Duration pause) {
  pollfd wait{signals_.get(), POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(pause))) <= 0) return std::nullopt;
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return 128 + static_cast<int>(info.ssi_signo);
}

absl::Status PeersProcess::NobodyCame(const std::string& why) const {
  std::string text = absl::StrCat("no dgxrun answered at ", peers_.endpoint(), " within ",
                                  absl::FormatDuration(peers_.join_timeout),
                                  why.empty() ? "" : absl::StrCat(" (", why, ")"));
  if (!own_host_) {
    absl::StrAppend(&text, "; ", peers_.host, " is no address of this machine (", OwnAddressesText(),
                    "): start the same command on the machine that has it");
  }
  return absl::UnavailableError(text);
}

// Of a peer: until the endpoint answers with our key.
absl::StatusOr<std::optional<int>> PeersProcess::AwaitEndpoint() {
  int strange = 0;
  while (controller_ == nullptr) {
    const ProbeResult probe =
        ProbeEndpoint(peers_.host, peers_.port, certificate_, kProbeLimit, signals_.get());
    switch (probe.answer) {
      case EndpointAnswer::kOurs:
        return std::nullopt;
      case EndpointAnswer::kOtherKey:
        return OtherKey();
      case EndpointAnswer::kStranger:
        if (++strange >= kSureOfStranger) return Busy(probe.detail);
        break;
      case EndpointAnswer::kNobody:
        strange = 0;
        break;
    }
    if (Overdue()) return NobodyCame(probe.detail);
    SayWait(absl::StrCat("waits for a dgxrun at ", peers_.endpoint(),
                         own_host_ ? "" : absl::StrCat("; this machine has ", OwnAddressesText())));
    if (const auto leave = TakeSignal(kProbePause)) return leave;
  }
  return std::nullopt;
}

absl::Status PeersProcess::StartAgent() {
  auto shim = ProgramBeside("dgxrun-shim");
  if (!shim.ok()) return shim.status();
  if (absl::Status made = MakeFolders(paths_.local_dir(), 0700); !made.ok()) return made;
  if (controller_ == nullptr) {
    std::error_code ignored;  // the log of a time when this place was the endpoint's: others have gone on
    std::filesystem::remove_all(place_->controller(), ignored);
    auto life = ListenForLife(place_->life_socket());
    if (!life.ok()) return life.status();
    life_ = *std::move(life);
  }
  AgentOptions agent;
  agent.node_name = node_name_;
  agent.state_dir = place_->folder();
  agent.run_dir = place_->shims();
  agent.log_root = paths_.local_dir();
  agent.shim_binary = *shim;
  agent.inventory = inventory_;
  agent.on_agent_gone = v1::ON_AGENT_GONE_LEASE;
  agent.port_low = peers_.port + 1;
  agent.port_high = peers_.port + kMasterPorts;
  agent.allow_root = true;  // what a person types as root runs as root, as any program does
  agent.single_user = true;
  agent.peer.emplace();
  agent.peer->environment = request_.environment();
  v1::PeerOffer& offer = agent.peer->offer;
  offer.set_rdzv_id(peers_.rdzv_id);
  offer.set_order_given(peers_.node_rank.has_value());
  offer.set_order(peers_.node_rank.value_or(controller_ != nullptr ? 0 : 1));
  *offer.mutable_spec() = request_.spec();
  if (controller_ != nullptr) {
    agent.control = controller_->InProcessChannel();
    agent.bulk = controller_->InProcessChannel();
  } else {
    agent.control = Dial(peers_.endpoint(), pems_, /*bulk=*/false);
    agent.bulk = Dial(peers_.endpoint(), pems_, /*bulk=*/true);
  }
  agent.on_refused = [this](const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    refusal_ = status;
  };
  agent.on_job_ended = [this](const v1::JobStatus& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    end_ = status;
    if (attached_ != nullptr) attached_->HearEnd(status);
  };
  const std::string where = peers_.endpoint();
  client_.emplace(
      controller_ != nullptr ? controller_->InProcessChannel() : Dial(where, pems_, /*bulk=*/false), where);
  auto started = Agent::Start(std::move(agent));
  if (!started.ok()) return started.status();
  agent_ = *std::move(started);
  return absl::OkStatus();
}

absl::Status PeersProcess::Refusal() {
  std::lock_guard<std::mutex> lock(mutex_);
  return refusal_;
}

absl::StatusOr<PeersProcess::Begun> PeersProcess::AwaitJob() {
  const uint32_t wanted = request_.spec().nodes();
  for (;;) {
    if (absl::Status refusal = Refusal(); !refusal.ok()) return refusal;
    const auto status = client_->Status("");
    if (status.ok() && (status->state() != v1::JOB_STATE_QUEUED || status->placements_size() > 0)) {
      return Begun{std::nullopt, *status};
    }
    const auto info = client_->Info();
    if (Overdue()) {
      std::vector<std::string> names;
      if (const auto nodes = client_->Nodes(); nodes.ok()) {
        for (const v1::NodeInfo& node : *nodes) names.push_back(node.name());
      }
      if (names.empty()) return NobodyCame(std::string(status.status().message()));
      return absl::UnavailableError(absl::StrCat(
          "only ", names.size(), " of ", wanted, " nodes came to ", peers_.endpoint(), " within ",
          absl::FormatDuration(peers_.join_timeout), ": ", absl::StrJoin(names, ", ")));
    }
    const uint32_t there = info.ok() ? std::min(info->nodes_up(), wanted) : 0;
    if (!info.ok()) {
      SayWait(absl::StrCat("waits for a dgxrun at ", peers_.endpoint()));
    } else if (there < wanted) {  // else they are all here, and the job begins
      SayWait(absl::StrCat("waits for ", wanted - there, " of ", wanted, " nodes at ", peers_.endpoint()));
    }
    const auto leave = TakeSignal(kAskPause);
    if (!leave) continue;
    if (status.ok()) {  // the whole job ends with the first who leaves
      v1::StopRequest stop;
      stop.set_job(status->job_id());
      stop.set_reason(absl::StrCat("the command of node ", node_name_, " was stopped"));
      if (auto stopped = client_->Stop(stop); !stopped.ok()) {
        console_.Notice(absl::StrCat("could not stop the job: ", std::string(stopped.status().message())));
      }
    }
    return Begun{*leave, {}};
  }
}

void PeersProcess::StopOwnRanks(absl::Duration grace, std::function<void()> gone) {
  agent_->StopEverything(grace, absl::StrCat("the command of node ", node_name_, " left"), std::move(gone));
}

// The endpoint's process may be gone as soon as it has told the nodes how the job ended.
void PeersProcess::HearEndIn(AttachedJob* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  attached_ = job;
  if (attached_ != nullptr && end_.has_value()) attached_->HearEnd(*end_);
}

absl::StatusOr<int> PeersProcess::Follow(const v1::JobStatus& begun) {
  const LocalJobs jobs(paths_.local_dir());
  bool said_write_error = false;
  AttachedJob::Options attached;
  attached.peers = true;
  attached.log_all = options_.log_all;
  attached.where = peers_.endpoint();
  attached.give_up = peers_.orphan_timeout + kGiveUpMargin;
  for (int i = 0; i < begun.nodes_size(); ++i) {
    if (begun.nodes(i).name() != node_name_) continue;
    const uint32_t per_node = begun.ranks_per_node();
    for (uint32_t local = 0; local < per_node; ++local)
      attached.ranks.push_back(static_cast<uint32_t>(i) * per_node + local);
  }
  attached.stop_here = [this](bool at_once, std::function<void()> gone) {
    StopOwnRanks(at_once ? absl::ZeroDuration() : options_.grace, std::move(gone));
  };
  attached.on_status = [&](const v1::JobStatus& status) {
    ended_ = HasEnded(status.state());
    const absl::Status written = jobs.WritePeer(
        status, node_name_, controller_ != nullptr ? place_->control_socket() : place_->life_socket(),
        controller_ != nullptr ? "" : peers_.endpoint());
    if (written.ok() || said_write_error) return;
    said_write_error = true;
    console_.Notice(absl::StrCat("dgxrun status will not know this job: ", std::string(written.message())));
  };
  Client client(
      controller_ != nullptr ? controller_->InProcessChannel() : Dial(peers_.endpoint(), pems_, false),
      peers_.endpoint());
  AttachedJob job(std::move(client), std::move(attached), &console_, signals_.get());
  HearEndIn(&job);
  // A process that takes up a running job shows its last lines; else all of it is to come.
  const int code = place_->found_living() ? job.Attach(begun) : job.Join(begun);
  HearEndIn(nullptr);
  jobs.Prune(kKeptLocalJobs);
  return code;
}

// The endpoint's process leaves last, so that all have learned how it ended.
void PeersProcess::SeeOthersOff() {
  const absl::Time end = absl::Now() + kLastToLeave;
  while (absl::Now() < end) {
    const auto info = client_->Info();
    if (!info.ok() || info->nodes_up() <= 1 || TakeSignal(kAskPause / 2)) return;
  }
}

absl::StatusOr<int> PeersProcess::Run() {
  // Read when gRPC begins. Its own lines are for its developers.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  if (absl::Status made = MakeRequest(); !made.ok()) return made;
  signals_ = TakeSignals();
  since_ = absl::Now();
  if (absl::Status made = MakePlace(); !made.ok()) return made;
  if (absl::Status found = FindEndpoint(); !found.ok()) return found;
  auto left = AwaitEndpoint();
  if (!left.ok()) return left.status();
  if (left->has_value()) return **left;
  if (absl::Status started = StartAgent(); !started.ok()) return started;
  auto begun = AwaitJob();
  if (!begun.ok()) return begun.status();
  keep_ = false;
  absl::StatusOr<int> code = begun->leave.value_or(0);
  if (!begun->leave) code = Follow(begun->status);
  if (controller_ != nullptr) SeeOthersOff();
  return code;
}

PeersProcess::~PeersProcess() {
  if (agent_ != nullptr && !ended_ && !keep_) {
    auto gone = std::make_shared<std::promise<void>>();
    StopOwnRanks(absl::ZeroDuration(), [gone] { gone->set_value(); });
    gone->get_future().wait_for(absl::ToChronoMilliseconds(kKillLimit));
  }
  if (agent_ != nullptr) agent_->Shutdown();
  client_.reset();
  agent_.reset();
  controller_.reset();
  console_.Flush(/*wait=*/true);
  if (place_ && !keep_) place_->Remove();
}

}  // namespace

absl::StatusOr<int> LaunchPeers(const LaunchOptions& options, const EnvMap& env, const Paths& paths) {
  return PeersProcess(options, env, paths).Run();
}

}  // namespace dgxrun::cli
