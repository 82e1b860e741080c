#include "controller/core/peers.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/core/invariants.h"
#include "controller/core/strays.h"

namespace dgxrun::core {
namespace {

constexpr char kKey[] = "peers";  // of the one submit; each run has one job

v1::Refused RefusePeer(std::string reason, bool final) {
  v1::Refused refused;
  refused.set_reason(std::move(reason));
  refused.set_final(final);
  return refused;
}

bool AttemptLives(const v1::AttemptSnapshot& attempt) { return attempt.phase() != v1::ATTEMPT_PHASE_GONE; }

bool AnythingLives(const v1::Hello& hello) {
  return std::any_of(hello.snapshot().attempts().begin(), hello.snapshot().attempts().end(), AttemptLives);
}

// Nothing was ever started under this log, so it may become another one.
bool IsUntouched(const State& state) {
  return std::all_of(state.jobs.begin(), state.jobs.end(),
                     [](const auto& entry) {
                       return !entry.second->attempt && entry.second->phase != Job::Phase::kEnded;
                     }) &&
         state.last_job_number <= state.jobs.size();
}

std::optional<v1::JobAdopted> Open(const v1::JobCapsule& capsule) {
  v1::Record record;
  if (!record.ParseFromString(capsule.record()) || !record.has_job_adopted()) return std::nullopt;
  const v1::JobAdopted& adopted = record.job_adopted();
  const bool right = adopted.job_id() == capsule.job_id() &&
                     adopted.placed().attempt() == capsule.attempt() &&
                     adopted.launched().attempt() == capsule.attempt() && !capsule.cluster_id().empty();
  if (!right) return std::nullopt;
  // It came over the network: nothing of it may break what our own log may never break.
  State probe;
  ApplyJobAdopted(&probe, adopted);
  if (!CheckInvariants(probe).ok()) return std::nullopt;
  return adopted;
}

// Whether the capsule is news to the state. Its attempt must live on the node that brings it.
bool MayAdopt(const State& state, const v1::Hello& hello, const v1::JobCapsule& capsule) {
  const auto& attempts = hello.snapshot().attempts();
  const bool lives = std::any_of(attempts.begin(), attempts.end(), [&](const v1::AttemptSnapshot& a) {
    return a.job_id() == capsule.job_id() && a.attempt() == capsule.attempt() && AttemptLives(a);
  });
  if (!lives) return false;
  if (capsule.cluster_id() != state.cluster_id) return IsUntouched(state);
  const Job* job = FindJobById(state, JobId(capsule.job_id()));
  if (job == nullptr) return IsUntouched(state);
  return job->phase != Job::Phase::kEnded && AttemptNo(capsule.attempt()) >= job->next_attempt;
}

const v1::JobCapsule* Newest(const State& state, const v1::Hello& hello) {
  const v1::JobCapsule* best = nullptr;
  for (const v1::JobCapsule& capsule : hello.capsules()) {
    if (!MayAdopt(state, hello, capsule)) continue;
    const auto rank = [](const v1::JobCapsule& c) { return std::make_pair(c.term(), c.attempt()); };
    if (best == nullptr || rank(*best) < rank(capsule)) best = &capsule;
  }
  return best;
}

// "node b asks for 4 ranks per node, the endpoint's command for 8"; empty: they agree.
std::string Difference(const std::string& node, const v1::JobSpec& theirs, const v1::JobSpec& ours) {
  const auto say = [&](const std::string& theirs_text, const std::string& ours_text) {
    return absl::StrCat("the commands differ: node ", node, " asks for ", theirs_text,
                        ", the endpoint's command for ", ours_text);
  };
  const auto number = [](const char* what, uint64_t n) { return absl::StrCat(what, " ", n); };
  const auto word = [](const char* what, const std::string& text) {
    return text.empty() ? absl::StrCat("no ", what) : absl::StrCat(what, " ", text);
  };
  if (theirs.nodes() != ours.nodes())
    return say(number("--nnodes", theirs.nodes()), number("--nnodes", ours.nodes()));
  if (theirs.ranks_per_node() != ours.ranks_per_node()) {
    return say(number("--nproc-per-node", theirs.ranks_per_node()),
               number("--nproc-per-node", ours.ranks_per_node()));
  }
  if (theirs.device() != ours.device()) {
    const auto device = [](v1::Device d) { return d == v1::DEVICE_GPU ? "GPUs" : "the CPU"; };
    return say(device(theirs.device()), device(ours.device()));
  }
  if (theirs.max_restarts() != ours.max_restarts()) {
    return say(number("--max-restarts", theirs.max_restarts()),
               number("--max-restarts", ours.max_restarts()));
  }
  if (theirs.grace_ms() != ours.grace_ms()) {
    return say(absl::StrCat("--grace ", theirs.grace_ms(), "ms"),
               absl::StrCat("--grace ", ours.grace_ms(), "ms"));
  }
  if (theirs.ckpt_dir() != ours.ckpt_dir())
    return say(word("--ckpt-dir", theirs.ckpt_dir()), word("--ckpt-dir", ours.ckpt_dir()));
  const std::string their_words = absl::StrJoin(theirs.resume_args(), " ");
  const std::string our_words = absl::StrJoin(ours.resume_args(), " ");
  if (their_words != our_words)
    return say(word("--resume-arg", their_words), word("--resume-arg", our_words));
  return "";
}

std::optional<v1::Refused> JudgeOffer(const State& state, const PeersConfig& peers, const v1::Hello& hello) {
  if (!hello.has_offer() || hello.offer().spec().argv_size() == 0) {
    return RefusePeer("this is the endpoint of a job in peers mode; an agent has no place in it", true);
  }
  const v1::PeerOffer& offer = hello.offer();
  if (offer.rdzv_id() != peers.rdzv_id) {
    return RefusePeer(absl::StrCat("the commands differ: node ", hello.node_name(), " asks for --rdzv-id ",
                                   offer.rdzv_id(), ", the endpoint's command for --rdzv-id ", peers.rdzv_id),
                      true);
  }
  const std::string difference = Difference(hello.node_name(), offer.spec(), peers.spec);
  if (!difference.empty()) return RefusePeer(difference, true);
  if (!offer.order_given()) return std::nullopt;
  if (offer.order() >= peers.spec.nodes()) {
    return RefusePeer(absl::StrCat("--node-rank ", offer.order(), ": the job has ", peers.spec.nodes(),
                                   " nodes, so at most ", peers.spec.nodes() - 1),
                      true);
  }
  for (const auto& [id, node] : state.nodes) {
    if (id.str() == hello.node_id() || node->phase == NodePhase::kFenced || !node->offer) continue;
    if (node->offer->order_given() && node->offer->order() == offer.order()) {
      return RefusePeer(
          absl::StrCat("--node-rank ", offer.order(), " is node ", node->name, "'s; each node has its own"),
          true);
    }
  }
  return std::nullopt;
}

// Nodes beyond those that the job asked for.
std::optional<v1::Refused> JudgeRoom(const State& state, const Contacts& contacts, const v1::Hello& hello) {
  const uint32_t wanted = contacts.config.peers->spec.nodes();
  uint32_t others = 0, there = 0;
  std::vector<std::string> names;
  for (const auto& [id, node] : state.nodes) {
    if (node->phase == NodePhase::kFenced || node->name == hello.node_name()) continue;
    if (id.str() == hello.node_id()) return std::nullopt;
    ++others;
    if (IsConnected(contacts, id)) ++there;
    names.push_back(node->name);
  }
  if (others < wanted) return std::nullopt;
  return RefusePeer(absl::StrCat("node ", hello.node_name(), " is one too many: the job has ", wanted,
                                 wanted == 1 ? " node: " : " nodes: ", absl::StrJoin(names, ", ")),
                    there >= wanted);
}

bool HasEndedJob(const State& state) {
  if (state.jobs.empty()) return state.last_job_number > 0;
  return std::all_of(state.jobs.begin(), state.jobs.end(),
                     [](const auto& entry) { return entry.second->phase == Job::Phase::kEnded; });
}

void RaiseTerm(Draft* draft, uint64_t seen) {
  v1::Record record;
  record.mutable_term_raised()->set_term(std::max(seen, draft->state().term) + 1);
  draft->Add(std::move(record));
}

// Nodes of the adopted attempt that have not come yet: they are waited for, and lost if they do not come.
void AdmitPlaced(Draft* draft, const v1::AttemptPlaced& placed) {
  for (const v1::PlacedNode& share : placed.nodes()) {
    if (FindNode(draft->state(), NodeId(share.node_id())) != nullptr) continue;
    bool taken = false;
    for (const auto& [id, node] : draft->state().nodes) taken |= node->name == share.name();
    v1::Record record;
    v1::NodeAdmitted* admitted = record.mutable_node_admitted();
    admitted->set_node_id(share.node_id());
    // A node that lost its state folder came back as another one of the same name.
    admitted->set_name(taken ? absl::StrCat(share.name().substr(0, kMaxNameLength - 4), ".old")
                             : share.name());
    draft->Add(std::move(record));
  }
}

void AddStarted(Draft* draft, const Job& job, const AttemptNode& share, const v1::AttemptSnapshot& held) {
  const JobId id = job.id;
  const AttemptNo number = job.attempt->number;
  const NodeId node = share.node;
  std::vector<v1::RankReport> ranks(held.ranks().begin(), held.ranks().end());
  // In the order in which they ended, so that the first failure is told first.
  std::sort(ranks.begin(), ranks.end(),
            [](const auto& a, const auto& b) { return a.exit_order() < b.exit_order(); });
  size_t index = 0;
  while (job.attempt->nodes[index]->node != node) ++index;
  const uint32_t per_node = job.spec.ranks_per_node();
  std::erase_if(ranks, [&](const auto& rank) { return rank.rank() / per_node != index; });

  v1::Record record;
  v1::NodeStarted* started = record.mutable_node_started();
  started->set_job_id(id.str());
  started->set_attempt(number.value());
  started->set_node_id(node.str());
  for (const v1::RankReport& rank : ranks) {
    v1::RankReport* out = started->add_ranks();
    *out = rank;
    if (rank.state() != v1::RANK_STATE_EXITED) continue;
    out->set_state(v1::RANK_STATE_RUNNING);
    out->clear_exit();
  }
  draft->Add(std::move(record));
  for (const v1::RankReport& rank : ranks) {
    if (rank.state() != v1::RANK_STATE_EXITED) continue;
    v1::Record exited;
    exited.mutable_rank_exited()->set_job_id(id.str());
    exited.mutable_rank_exited()->set_attempt(number.value());
    exited.mutable_rank_exited()->set_node_id(node.str());
    *exited.mutable_rank_exited()->mutable_rank() = rank;
    draft->Add(std::move(exited));
  }
}

}  // namespace

std::optional<v1::Refused> JudgePeer(const State& state, const Contacts& contacts, const v1::Hello& hello) {
  if (auto refused = JudgeOffer(state, *contacts.config.peers, hello)) return refused;
  const bool known = FindNode(state, NodeId(hello.node_id())) != nullptr;
  if (Newest(state, hello) != nullptr) return std::nullopt;
  if (!hello.cluster_id().empty() && hello.cluster_id() != state.cluster_id && AnythingLives(hello)) {
    return RefusePeer(absl::StrCat("ranks of another run still live on node ", hello.node_name(),
                                   "; they end within the orphan timeout"),
                      false);
  }
  if (!known && HasEndedJob(state)) return RefusePeer("the job of this endpoint has just ended", true);
  return JudgeRoom(state, contacts, hello);
}

void AdoptFrom(Draft* draft, const v1::Hello& hello) {
  const v1::JobCapsule* capsule = Newest(draft->state(), hello);
  const std::optional<v1::JobAdopted> adopted = capsule != nullptr ? Open(*capsule) : std::nullopt;
  if (adopted) {
    if (capsule->cluster_id() != draft->state().cluster_id) {
      v1::Record cluster;
      cluster.mutable_cluster_adopted()->set_cluster_id(capsule->cluster_id());
      draft->Add(std::move(cluster));
    }
    RaiseTerm(draft, std::max(hello.term(), capsule->term()));
    std::vector<std::string> dropped;
    for (const auto& [id, job] : draft->state().jobs) {
      if (id.str() != adopted->job_id()) dropped.push_back(id.str());
    }
    for (const std::string& id : dropped) {
      v1::Record drop;
      drop.mutable_job_dropped()->set_job_id(id);
      draft->Add(std::move(drop));
    }
    AdmitPlaced(draft, adopted->placed());
    v1::Record record;
    *record.mutable_job_adopted() = *adopted;
    draft->Add(std::move(record));
    return;
  }
  if (hello.cluster_id() == draft->state().cluster_id && hello.term() > draft->state().term)
    RaiseTerm(draft, hello.term());
}

void TellSnapshot(Draft* draft, const v1::Hello& hello) {
  const NodeId node(hello.node_id());
  for (const v1::AttemptSnapshot& held : hello.snapshot().attempts()) {
    const bool started =
        held.phase() == v1::ATTEMPT_PHASE_RUNNING || held.phase() == v1::ATTEMPT_PHASE_STOPPING;
    const JobId id(held.job_id());
    const Job* job = FindJobById(draft->state(), id);
    const Attempt* attempt = job != nullptr ? LiveAttempt(*job) : nullptr;
    if (!started || attempt == nullptr || attempt->number.value() != held.attempt() || !attempt->launched)
      continue;
    const AttemptNode* share = FindShare(*attempt, node);
    const bool waits = share != nullptr && (share->phase == AttemptNode::Phase::kPrepared ||
                                            share->phase == AttemptNode::Phase::kReady);
    if (!waits) continue;
    AddStarted(draft, *job, *share, held);
    job = FindJobById(draft->state(), id);
    if (held.phase() != v1::ATTEMPT_PHASE_STOPPING || job->attempt->phase == Attempt::Phase::kStopping)
      continue;
    // The controller before us was stopping it everywhere, for a reason that went with it.
    v1::Record record;
    v1::AttemptStopping* stopping = record.mutable_attempt_stopping();
    stopping->set_job_id(id.str());
    stopping->set_attempt(held.attempt());
    stopping->set_cause(v1::CAUSE_SUPERVISOR_LOST);
    stopping->set_grace_ms(job->spec.grace_ms());
    draft->Add(std::move(record));
  }
}

void MakePeersJob(Draft* draft) {
  const State& state = draft->state();
  if (!state.jobs.empty() || state.last_job_number > 0) return;
  const Node* first = nullptr;
  for (const auto& [id, node] : state.nodes) {
    if (node->offer && node->offer->order() == 0 && node->phase == NodePhase::kUp) first = &*node;
  }
  if (first == nullptr) return;
  v1::Record record;
  v1::JobSubmitted* submitted = record.mutable_job_submitted();
  submitted->set_job_id(absl::StrCat(state.cluster_id.substr(0, 6), "-1"));
  submitted->set_number(1);
  submitted->set_key(kKey);
  *submitted->mutable_spec() = first->offer->spec();
  *submitted->mutable_spec()->mutable_owner() = draft->contacts().config.peers->spec.owner();
  draft->Add(std::move(record));
}

v1::JobCapsule BuildCapsule(const State& state, const Job& job) {
  const Attempt& attempt = *job.attempt;
  v1::Record record;
  record.set_at_unix_ns(absl::ToUnixNanos(attempt.launched_at));
  v1::JobAdopted* adopted = record.mutable_job_adopted();
  adopted->set_job_id(job.id.str());
  adopted->set_number(job.number);
  adopted->set_key(job.key);
  *adopted->mutable_spec() = job.spec;
  adopted->set_submitted_unix_ns(absl::ToUnixNanos(job.submitted_at));
  adopted->set_restarts(job.restarts);
  adopted->set_short_failures(job.short_failures);
  adopted->set_last_master_port(job.last_master_port);
  if (job.why.cause() != v1::CAUSE_UNSPECIFIED) *adopted->mutable_why() = job.why;
  for (const v1::Placement& placement : job.placements) *adopted->add_placements() = placement;
  adopted->mutable_placed()->set_job_id(job.id.str());
  adopted->mutable_placed()->set_attempt(attempt.number.value());
  for (const auto& share : attempt.nodes) *adopted->mutable_placed()->add_nodes() = share->placed;
  v1::AttemptLaunched* launched = adopted->mutable_launched();
  launched->set_job_id(job.id.str());
  launched->set_attempt(attempt.number.value());
  if (attempt.checkpoint) *launched->mutable_checkpoint() = *attempt.checkpoint;
  launched->set_master_addr(attempt.master_addr);
  launched->set_master_port(attempt.master_port);
  adopted->set_launched_unix_ns(absl::ToUnixNanos(attempt.launched_at));
  for (const v1::Checkpoint& checkpoint : job.poisoned) *adopted->add_poisoned() = checkpoint;
  for (const v1::Alarm& alarm : job.alarms) *adopted->add_alarms() = alarm;
  if (job.loaded_before) {
    *adopted->mutable_loaded_before() = job.loaded_before->checkpoint;
    adopted->set_lived_before_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(job.loaded_before->lived)));
  }
  if (job.failed_at != absl::InfinitePast()) adopted->set_failed_unix_ns(absl::ToUnixNanos(job.failed_at));
  for (const absl::Duration took : job.restarts_took) {
    adopted->add_restart_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(took)));
  }
  adopted->set_never_launched(job.never_launched);

  v1::JobCapsule capsule;
  capsule.set_cluster_id(state.cluster_id);
  capsule.set_term(state.term);
  capsule.set_job_id(job.id.str());
  capsule.set_attempt(attempt.number.value());
  capsule.set_record(record.SerializeAsString());
  return capsule;
}

Job AsOnNode(const State& state, const Job& job, const NodeId& id) {
  Job view = job;
  const Node* node = FindNode(state, id);
  if (node == nullptr || !node->offer) return view;
  const v1::JobSpec& own = node->offer->spec();
  *view.spec.mutable_argv() = own.argv();
  view.spec.set_script(own.script());
  view.spec.set_cwd(own.cwd());
  *view.spec.mutable_env_names() = own.env_names();
  view.spec.set_omp_threads_set(own.omp_threads_set());
  view.spec.set_visible_devices_set(own.visible_devices_set());
  return view;
}

std::optional<v1::Why> NodesStayedAway(const State& state, const Contacts& contacts, const Job& job,
                                       absl::Time now) {
  const auto& peers = contacts.config.peers;
  if (!peers || peers->join_timeout == absl::ZeroDuration() || !job.attempt) return std::nullopt;
  // A restart sets not_before: what came since was waiting.
  if (job.not_before == absl::InfinitePast() || now - job.not_before <= peers->join_timeout)
    return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [id, node] : state.nodes) {
    if (node->phase == NodePhase::kUp && IsConnected(contacts, id)) names.push_back(node->name);
  }
  v1::Why why;
  why.set_cause(v1::CAUSE_NODE_LOST);
  why.set_rank(-1);
  why.set_attempt(job.attempt->number.value());
  const bool lost = job.why.cause() == v1::CAUSE_NODE_LOST;
  if (lost) why.set_node(job.why.node());
  why.set_detail(absl::StrCat(lost ? job.why.detail() + "; " : "", "only ", names.size(), " of ",
                              job.spec.nodes(), " nodes were there for the next attempt within ",
                              absl::FormatDuration(peers->join_timeout), " (--join-timeout)",
                              names.empty() ? "" : ": ", absl::StrJoin(names, ", ")));
  return why;
}

void ApplyJobAdopted(State* state, const v1::JobAdopted& r) {
  Job job;
  job.id = JobId(r.job_id());
  job.number = r.number();
  job.key = r.key();
  job.spec = r.spec();
  job.phase = Job::Phase::kActive;
  job.next_attempt = AttemptNo(r.placed().attempt()).Next();
  job.placements.assign(r.placements().begin(), r.placements().end());
  job.last_master_port = r.last_master_port();
  job.restarts = r.restarts();
  job.short_failures = r.short_failures();
  job.why = r.why();
  job.submitted_at = absl::FromUnixNanos(r.submitted_unix_ns());
  job.poisoned.assign(r.poisoned().begin(), r.poisoned().end());
  job.alarms.assign(r.alarms().begin(), r.alarms().end());
  if (r.has_loaded_before()) {
    job.loaded_before = Loaded{r.loaded_before(), absl::Milliseconds(r.lived_before_ms())};
  }
  if (r.failed_unix_ns() != 0) job.failed_at = absl::FromUnixNanos(r.failed_unix_ns());
  for (const uint64_t took : r.restart_ms()) {
    if (job.restarts_took.size() < kMaxRestartsTook) job.restarts_took.push_back(absl::Milliseconds(took));
  }
  job.never_launched = r.never_launched();
  for (const v1::Placement& placement : job.placements) {
    for (const v1::PlacedNodeName& node : placement.nodes()) job.nodes_used.insert(NodeId(node.node_id()));
  }
  Attempt attempt;
  attempt.number = AttemptNo(r.placed().attempt());
  attempt.phase = Attempt::Phase::kLaunching;
  attempt.launched = true;
  attempt.launched_at = absl::FromUnixNanos(r.launched_unix_ns());
  attempt.placed_at = attempt.launched_at;
  if (r.launched().has_checkpoint()) attempt.checkpoint = r.launched().checkpoint();
  attempt.master_addr = r.launched().master_addr();
  attempt.master_port = r.launched().master_port();
  for (const v1::PlacedNode& placed : r.placed().nodes()) {
    AttemptNode share;
    share.node = NodeId(placed.node_id());
    share.name = placed.name();
    share.placed = placed;
    share.phase = AttemptNode::Phase::kPrepared;
    job.nodes_used.insert(share.node);
    attempt.nodes.emplace_back(std::move(share));
  }
  job.attempt = std::move(attempt);
  state->last_job_number = std::max(state->last_job_number, r.number());
  state->keys[{r.spec().owner().uid(), r.key()}] = job.id;
  const JobId id = job.id;
  state->jobs[id] = Cow<Job>(std::move(job));
}

void ApplyJobDropped(State* state, const v1::JobDropped& r) {
  const JobId id(r.job_id());
  state->jobs.erase(id);
  for (auto it = state->keys.begin(); it != state->keys.end();) {
    it = it->second == id ? state->keys.erase(it) : std::next(it);
  }
}

}  // namespace dgxrun::core
