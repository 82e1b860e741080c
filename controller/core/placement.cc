#include "controller/core/placement.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/ckpt/reshard.h"
#include "controller/core/checkpoints.h"
#include "controller/core/progress.h"
#include "controller/core/strays.h"

namespace dgxrun::core {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string Plural(size_t n, const char* word) { return absl::StrCat(n, " ", word, n == 1 ? "" : "s"); }

// In the order of ranks: peers say their places; then by name.
std::vector<const Node*> NodesByName(const State& state) {
  std::vector<const Node*> nodes;
  for (const auto& [id, node] : state.nodes) nodes.push_back(&*node);
  const auto place = [](const Node* node) { return node->offer ? node->offer->order() : 0; };
  std::sort(nodes.begin(), nodes.end(), [&](const Node* a, const Node* b) {
    if (place(a) != place(b)) return place(a) < place(b);
    if (a->name != b->name) return NaturalLess(a->name, b->name);
    return a->id < b->id;
  });
  return nodes;
}

// Up, connected, able to run the owner's ranks and free of strays.
bool IsReady(const State& state, const Contacts& contacts, const Job& job, const Node& node) {
  return node.phase == NodePhase::kUp && IsConnected(contacts, node.id) &&
         MayRunOwner(node, job.spec.owner()) && !HasStrays(state, contacts, node.id);
}

std::vector<const v1::Gpu*> FreeGpus(const State& state, const Node& node) {
  const std::set<uint32_t> used = GpusInUse(state, node.id);
  std::vector<const v1::Gpu*> free;
  for (const v1::Gpu& gpu : node.inventory.gpus()) {
    if (used.count(gpu.index()) == 0) free.push_back(&gpu);
  }
  return free;
}

// The job's share on a node that is ready, or nullopt where too few GPUs are free.
std::optional<v1::PlacedNode> ShareOn(const State& state, const Job& job, const Node& node) {
  v1::PlacedNode placed;
  placed.set_node_id(node.id.str());
  placed.set_name(node.name);
  placed.set_allowed_cores(node.inventory.allowed_cores());
  if (job.on_cpu()) {
    placed.set_hide_gpus(node.inventory.gpus_size() > 0);
    return placed;
  }
  const auto free = FreeGpus(state, node);
  if (free.size() < job.spec.ranks_per_node()) return std::nullopt;
  for (size_t i = 0; i < job.spec.ranks_per_node(); ++i) {
    placed.add_gpus(free[i]->index());
    if (!free[i]->uuid().empty()) placed.add_gpu_uuids(free[i]->uuid());
  }
  if (placed.gpu_uuids_size() != placed.gpus_size()) placed.clear_gpu_uuids();
  return placed;
}

std::string WantedText(const Job& job) {
  std::string text = Plural(job.spec.nodes(), "node");
  if (!job.on_cpu()) absl::StrAppend(&text, " with ", Plural(job.spec.ranks_per_node(), "free GPU"));
  return text;
}

// Nodes of the previous attempt that live but are not to be had this moment; the job waits for them, so
// that a restarting agent does not move it.
std::string Unreachable(const State& state, const Contacts& contacts, const Attempt& previous) {
  for (const auto& share : previous.nodes) {
    const Node* node = FindNode(state, share->node);
    if (node != nullptr && node->phase == NodePhase::kUp && !IsConnected(contacts, node->id)) {
      return absl::StrCat("node ", node->name, " to answer");
    }
  }
  return "";
}

// The newest complete checkpoint that is known before the nodes are asked again.
std::optional<v1::Checkpoint> NewestKnown(const Contacts& contacts, const Job& job) {
  if (!job.attempt->launched) return ChooseCheckpoint(job, *job.attempt).checkpoint;  // its nodes have looked
  const v1::Progress progress = DescribeProgress(contacts, job);
  if (!progress.has_newest()) return std::nullopt;
  return progress.newest();
}

// --elastic: an attempt of a job that has lost a node may have fewer, if what it would load can be loaded so.
// Not because its nodes are busy: those come back. Adds to `waiting_for` why it may not.
bool MayShrink(const State& state, const Contacts& contacts, const Job& job, size_t nodes,
               std::string* waiting_for) {
  if (job.spec.min_nodes() == 0 || !job.attempt || nodes == 0) return false;
  if (nodes < job.spec.min_nodes()) {
    absl::StrAppend(waiting_for, "; --elastic allows ", job.spec.min_nodes());
    return false;
  }
  const bool lost = std::any_of(job.attempt->nodes.begin(), job.attempt->nodes.end(), [&](const auto& share) {
    const Node* node = FindNode(state, share->node);
    return node == nullptr || node->phase != NodePhase::kUp;
  });
  const bool was_smaller = job.attempt->nodes.size() < job.spec.nodes();
  if (!lost && !was_smaller) return false;
  const std::optional<v1::Checkpoint> newest = NewestKnown(contacts, job);
  if (!newest) return true;  // it begins anew
  if (newest->verdict() == v1::VERDICT_COMPLETE &&
      !LiesWholeOnOneNode(*job.attempt, ProgressOf(contacts, job), *newest)) {
    absl::StrAppend(waiting_for, "; fewer cannot load ", newest->path(),
                    ": each node has a part of it on its own disk");
    return false;
  }
  const agent::ckpt::ReshardAnswer answer = agent::ckpt::CanLoadAtOtherWorldSize(newest->format());
  switch (answer.answer) {
    case agent::ckpt::Reshard::kYes:
    case agent::ckpt::Reshard::kNotKnown:  // the user, who asked for it, knows the script
      return true;
    case agent::ckpt::Reshard::kNo:
      absl::StrAppend(waiting_for, "; fewer cannot load ", newest->path(), ": ", answer.reason);
      return false;
  }
  return false;
}

}  // namespace

bool NaturalLess(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (IsDigit(a[i]) && IsDigit(b[j])) {
      size_t ei = i, ej = j;
      while (ei < a.size() && IsDigit(a[ei])) ++ei;
      while (ej < b.size() && IsDigit(b[ej])) ++ej;
      size_t si = i, sj = j;
      while (si + 1 < ei && a[si] == '0') ++si;
      while (sj + 1 < ej && b[sj] == '0') ++sj;
      if (ei - si != ej - sj) return ei - si < ej - sj;
      const int order = a.compare(si, ei - si, b, sj, ej - sj);
      if (order != 0) return order < 0;
      i = ei;
      j = ej;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (i < a.size() || j < b.size()) return i == a.size();
  return a < b;  // equal but for leading zeros: any total order
}

std::set<uint32_t> GpusInUse(const State& state, const NodeId& node) {
  std::set<uint32_t> used;
  for (const auto& [id, job] : state.jobs) {
    const Attempt* attempt = LiveAttempt(*job);
    if (attempt == nullptr) continue;
    const AttemptNode* share = FindShare(*attempt, node);
    if (share == nullptr || share->phase == AttemptNode::Phase::kGone) continue;
    used.insert(share->placed.gpus().begin(), share->placed.gpus().end());
  }
  return used;
}

bool MayRunOwner(const Node& node, const v1::Owner& owner) {
  if (node.offer) return true;  // a peer runs its own command as its own account
  return node.agent_user == "root" || node.agent_user == owner.user();
}

bool HasStrays(const State& state, const Contacts& contacts, const NodeId& node) {
  auto it = contacts.nodes.find(node);
  if (it == contacts.nodes.end()) return false;
  for (const auto& [key, phase] : it->second.attempts) {
    if (phase == v1::ATTEMPT_PHASE_GONE) continue;
    if (ClassifyAttempt(state, node, key.first, key.second) != AttemptKind::kPlaced) return true;
  }
  return false;
}

Placement Place(const State& state, const Contacts& contacts, const Job& job) {
  Placement result;
  std::vector<v1::PlacedNode> slots(job.spec.nodes());
  std::vector<bool> filled(slots.size(), false);
  std::set<NodeId> taken;
  if (job.attempt) {  // its nodes of before, at their places
    result.waiting_for = Unreachable(state, contacts, *job.attempt);
    if (!result.waiting_for.empty()) return result;
    for (size_t i = 0; i < job.attempt->nodes.size() && i < slots.size(); ++i) {
      const Node* node = FindNode(state, job.attempt->nodes[i]->node);
      if (node == nullptr || !IsReady(state, contacts, job, *node)) continue;
      if (auto share = ShareOn(state, job, *node)) {
        slots[i] = *share;
        filled[i] = true;
        taken.insert(node->id);
      }
    }
  }
  size_t next = 0;
  for (const Node* node : NodesByName(state)) {
    while (next < slots.size() && filled[next]) ++next;
    if (next == slots.size()) break;
    if (taken.count(node->id) > 0 || !IsReady(state, contacts, job, *node)) continue;
    if (auto share = ShareOn(state, job, *node)) {
      slots[next] = *share;
      filled[next] = true;
      taken.insert(node->id);
    }
  }
  if (std::all_of(filled.begin(), filled.end(), [](bool f) { return f; })) {
    result.nodes = std::move(slots);
    return result;
  }
  result.waiting_for = absl::StrCat(WantedText(job), " (", taken.size(), " now)");
  if (!MayShrink(state, contacts, job, taken.size(), &result.waiting_for)) return result;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (filled[i]) result.nodes.push_back(std::move(slots[i]));
  }
  result.waiting_for.clear();
  return result;
}

namespace {

// What is wrong in itself, whatever the cluster holds.
absl::Status CheckShape(const v1::JobSpec& spec) {
  // Words that would let one request fill memory or the log; far above anything in use.
  constexpr uint32_t kMaxNodes = 4096, kMaxRanksPerNode = 1024;
  if (spec.nodes() == 0 || spec.nodes() > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat("nodes must be 1 to ", kMaxNodes, ", not ", spec.nodes()));
  }
  if (spec.ranks_per_node() > kMaxRanksPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks per node must be at most ", kMaxRanksPerNode, ", not ", spec.ranks_per_node()));
  }
  if (spec.min_nodes() > spec.nodes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--elastic ", spec.min_nodes(), ": more than the ", spec.nodes(), " nodes asked for"));
  }
  if (spec.argv_size() == 0 || spec.argv(0).empty())
    return absl::InvalidArgumentError("the command is empty");
  if (!spec.name().empty() && !IsValidName(spec.name())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's name '", spec.name(), "' must match [A-Za-z0-9._-]{1,64}"));
  }
  if (spec.cwd().empty() || spec.cwd()[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the working folder must be an absolute path, not '", spec.cwd(), "'"));
  }
  if (!spec.ckpt_dir().empty() && spec.ckpt_dir()[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint folder must be an absolute path, not '", spec.ckpt_dir(), "'"));
  }
  return absl::OkStatus();
}

std::string Names(const std::vector<const Node*>& nodes) {
  return absl::StrJoin(nodes, ", ",
                       [](std::string* out, const Node* node) { absl::StrAppend(out, node->name); });
}

bool HasNvidia(const Node& node) { return node.inventory.gpus_size() > 0 || node.inventory.pci_gpus() > 0; }

// Of a node whose GPUs do not do for the job: "node dgx-2: driver not loaded", "node dgx-3 has 4 GPUs".
std::string Lack(const Node& node) {
  const v1::Inventory& inventory = node.inventory;
  if (inventory.gpus_size() == 0 && !inventory.gpu_error().empty()) {
    return absl::StrCat("node ", node.name, ": ", inventory.gpu_error());
  }
  std::string text = absl::StrCat("node ", node.name, " has ", Plural(inventory.gpus_size(), "GPU"));
  if (!inventory.gpu_error().empty()) {
    absl::StrAppend(&text, " (", inventory.gpu_error(), ")");
  } else if (!inventory.declared() && static_cast<uint32_t>(inventory.gpus_size()) < inventory.pci_gpus()) {
    absl::StrAppend(&text, " (", inventory.pci_gpus(), " are on the PCI bus)");
  }
  return text;
}

absl::Status ResolveAll(const std::vector<const Node*>& nodes, v1::JobSpec* spec) {
  std::vector<const Node*> with;
  for (const Node* node : nodes) {
    if (node->inventory.gpus_size() > 0) with.push_back(node);
  }
  if (with.empty()) {
    std::vector<std::string> lacks;
    for (const Node* node : nodes) {
      if (HasNvidia(*node)) lacks.push_back(Lack(*node));
    }
    return absl::FailedPreconditionError(lacks.empty() ? "-g all: no node has a GPU; give a number"
                                                       : absl::StrJoin(lacks, "; "));
  }
  for (const Node* node : nodes) {
    const bool broken = node->inventory.gpus_size() == 0 && node->inventory.pci_gpus() > 0;
    if (broken) return absl::FailedPreconditionError(Lack(*node));
  }
  for (const Node* node : with) {
    if (node->inventory.gpus_size() == with[0]->inventory.gpus_size()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("-g all: nodes differ: ", Lack(*with[0]), ", ", Lack(*node), "; give a number"));
  }
  spec->set_ranks_per_node(with[0]->inventory.gpus_size());
  return absl::OkStatus();
}

absl::Status CheckGpus(const std::vector<const Node*>& nodes, const v1::JobSpec& spec) {
  size_t able = 0;
  std::vector<std::string> lacks;
  for (const Node* node : nodes) {
    if (static_cast<uint32_t>(node->inventory.gpus_size()) >= spec.ranks_per_node()) {
      ++able;
    } else {
      lacks.push_back(Lack(*node));
    }
  }
  if (able >= spec.nodes()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(Plural(spec.nodes(), "node"), " with ",
                                                    Plural(spec.ranks_per_node(), "GPU"),
                                                    " asked for: ", absl::StrJoin(lacks, "; ")));
}

// Of a local job whose node has not said hello: the client has looked at this machine itself.
absl::Status ResolveUnseen(v1::JobSpec* spec) {
  if (spec->ranks_per_node() == 0) return absl::InvalidArgumentError("a local job must name its ranks");
  if (spec->nodes() != 1) return absl::InvalidArgumentError("a local job has one node");
  if (spec->device() != v1::DEVICE_GPU) spec->set_device(v1::DEVICE_CPU);
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveSpec(const State& state, const Contacts& contacts, v1::JobSpec* spec) {
  if (absl::Status shape = CheckShape(*spec); !shape.ok()) return shape;
  const std::vector<const Node*> all = NodesByName(state);
  if (all.empty() && contacts.config.node_comes_with_job) return ResolveUnseen(spec);
  if (all.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no agent has ever connected to ", contacts.config.cluster_name));
  }
  if (spec->nodes() > all.size()) {
    return absl::FailedPreconditionError(absl::StrCat(Plural(spec->nodes(), "node"), " asked for, ",
                                                      contacts.config.cluster_name, " has ", all.size(), ": ",
                                                      Names(all)));
  }
  std::vector<const Node*> able;
  std::vector<std::string> unable;
  for (const Node* node : all) {
    if (MayRunOwner(*node, spec->owner())) {
      able.push_back(node);
    } else {
      unable.push_back(absl::StrCat("node ", node->name, ": its agent runs as ", node->agent_user));
    }
  }
  if (spec->nodes() > able.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("jobs of ", spec->owner().user(), " cannot run: ", absl::StrJoin(unable, "; ")));
  }
  const bool any_gpu = std::any_of(able.begin(), able.end(), [](const Node* n) { return HasNvidia(*n); });
  const bool gpu = spec->device() == v1::DEVICE_GPU || (spec->device() != v1::DEVICE_CPU && any_gpu);
  spec->set_device(gpu ? v1::DEVICE_GPU : v1::DEVICE_CPU);
  if (spec->ranks_per_node() == 0) {
    if (absl::Status resolved = ResolveAll(able, spec); !resolved.ok()) return resolved;
  }
  return gpu ? CheckGpus(able, *spec) : absl::OkStatus();
}

}  // namespace dgxrun::core
