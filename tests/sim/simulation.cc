#include "tests/sim/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dgxrun::sim {
namespace {

constexpr int64_t kStorm = 60 * kSecond;
// Long enough for every fence, every delay of a restart and every job that ends at all.
constexpr int64_t kQuiet = 600 * kSecond;
// A job that ends at all runs for 30 s, and no delay is longer: a log that did not grow for so long is at
// rest, and the run need not go on.
constexpr int64_t kRest = 45 * kSecond;

}  // namespace

Simulation::Simulation(const SimOptions& options)
    : options_(options),
      world_(options.seed),
      script_(&world_,
              [this](const std::string& job, uint32_t attempt, int rank) { Fault(job, attempt, rank, ""); }),
      folders_(&world_, {[this](const std::string& job, const v1::Checkpoint& checkpoint) {
                           Each([&](Oracle* oracle) { oracle->OnSaved(job, checkpoint); });
                         },
                         [this](const std::string& job, const std::string& path) {
                           Each([&](Oracle* oracle) { oracle->OnMovedAside(job, path); });
                         }}),
      controller_(&world_, this, options.mutation),
      mood_(options.seed % 3 == 0 && !options.peers ? Mood::kPartitions : Mood::kMixed) {
  world_.verbose = options.verbose;
  for (auto make : {MakeOneAttemptOracle, MakeGpuOracle, MakeDurableOracle, MakeReplayOracle,
                    MakeBudgetOracle, MakeSubmitOracle, MakeQuietOracle, MakeVerdictOracle,
                    MakeNothingLeftOracle, MakeQueueOracle, MakeCheckpointsOracle}) {
    oracles_.push_back(make());
  }
  const int gpus = world_.Chance(70) && !options.peers ? 4 : 0;
  for (int i = 1; i <= options.nodes; ++i) {
    const std::string name = absl::StrCat("n", i);
    hosts_[name].node = std::make_unique<SimNode>(&world_, this, &script_, name, gpus, options.mutation);
    hosts_[name].node->SetFolders(&folders_);
  }
  if (options.peers) MakePeers();
}

void Simulation::MakePeers() {
  v1::PeerOffer offer;
  offer.set_rdzv_id("none");
  v1::JobSpec* spec = offer.mutable_spec();
  spec->set_nodes(static_cast<uint32_t>(options_.nodes));
  spec->set_ranks_per_node(static_cast<uint32_t>(world_.Between(1, 3)));
  spec->set_device(v1::DEVICE_CPU);
  spec->add_argv("python3");
  spec->set_cwd("/data");
  spec->set_grace_ms(world_.Chance(20) ? 0 : 2000);
  spec->set_max_restarts(static_cast<uint32_t>(world_.Between(1, 6)));
  if (world_.Chance(50)) spec->set_ckpt_dir("/ckpt");
  for (auto& [name, host] : hosts_) {
    offer.set_order(name == "n1" ? 0 : 1);
    host.node->SetOffer(offer);
  }
  core::PeersConfig peers;
  peers.rdzv_id = offer.rdzv_id();
  peers.endpoint_host = "n1";
  peers.spec = *spec;
  peers.spec.mutable_owner()->set_user("ada");
  peers.spec.mutable_owner()->set_uid(1000);
  controller_.ServePeers(peers);
}

SimResult Simulation::Run() {
  controller_.Start();
  for (auto& [name, host] : hosts_) {
    world_.In(world_.Between(0, 300 * kMs), [node = host.node.get()] { node->StartAgent(); });
  }
  for (int i = 0; i < options_.jobs && !options_.peers; ++i) {
    Client client;
    client.key = absl::StrCat("key-", i);
    client.spec.set_nodes(static_cast<uint32_t>(world_.Between(1, 3)));
    client.spec.set_ranks_per_node(static_cast<uint32_t>(world_.Between(1, 4)));
    client.spec.set_device(world_.Chance(20) ? v1::DEVICE_CPU : v1::DEVICE_AUTO);
    client.spec.add_argv("python3");
    client.spec.set_cwd("/data");
    client.spec.set_grace_ms(world_.Chance(20) ? 0 : 2000);
    client.spec.set_max_restarts(static_cast<uint32_t>(world_.Between(0, 4)));
    if (world_.Chance(50)) {
      client.spec.set_ckpt_dir("/ckpt");
      client.spec.set_max_restarts(static_cast<uint32_t>(world_.Between(2, 8)));
    }
    if (client.spec.nodes() > 1 && world_.Chance(40)) {
      client.spec.set_min_nodes(static_cast<uint32_t>(world_.Between(1, client.spec.nodes() - 1)));
    }
    clients_.push_back(client);
    world_.In(world_.Between(2 * kSecond, kStorm * 3 / 4), [this, i] { Submit(i); });
  }
  world_.In(2 * kSecond, [this] { Storm(); });
  world_.At(kStorm, [this] { Calm(); });
  const auto unbroken = [this] {
    return complaints_.empty() && std::all_of(oracles_.begin(), oracles_.end(),
                                              [](const auto& o) { return o->complaints().empty(); });
  };
  world_.RunUntil(kStorm, unbroken);
  size_t records = 0;
  while (unbroken() && world_.now() < kStorm + kQuiet && controller_.history().size() > records) {
    records = controller_.history().size();
    world_.RunUntil(world_.now() + kRest, unbroken);
  }

  SimResult result;
  const std::vector<v1::JobStatus> jobs = controller_.Jobs();
  if (unbroken()) {
    std::vector<Process> living;
    for (const auto& [name, host] : hosts_) {
      for (const Process& process : host.node->Living()) living.push_back(process);
    }
    Each([&](Oracle* oracle) { oracle->OnEnd(jobs, living, controller_.history()); });
    for (const auto& [name, host] : hosts_) {
      // A peer that comes after the end of its job is told so and leaves: nobody takes its reports.
      const bool leaves = options_.peers && !host.welcomed;
      const size_t reports = host.node->agent_up() && !leaves ? host.node->unacked() : 0;
      Each([&, node = name](Oracle* oracle) { oracle->OnUnacknowledged(node, reports, true); });
    }
    for (const Client& client : clients_) {
      if (!client.answered) complaints_.push_back("client: " + client.key + " never got an answer");
    }
  }
  result.complaints = complaints_;
  for (const auto& oracle : oracles_) {
    result.complaints.insert(result.complaints.end(), oracle->complaints().begin(),
                             oracle->complaints().end());
  }
  for (const auto& job : jobs) {
    world_.Trace(absl::StrCat("at the end ", job.job_id(), " ", v1::JobState_Name(job.state())));
    (job.ended_unix_ns() != 0               ? result.ended
     : job.state() == v1::JOB_STATE_RUNNING ? result.running
                                            : result.queued)++;
    result.restarts += static_cast<int>(job.restarts());
  }
  result.hash = world_.hash();
  result.covered = controller_.covered();
  return result;
}

void Simulation::Fault(const std::string& job, uint32_t attempt, int rank, const std::string& node) {
  world_.Trace(absl::StrCat("fault ", job, ".", attempt, " rank ", rank, " node ", node));
  Each([&](Oracle* oracle) { oracle->OnFault(job, attempt, rank, node); });
}

// ---- clients ----

void Simulation::Submit(size_t index) {
  Client& client = clients_[index];
  if (client.answered) {
    // Asked again after the answer, as by a client that never saw it.
    if (world_.Chance(50)) return;
  } else {
    world_.In(2 * kSecond, [this, index] {
      if (!clients_[index].answered) Submit(index);
    });
  }
  if (!controller_.up()) return;
  core::SubmitJob submit;
  submit.request = ++last_request_;
  submit.caller = core::Caller{"ada", 1000, 1000, false};
  submit.key = client.key;
  submit.spec = client.spec;
  requests_[submit.request] = index;
  controller_.Feed(submit);
}

void Simulation::Answered(const core::Answer& answer, const Disk& history) {
  auto it = requests_.find(answer.request);
  if (it == requests_.end()) return;
  Client& client = clients_[it->second];
  client.answered = true;
  world_.Trace(absl::StrCat("answer ", client.key, " ", answer.job.str(), " ", answer.status.ToString()));
  if (!answer.status.ok()) return;
  Each([&](Oracle* oracle) { oracle->OnSubmitAnswered(client.key, answer.job.str(), history); });
  world_.In(world_.Between(0, 10 * kSecond), [this, index = it->second] { Submit(index); });
}

void Simulation::Replayed(const std::string& before, const std::string& after) {
  Each([&](Oracle* oracle) { oracle->OnReplay(before, after); });
}

// ---- the network ----

void Simulation::Dial(const std::string& name) {
  Host& host = hosts_.at(name);
  // A back-off with jitter, as the agent has it.
  world_.In(world_.Between(50 * kMs, 800 * kMs), [this, name, &host] {
    if (!host.node->agent_up() || host.stream != nullptr) return;
    if (!controller_.up() || host.cut_up || host.cut_down) return Dial(name);
    Open(name);
  });
}

void Simulation::Open(const std::string& name) {
  Host& host = hosts_.at(name);
  auto stream = std::make_shared<Stream>();
  stream->id = ++last_connection_;
  stream->node = name;
  host.stream = stream;
  host.welcomed = false;
  at_controller_[stream->id] = stream;
  host.node->LinkUp();
}

void Simulation::HangUp(const std::string& name) {
  Host& host = hosts_.at(name);
  if (host.stream == nullptr) return;
  const StreamPtr stream = std::exchange(host.stream, nullptr);
  stream->agent_end = false;
  // The other end hears of it, unless the way is cut.
  world_.In(world_.Between(kMs, 20 * kMs), [this, stream, &host] {
    if (!host.cut_up) BreakControllerEnd(stream);
  });
  if (host.node->agent_up()) Dial(name);
}

void Simulation::BreakAgentEnd(const StreamPtr& stream) {
  Host& host = hosts_.at(stream->node);
  if (host.stream != stream) return;
  host.stream = nullptr;
  stream->agent_end = false;
  host.node->LinkDown();
  if (host.node->agent_up()) Dial(stream->node);
}

void Simulation::BreakControllerEnd(const StreamPtr& stream) {
  if (!stream->controller_end) return;
  stream->controller_end = false;
  at_controller_.erase(stream->id);
  controller_.Feed(core::NodeDisconnected{NodeId("id-" + stream->node), stream->id});
}

void Simulation::Crashed() {
  for (auto& [id, stream] : std::exchange(at_controller_, {})) {
    stream->controller_end = false;
    world_.In(world_.Between(kMs, 20 * kMs), [this, stream = stream] {
      if (!hosts_.at(stream->node).cut_down) return BreakAgentEnd(stream);
      // It gives the stream up when nothing was heard on it for so long.
      world_.In(world_.Between(4 * kSecond, 7 * kSecond), [this, stream] { BreakAgentEnd(stream); });
    });
  }
}

void Simulation::FromAgent(const std::string& name, const v1::AgentMsg& message) {
  Host& host = hosts_.at(name);
  const StreamPtr stream = host.stream;
  if (stream == nullptr) return;
  stream->last_up = std::max(stream->last_up, world_.now() + world_.Between(kMs, 15 * kMs));
  world_.At(stream->last_up, [this, stream, message, &host] {
    if (host.cut_up || !stream->held_up.empty()) {
      // Weak: the stream holds what is held up on it.
      stream->held_up.push_back([this, weak = std::weak_ptr<Stream>(stream), message] {
        if (const StreamPtr alive = weak.lock()) AtController(alive, message);
      });
    } else {
      AtController(stream, message);
    }
  });
}

void Simulation::AtController(const StreamPtr& stream, const v1::AgentMsg& message) {
  if (!stream->controller_end || !controller_.up()) return;
  const NodeId node("id-" + stream->node);
  switch (message.body_case()) {
    case v1::AgentMsg::kHello: {
      core::NodeConnected connected;
      connected.connection = stream->id;
      connected.hello = message.hello();
      connected.peer_address = "10.0.0." + stream->node.substr(1);
      controller_.Feed(connected);
      return;
    }
    case v1::AgentMsg::kHeartbeat:
      return controller_.Feed(core::NodeHeartbeat{node, stream->id, message.heartbeat()});
    case v1::AgentMsg::kReport: {
      v1::Report report = message.report();
      if (options_.mutation == Mutation::kDeaf) {
        if (report.has_exited()) report.mutable_exited()->clear_stderr_tail();
        if (report.has_gone()) {
          for (auto& rank : *report.mutable_gone()->mutable_ranks()) rank.clear_stderr_tail();
        }
      }
      return controller_.Feed(core::NodeReport{node, stream->id, report});
    }
    case v1::AgentMsg::BODY_NOT_SET:
      return;
  }
}

void Simulation::ToNode(const core::SendToNode& send, const Disk& history) {
  auto it = at_controller_.find(send.connection);
  const std::string name = send.node.str().substr(3);
  world_.Trace(name.c_str(), send.message);
  Each([&](Oracle* oracle) { oracle->OnMessage(name, send.message, history); });
  if (it == at_controller_.end()) return;
  const StreamPtr stream = it->second;
  Host& host = hosts_.at(name);
  // A command comes again, much later and on whatever stream there is then: from an outbox that resends, or
  // from a controller that was replaced.
  const bool command = send.message.has_prepare() || send.message.has_launch() || send.message.has_stop() ||
                       send.message.has_forget();
  if (command && !options_.peers && world_.Chance(5)) {
    world_.In(world_.Between(kMs, 20 * kSecond), [&host, message = send.message] {
      if (host.stream != nullptr && host.welcomed) host.node->FromController(message);
    });
  }
  stream->last_down = std::max(stream->last_down, world_.now() + world_.Between(kMs, 15 * kMs));
  world_.At(stream->last_down, [this, stream, message = send.message, &host] {
    auto deliver = [this, weak = std::weak_ptr<Stream>(stream), message, &host] {
      if (const StreamPtr alive = weak.lock(); alive != nullptr && host.stream == alive) {
        host.welcomed = host.welcomed || message.has_welcome();
        host.node->FromController(message);
        const size_t reports = host.node->agent_up() ? host.node->unacked() : 0;
        Each([&](Oracle* oracle) { oracle->OnUnacknowledged(host.node->name(), reports, false); });
      }
    };
    if (host.cut_down || !stream->held_down.empty()) {
      stream->held_down.push_back(deliver);
    } else {
      deliver();
    }
  });
}

void Simulation::AskWitness(const std::string& node, const std::string& witness, uint64_t round,
                            const v1::WitnessQuestion& question) {
  auto it = hosts_.find(witness);
  if (it == hosts_.end()) return;
  Host* to = &it->second;
  const uint64_t id = ++last_question_;
  questions_[id] = {node, round};
  // Some answers come too late to count.
  const int64_t delay = world_.Chance(95) ? world_.Between(kMs, 30 * kMs) : world_.Between(kMs, kSecond);
  world_.In(delay, [this, id, node, to, question] {
    if (hosts_.at(node).side == to->side && to->node->agent_up()) to->node->Asked(id, question);
  });
}

void Simulation::WitnessAnswers(const std::string& witness, uint64_t question_id,
                                const v1::WitnessAnswer& answer) {
  auto it = questions_.find(question_id);
  if (it == questions_.end()) return;
  const Question question = it->second;
  questions_.erase(it);
  const int64_t delay = world_.Chance(95) ? world_.Between(kMs, 30 * kMs) : world_.Between(kMs, kSecond);
  world_.In(delay, [this, witness, question, answer] {
    Host& from = hosts_.at(question.from);
    if (from.side != hosts_.at(witness).side || !from.node->agent_up()) return;
    from.node->Answered(question.round, answer);
    if (options_.mutation != Mutation::kSingleWitness) return;
    for (const auto& [name, host] : hosts_) {
      v1::WitnessAnswer copy = answer;
      copy.set_node_id("id-" + name);
      from.node->Answered(question.round, copy);
    }
  });
}

void Simulation::Flush(Host* host) {
  const StreamPtr stream = host->stream;
  if (stream == nullptr) return;
  for (auto& deliver : std::exchange(stream->held_up, {})) deliver();
  for (auto& deliver : std::exchange(stream->held_down, {})) deliver();
}

// ---- processes ----

void Simulation::RankStarted(const Process& process) {
  world_.Trace(absl::StrCat("rank ", process.rank, " of ", process.job, ".", process.attempt, " starts on ",
                            process.node));
  Each([&](Oracle* oracle) { oracle->OnStart(process); });
}

void Simulation::RankDied(const Process& process) {
  Each([&](Oracle* oracle) { oracle->OnDeath(process); });
}

void Simulation::RankFailed(const Process& process) {
  // Peers on the same node learn it at once, others over the wire.
  for (auto& [name, host] : hosts_) {
    const int64_t delay = name == process.node ? kMs : world_.Between(kMs, 300 * kMs);
    world_.In(delay,
              [node = host.node.get(), process] { node->BreakCollective(process.job, process.attempt); });
  }
}

}  // namespace dgxrun::sim
