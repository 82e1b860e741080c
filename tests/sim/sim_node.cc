#include "tests/sim/sim_node.h"

#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun::sim {
namespace {

constexpr uint32_t kPorts[] = {29501, 29502, 29503, 29504};

v1::ExitStatus ToExit(const Ending& ending) {
  v1::ExitStatus exit;
  exit.set_signal(ending.signal);
  exit.set_code(ending.signal != 0 ? 128 + ending.signal : ending.code);
  return exit;
}

}  // namespace

SimNode::SimNode(World* world, NodeHost* host, Script* script, std::string name, int gpus, Mutation mutation)
    : world_(world), host_(host), script_(script), name_(std::move(name)), gpus_(gpus), mutation_(mutation) {}

// ---- the agent's life ----

void SimNode::StartAgent() {
  if (!powered_ || core_ != nullptr) return;
  ++epoch_;
  world_->Trace(name_ + " agent starts");
  agent::AgentCoreOptions options;
  options.version.set_major(1);
  options.node_id = NodeId("id-" + name_);
  options.node_name = name_;
  options.boot_id = absl::StrCat(name_, "-boot-", boots_);
  options.agent_user = "root";
  options.offer = offer_;
  if (!offer_) options.witness_path = "witness-" + name_;
  options.inventory.set_allowed_cores(16);
  options.inventory.set_pci_gpus(gpus_);
  options.inventory.add_addresses("10.1.0." + name_.substr(1));
  for (int i = 0; i < gpus_; ++i) {
    v1::Gpu* gpu = options.inventory.add_gpus();
    gpu->set_index(i);
    gpu->set_uuid(absl::StrCat("GPU-", name_, "-", i));
  }
  core_ = std::make_unique<agent::AgentCore>(options, store_);
  ReportPorts();
  agent::Restored restored;
  const auto shims = shims_;
  for (const auto& [key, shim] : shims) {
    if (!shim->finished) {
      restored.living.push_back(key);
      continue;
    }
    v1::ShimFinal final;
    final.set_job_id(key.job.str());
    final.set_attempt(key.attempt.value());
    for (const auto& event : shim->gang->events()) *final.add_events() = WithTails(*shim, event);
    Handle(agent::FinalFound{final});
    if (core_ == nullptr) return;
  }
  Handle(restored);
  if (core_ == nullptr) return;
  for (const auto& [key, shim] : shims) {
    if (!shim->finished) SayHello(shim);
  }
  host_->Dial(name_);
  world_->In(agent::AgentCore::kWitnessPeriodNs, [this, epoch = epoch_] { Witness(epoch); });
}

void SimNode::Witness(uint64_t epoch) {
  if (epoch != epoch_ || core_ == nullptr) return;
  Handle(agent::WitnessDue{});
  world_->In(agent::AgentCore::kWitnessPeriodNs, [this, epoch] { Witness(epoch); });
}

void SimNode::Asked(uint64_t question_id, const v1::WitnessQuestion& question) {
  Handle(agent::WitnessAsked{question_id, question});
}

void SimNode::Answered(uint64_t round, const v1::WitnessAnswer& answer) {
  Handle(agent::WitnessAnswered{round, answer});
}

void SimNode::CrashAgent() {
  if (core_ == nullptr) return;
  world_->Trace(name_ + " agent dies");
  ++epoch_;
  crash_in_ = 0;
  core_.reset();
  host_->HangUp(name_);
}

void SimNode::CrashAgentIn(int actions) { crash_in_ = actions; }

void SimNode::PowerOff() {
  if (!powered_) return;
  world_->Trace(name_ + " loses power");
  CrashAgent();
  powered_ = false;
  ++power_;
  const auto shims = std::exchange(shims_, {});
  ports_in_use_.clear();
  for (const auto& [key, shim] : shims) {
    for (Rank& rank : shim->ranks) {
      if (!rank.alive) continue;
      rank.alive = false;
      host_->RankDied(rank.process);
      host_->RankFailed(rank.process);
    }
  }
}

void SimNode::PowerOn() {
  if (powered_) return;
  world_->Trace(name_ + " boots");
  powered_ = true;
  ++boots_;
  StartAgent();
}

void SimNode::Handle(decltype(agent::Input::body) body) {
  if (core_ == nullptr) return;
  const uint64_t epoch = epoch_;
  for (const agent::Action& action : core_->Handle(agent::Input{world_->now(), std::move(body)})) {
    if (crash_in_ > 0 && --crash_in_ == 0) CrashAgent();
    if (epoch != epoch_) return;  // what was not performed is lost
    Perform(action);
  }
}

void SimNode::Perform(const agent::Action& action) {
  if (const auto* cluster = std::get_if<agent::StoreCluster>(&action)) {
    store_.cluster_id = cluster->cluster_id;
    store_.term = cluster->term;
  } else if (const auto* job = std::get_if<agent::StoreJob>(&action)) {
    store_.jobs[job->job] = job->stored;
  } else if (const auto* report = std::get_if<agent::StoreReport>(&action)) {
    store_.reports.push_back(report->report);
    store_.last_report = report->report.number();
    store_.jobs[JobId(report->report.job_id())] = report->stored;
  } else if (const auto* capsule = std::get_if<agent::StoreCapsule>(&action)) {
    store_.capsules[JobId(capsule->capsule.job_id())] = capsule->capsule;
  } else if (const auto* history = std::get_if<agent::DropCapsule>(&action)) {
    store_.capsules.erase(history->job);
  } else if (const auto* committee = std::get_if<agent::StoreCommittee>(&action)) {
    store_.committee = committee->stored;
  } else if (const auto* ask = std::get_if<agent::AskCommittee>(&action)) {
    v1::WitnessQuestion question;
    question.set_cluster_id(core_->cluster_id());
    question.set_node_id("id-" + name_);
    for (const v1::CommitteeMember& member : ask->members) {
      host_->AskWitness(name_, member.name(), ask->round, question);
    }
  } else if (const auto* answer = std::get_if<agent::AnswerWitness>(&action)) {
    host_->WitnessAnswers(name_, answer->question_id, answer->answer);
  } else if (const auto* drop = std::get_if<agent::DropReports>(&action)) {
    std::erase_if(store_.reports, [&](const v1::Report& r) { return r.number() <= drop->up_to; });
  } else if (const auto* forgotten = std::get_if<agent::DropJob>(&action)) {
    store_.jobs.erase(forgotten->job);
  } else if (const auto* send = std::get_if<agent::Send>(&action)) {
    host_->FromAgent(name_, send->message);
  } else if (const auto* beat = std::get_if<agent::SetHeartbeat>(&action)) {
    const uint64_t link = link_;
    const int64_t period = beat->period_ms * kMs;
    // One chain of events per link; it ends with the link.
    auto due = std::make_shared<std::function<void()>>();
    *due = [this, link, period, weak = std::weak_ptr(due)] {
      if (link != link_ || core_ == nullptr) return;
      Handle(agent::HeartbeatDue{});
      if (auto self = weak.lock()) world_->In(period, [self] { (*self)(); });
    };
    world_->In(period, [due] { (*due)(); });
  } else if (std::get_if<agent::CloseLink>(&action) != nullptr) {
    world_->Trace(name_ + " closes its stream: " + std::get<agent::CloseLink>(action).reason);
    host_->HangUp(name_);
  } else if (const auto* check = std::get_if<agent::CheckPaths>(&action)) {
    const agent::AttemptKey key{JobId(check->prepare.job_id()), AttemptNo(check->prepare.attempt())};
    world_->In(world_->Between(kMs, 30 * kMs), [this, key, prepare = check->prepare, epoch = epoch_] {
      if (epoch == epoch_) Handle(agent::PreparedHere{key, folders_->Answer(prepare), prepare.resume()});
    });
  } else if (const auto* start = std::get_if<agent::StartShimFor>(&action)) {
    StartShim(*start);
  } else if (const auto* to = std::get_if<agent::ToShim>(&action)) {
    Command(*to);
  } else if (const auto* sweep = std::get_if<agent::Sweep>(&action)) {
    world_->In(world_->Between(kMs, 50 * kMs), [this, key = sweep->key, epoch = epoch_] {
      if (epoch == epoch_) Handle(agent::StraysGone{key, "the node was restarted"});
    });
  } else if (const auto* ended = std::get_if<agent::AttemptEnded>(&action)) {
    auto it = shims_.find(ended->key);
    if (it != shims_.end() && it->second->finished) shims_.erase(it);
    ReportPorts();
  }
  // ForgetJob, StartTail, CancelTail and Note touch nothing that is simulated.
}

void SimNode::ReportPorts() {
  agent::PortsFree free;
  for (uint32_t port : kPorts) {
    if (ports_in_use_.count(port) == 0) free.ports.push_back(port);
  }
  if (core_ != nullptr) core_->Handle(agent::Input{world_->now(), free});
}

void SimNode::LinkUp() {
  ++link_;
  Handle(agent::LinkUp{});
}
void SimNode::LinkDown() {
  ++link_;
  Handle(agent::LinkDown{});
}
void SimNode::FromController(const v1::ControllerMsg& message) {
  if (mutation_ == Mutation::kLaunchAfterTombstone && message.has_launch() && core_ != nullptr) {
    const agent::AttemptKey key{JobId(message.launch().job_id()), AttemptNo(message.launch().attempt())};
    if (!core_->Lives(key) && store_.jobs[key.job].tombstone >= static_cast<int64_t>(key.attempt.value())) {
      return StartShim(
          agent::StartShimFor{message.launch(), static_cast<uint64_t>(world_->now() + 10 * kSecond)});
    }
  }
  Handle(agent::FromController{message});
}

// ---- shims ----

void SimNode::StartShim(const agent::StartShimFor& start) {
  const v1::Launch& launch = start.launch;
  auto shim = std::make_shared<Shim>();
  shim->key = {JobId(launch.job_id()), AttemptNo(launch.attempt())};
  v1::ShimStart message;
  message.set_job_id(launch.job_id());
  message.set_attempt(launch.attempt());
  *message.mutable_plan() = launch.plan();
  message.set_on_agent_gone(v1::ON_AGENT_GONE_LEASE);
  message.set_lease_deadline_ns(start.lease_deadline_ns);
  shim->gang = std::make_unique<Gang>(message);
  std::vector<std::string> gpus;
  for (const auto& var : launch.plan().common_env()) {
    if (var.name() == "CUDA_VISIBLE_DEVICES" && !var.value().empty()) gpus = absl::StrSplit(var.value(), ',');
  }
  for (const auto& plan : launch.plan().ranks()) {
    Rank rank;
    rank.process = {launch.job_id(), launch.attempt(), plan.rank(), name_, gpus};
    shim->ranks.push_back(rank);
  }
  for (const auto& var : launch.plan().common_env()) {
    if (var.name() == "WORLD_SIZE") shim->world_size = static_cast<uint32_t>(std::stoul(var.value()));
  }
  shim->plan = launch.plan();
  shims_[shim->key] = shim;
  SayHello(shim);
  world_->In(world_->Between(2 * kMs, 40 * kMs), [this, shim, power = power_] {
    if (power == power_) Spawn(shim);
  });
}

void SimNode::Spawn(const ShimPtr& shim) {
  shim->spawned = true;
  if (shim->gang->state() != GangState::kStarting) return ReapIfEmpty(shim);
  const std::string& job = shim->key.job.str();
  const uint32_t attempt = shim->key.attempt.value();
  if (folders_->IsBad(job, shim->plan)) script_->FailsSoon(job, attempt, shim->world_size, kBadTensor);
  const AttemptScript& script = script_->Of(job, attempt, shim->world_size);
  for (size_t i = 0; i < shim->ranks.size(); ++i) {
    if (static_cast<int>(shim->ranks[i].process.rank) != script.spawn_fails) continue;
    script_->Happened(job, attempt, script.spawn_fails);
    v1::SpawnFailed failed;
    failed.set_rank(shim->ranks[i].process.rank);
    failed.set_stage("exec");
    failed.set_detail("/opt/python: No such file or directory");
    return Perform(shim, shim->gang->SpawnFailed(world_->now(), failed));
  }
  std::vector<SpawnedRank> spawned;
  for (Rank& rank : shim->ranks) {
    rank.alive = true;
    spawned.push_back({1000 + static_cast<int32_t>(rank.process.rank), 0});
    host_->RankStarted(rank.process);
  }
  Perform(shim, shim->gang->Spawned(world_->now(), spawned, {}));
  for (size_t i = 0; i < shim->ranks.size(); ++i) {
    const bool culprit = static_cast<int>(shim->ranks[i].process.rank) == script.culprit;
    const int64_t when = culprit ? script.fails_after : script.duration + world_->Between(0, 200 * kMs);
    world_->In(when, [this, shim, i, culprit, &script, power = power_] {
      if (power != power_ || !shim->ranks[i].alive || shim->ranks[i].dying) return;
      const Process& p = shim->ranks[i].process;
      if (culprit) script_->Happened(p.job, p.attempt, static_cast<int>(p.rank));
      EndRank(shim, i, 0, culprit ? script.failure : Ending());
    });
    const bool saves = shim->ranks[i].process.rank == 0 && !shim->plan.ckpt_dir().empty();
    if (saves) SaveNow(shim, i);
  }
}

void SimNode::SaveNow(const ShimPtr& shim, size_t index) {
  world_->In(world_->Between(3 * kSecond, 8 * kSecond), [this, shim, index, power = power_] {
    if (power != power_ || !shim->ranks[index].alive || shim->ranks[index].dying) return;
    folders_->Save(shim->key.job.str(), shim->plan);
    SaveNow(shim, index);
  });
}

void SimNode::EndRank(const ShimPtr& shim, size_t index, int64_t delay, const Ending& ending) {
  shim->ranks[index].dying = true;
  world_->In(delay, [this, shim, index, ending, power = power_] {
    Rank& rank = shim->ranks[index];
    if (power != power_ || !rank.alive) return;
    rank.alive = false;
    rank.tail = ending.tail;
    world_->Trace(absl::StrCat(name_, " rank ", rank.process.rank, " of ", rank.process.job, ".",
                               rank.process.attempt, " ends: ", ending.code, "/", ending.signal));
    host_->RankDied(rank.process);
    RankExit exit;
    exit.index = index;
    exit.exit = ToExit(ending);
    Perform(shim, shim->gang->RankExited(world_->now(), exit));
    ReapIfEmpty(shim);
    if (ending.code != 0 || ending.signal != 0) host_->RankFailed(rank.process);
  });
}

void SimNode::BreakCollective(const std::string& job, uint32_t attempt) {
  auto it = shims_.find({JobId(job), AttemptNo(attempt)});
  if (it == shims_.end()) return;
  const ShimPtr shim = it->second;
  for (size_t i = 0; i < shim->ranks.size(); ++i) {
    if (!shim->ranks[i].alive || shim->ranks[i].dying) continue;
    Ending ending;
    if (script_->Victim(&ending)) EndRank(shim, i, world_->Between(0, 300 * kMs), ending);
  }
}

void SimNode::Terminate(const ShimPtr& shim) {
  for (size_t i = 0; i < shim->ranks.size(); ++i) {
    Ending ending;
    int64_t delay = 0;
    if (!shim->ranks[i].alive || shim->ranks[i].dying || !script_->OnTerm(&ending, &delay)) continue;
    EndRank(shim, i, delay, ending);
  }
}

void SimNode::KillRanks(const ShimPtr& shim) {
  for (size_t i = 0; i < shim->ranks.size(); ++i) {
    if (shim->ranks[i].alive) EndRank(shim, i, world_->Between(kMs, 40 * kMs), Ending{0, SIGKILL, ""});
  }
  ReapIfEmpty(shim);
}

void SimNode::ReapIfEmpty(const ShimPtr& shim) {
  for (const Rank& rank : shim->ranks) {
    if (rank.alive) return;
  }
  if (shim->gang->state() == GangState::kKilling) Perform(shim, shim->gang->NoDescendants());
}

void SimNode::Perform(const ShimPtr& shim, const GangActions& actions) {
  for (const GangAction& action : actions) {
    if (const auto* signal = std::get_if<SignalRanks>(&action)) {
      if (signal->signal == SIGTERM) Terminate(shim);
    } else if (std::holds_alternative<KillAll>(action)) {
      KillRanks(shim);
    } else if (const auto* event = std::get_if<ReportEvent>(&action)) {
      v1::ShimMsg message;
      *message.mutable_event() = WithTails(*shim, event->event);
      Deliver(shim, std::move(message));
    } else if (const auto* timer = std::get_if<ArmTimer>(&action)) {
      const uint64_t generation = ++shim->timer;
      if (timer->boottime_ns == 0) continue;
      world_->At(timer->boottime_ns, [this, shim, generation, power = power_] {
        if (power == power_ && generation == shim->timer) Perform(shim, shim->gang->Tick(world_->now()));
      });
    } else if (std::holds_alternative<Finish>(action)) {
      shim->finished = true;
    }
  }
}

void SimNode::Command(const agent::ToShim& to) {
  auto it = shims_.find(to.key);
  if (it == shims_.end()) return;
  world_->In(kMs / 10, [this, shim = it->second, command = to.command, power = power_] {
    if (power != power_) return;
    Gang& gang = *shim->gang;
    if (command.has_stop()) {
      Perform(shim, gang.Stop(world_->now(), command.stop().grace_ms(), command.stop().reason()));
      ReapIfEmpty(shim);
    } else if (command.has_lease()) {
      Perform(shim, gang.Lease(world_->now(), command.lease().deadline_ns()));
    } else if (command.has_attach()) {
      for (const v1::ShimEvent& event : std::vector<v1::ShimEvent>(gang.events())) {
        if (event.number() <= command.attach().last_event()) continue;
        v1::ShimMsg message;
        *message.mutable_event() = WithTails(*shim, event);
        Deliver(shim, std::move(message));
      }
    }
  });
}

// Stderr tails are the agent's doing; here they come with the event.
v1::ShimEvent SimNode::WithTails(const Shim& shim, v1::ShimEvent event) const {
  auto add = [&](v1::RankReport* report) {
    for (const Rank& rank : shim.ranks) {
      if (rank.process.rank == report->rank() && !rank.tail.empty()) report->add_stderr_tail(rank.tail);
    }
  };
  if (event.has_exited()) add(event.mutable_exited());
  if (event.has_gone()) {
    for (auto& rank : *event.mutable_gone()->mutable_ranks()) add(&rank);
  }
  return event;
}

void SimNode::SayHello(const ShimPtr& shim) {
  v1::ShimMsg message;
  v1::ShimHello* hello = message.mutable_hello();
  hello->set_version(1);
  hello->set_job_id(shim->key.job.str());
  hello->set_attempt(shim->key.attempt.value());
  *hello->mutable_snapshot() = shim->gang->Snapshot();
  hello->set_last_event(shim->gang->last_event());
  Deliver(shim, std::move(message));
}

// In order, to the agent of this moment; one that comes later asks for what it missed.
void SimNode::Deliver(const ShimPtr& shim, v1::ShimMsg message) {
  if (core_ == nullptr) return;
  shim->last_delivery = std::max(shim->last_delivery, world_->now() + world_->Between(kMs / 10, 3 * kMs));
  world_->At(shim->last_delivery, [this, shim, message, epoch = epoch_] {
    if (epoch == epoch_) Handle(agent::ShimSaid{shim->key, message});
  });
}

std::vector<Process> SimNode::Living() const {
  std::vector<Process> living;
  for (const auto& [key, shim] : shims_) {
    for (const Rank& rank : shim->ranks) {
      if (rank.alive) living.push_back(rank.process);
    }
  }
  return living;
}

}  // namespace dgxrun::sim
