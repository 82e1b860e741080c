#include "controller/core/plan.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "controller/core/checkpoints.h"

namespace dgxrun::core {
namespace {

using Vars = google::protobuf::RepeatedPtrField<v1::EnvVar>;

void Set(Vars* vars, const std::string& name, const std::string& value) {
  v1::EnvVar* var = vars->Add();
  var->set_name(name);
  var->set_value(value);
}

bool CallerSets(const Job& job, const std::string& name) {
  const auto& names = job.spec.env_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

void SetTorch(const Job& job, const Attempt& attempt, size_t index, Vars* vars) {
  const std::string nodes = absl::StrCat(attempt.nodes.size());
  const std::string world = absl::StrCat(attempt.nodes.size() * job.spec.ranks_per_node());
  Set(vars, "MASTER_ADDR", attempt.master_addr);
  Set(vars, "MASTER_PORT", absl::StrCat(attempt.master_port));
  Set(vars, "WORLD_SIZE", world);
  Set(vars, "LOCAL_WORLD_SIZE", absl::StrCat(job.spec.ranks_per_node()));
  Set(vars, "GROUP_RANK", absl::StrCat(index));
  Set(vars, "GROUP_WORLD_SIZE", nodes);
  Set(vars, "ROLE_NAME", "default");
  Set(vars, "ROLE_WORLD_SIZE", world);
  Set(vars, "TORCHELASTIC_RESTART_COUNT", absl::StrCat(attempt.number.value()));
  Set(vars, "TORCHELASTIC_MAX_RESTARTS", absl::StrCat(job.spec.max_restarts()));
  Set(vars, "TORCHELASTIC_RUN_ID", job.id.str());
  Set(vars, "TORCHELASTIC_USE_AGENT_STORE", "False");
  Set(vars, "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");  // torchrun's default
  if (!CallerSets(job, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) Set(vars, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

void SetOurs(const Job& job, const Attempt& attempt, const AttemptNode& share, Vars* vars) {
  Set(vars, "DGXRUN_JOB_ID", job.id.str());
  Set(vars, "DGXRUN_ATTEMPT", absl::StrCat(attempt.number.value()));
  Set(vars, "DGXRUN_NODE", share.name);
  if (!attempt.checkpoint) return;
  Set(vars, "DGXRUN_RESUME_FROM", attempt.checkpoint->path());
  if (attempt.checkpoint->step() >= 0)
    Set(vars, "DGXRUN_RESUME_STEP", absl::StrCat(attempt.checkpoint->step()));
}

void SetMachine(const Config& config, const Job& job, const AttemptNode& share, Vars* vars) {
  if (!job.spec.omp_threads_set() && !CallerSets(job, "OMP_NUM_THREADS")) {
    const uint32_t threads = std::max(1u, share.placed.allowed_cores() / job.spec.ranks_per_node());
    Set(vars, "OMP_NUM_THREADS", absl::StrCat(threads));
  }
  if (!job.spec.visible_devices_set() && !CallerSets(job, "CUDA_VISIBLE_DEVICES")) {
    if (share.placed.gpu_uuids_size() > 0) {
      Set(vars, "CUDA_VISIBLE_DEVICES", absl::StrJoin(share.placed.gpu_uuids(), ","));
    } else if (share.placed.hide_gpus()) {
      Set(vars, "CUDA_VISIBLE_DEVICES", "");
    }
  }
  // What the caller chose for this job stands above what the cluster file says for all.
  for (const auto& [name, value] : config.nccl) {
    if (!CallerSets(job, name)) Set(vars, name, value);
  }
}

// Empty: neither its name nor its content holds one.
std::string Step(const Attempt& attempt) {
  return attempt.checkpoint->step() >= 0 ? absl::StrCat(attempt.checkpoint->step()) : "";
}

bool IsLocalPeer(const std::string& address) {
  return address.empty() || absl::StartsWith(address, "127.") || address == "::1" ||
         absl::StartsWith(address, "::ffff:127.");
}

}  // namespace

v1::NodePlan BuildNodePlan(const Config& config, const Job& job, const Attempt& attempt, size_t index) {
  const AttemptNode& share = *attempt.nodes[index];
  v1::NodePlan plan;
  *plan.mutable_owner() = job.spec.owner();
  *plan.mutable_argv() = job.spec.argv();
  if (attempt.checkpoint) {
    for (const std::string& word : job.spec.resume_args()) {
      plan.add_argv(
          absl::StrReplaceAll(word, {{"{}", attempt.checkpoint->path()}, {"{step}", Step(attempt)}}));
    }
  }
  plan.set_cwd(job.spec.cwd());
  plan.set_grace_ms(job.spec.grace_ms());
  plan.set_job_name(job.spec.name());
  plan.set_inherit_terminal(job.spec.inherit_terminal());
  plan.set_ckpt_dir(job.spec.ckpt_dir());
  if (job.spec.has_ckpt()) *plan.mutable_ckpt() = job.spec.ckpt();
  if (index == 0) plan.set_held_port(attempt.master_port);
  SetTorch(job, attempt, index, plan.mutable_common_env());
  SetOurs(job, attempt, share, plan.mutable_common_env());
  SetMachine(config, job, share, plan.mutable_common_env());
  const uint32_t per_node = job.spec.ranks_per_node();
  for (uint32_t local = 0; local < per_node; ++local) {
    v1::RankPlan* rank = plan.add_ranks();
    const uint32_t global = static_cast<uint32_t>(index) * per_node + local;
    rank->set_rank(global);
    rank->set_local_rank(local);
    Set(rank->mutable_env(), "RANK", absl::StrCat(global));
    Set(rank->mutable_env(), "LOCAL_RANK", absl::StrCat(local));
    Set(rank->mutable_env(), "ROLE_RANK", absl::StrCat(global));
  }
  return plan;
}

v1::Prepare BuildPrepare(const Job& job, const Attempt& attempt, bool second) {
  v1::Prepare prepare;
  prepare.set_job_id(job.id.str());
  prepare.set_attempt(attempt.number.value());
  *prepare.mutable_owner() = job.spec.owner();
  prepare.set_cwd(job.spec.cwd());
  prepare.set_script(job.spec.script());
  prepare.set_ckpt_dir(job.spec.ckpt_dir());
  prepare.set_program(job.spec.argv(0));
  if (second) {
    const CheckpointChoice choice = ChooseCheckpoint(job, attempt);
    prepare.set_resume(choice.checkpoint ? choice.checkpoint->path() : kResumeNothing);
    for (const v1::Checkpoint& aside : choice.aside) {
      prepare.add_poisoned(aside.path());
      prepare.add_poisoned_mtime_unix_ns(aside.mtime_unix_ns());
    }
  } else {
    for (const v1::Checkpoint& poisoned : job.poisoned) prepare.add_poisoned(poisoned.path());
    const uint32_t least = job.spec.min_nodes() > 0 ? job.spec.min_nodes() : job.spec.nodes();
    for (uint32_t nodes = least; nodes <= job.spec.nodes(); ++nodes) {
      prepare.add_world_sizes(nodes * job.spec.ranks_per_node());
    }
  }
  return prepare;
}

std::string MasterAddress(const State& state, const Attempt& attempt, const std::string& own_host) {
  const Node* first = FindNode(state, attempt.nodes[0]->node);
  if (first == nullptr) return "";
  bool one_machine = true;
  for (const auto& share : attempt.nodes) {
    const Node* node = FindNode(state, share->node);
    one_machine =
        one_machine && node != nullptr && IsLocalPeer(node->peer_address) && node->boot_id == first->boot_id;
  }
  if (one_machine) return "127.0.0.1";
  if (!IsLocalPeer(first->peer_address)) return first->peer_address;
  if (!own_host.empty()) return own_host;
  return first->inventory.addresses_size() > 0 ? first->inventory.addresses(0) : "";
}

uint32_t MasterPort(const State& state, const Contacts& contacts, const Job& job, const Attempt& attempt) {
  const NodeId& first = attempt.nodes[0]->node;
  auto contact = contacts.nodes.find(first);
  if (contact == contacts.nodes.end()) return 0;
  std::set<uint32_t> used;
  for (const auto& [id, other] : state.jobs) {
    const Attempt* live = LiveAttempt(*other);
    if (live != nullptr && live->nodes[0]->node == first) used.insert(live->master_port);
  }
  uint32_t last_resort = 0;
  for (uint32_t port : contact->second.free_ports) {
    if (port == 0 || used.count(port) > 0) continue;
    if (port != job.last_master_port) return port;
    last_resort = port;
  }
  return last_resort;
}

}  // namespace dgxrun::core
