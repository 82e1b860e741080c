#include "controller/core/invariants.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dgxrun::core {
namespace {

absl::Status BrokenIn(const std::string& where, const std::string& what) {
  return absl::InternalError(absl::StrCat(where, ": ", what));
}

absl::Status CheckAttempt(const Job& job, const Attempt& attempt) {
  const std::string& where = job.id.str();
  if (attempt.number >= job.next_attempt) return BrokenIn(where, "attempt number not used up");
  const size_t least = job.spec.min_nodes() > 0 ? job.spec.min_nodes() : job.spec.nodes();
  if (attempt.nodes.size() < least || attempt.nodes.size() > job.spec.nodes()) {
    return BrokenIn(where, "wrong number of nodes");
  }
  if (attempt.launched && (attempt.master_addr.empty() || attempt.master_port == 0)) {
    return BrokenIn(where, "launched without master address or port");
  }
  std::set<NodeId> nodes;
  const uint32_t per_node = job.spec.ranks_per_node();
  for (size_t i = 0; i < attempt.nodes.size(); ++i) {
    const AttemptNode& share = *attempt.nodes[i];
    if (!nodes.insert(share.node).second) return BrokenIn(where, "a node twice in one attempt");
    if (!job.on_cpu() && share.placed.gpus_size() != static_cast<int>(per_node)) {
      return BrokenIn(where, "wrong number of GPUs");
    }
    for (const auto& [rank, info] : share.ranks) {
      if (rank / per_node != i) return BrokenIn(where, "a rank on the wrong node");
    }
    const bool early =
        share.phase == AttemptNode::Phase::kStarted || share.phase == AttemptNode::Phase::kGone;
    if (early && !attempt.launched) return BrokenIn(where, "ranks before the launch");
    if (attempt.phase == Attempt::Phase::kEnded && attempt.launched &&
        share.phase != AttemptNode::Phase::kGone) {
      return BrokenIn(where, "attempt ended while ranks may live");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const State& state, const Job& job) {
  const std::string& where = job.id.str();
  if (job.number == 0 || job.number > state.last_job_number) return BrokenIn(where, "number out of range");
  if (job.restarts > job.spec.max_restarts()) return BrokenIn(where, "restart budget exceeded");
  if (job.next_attempt.value() > job.restarts + job.never_launched + 1)
    return BrokenIn(where, "an attempt without a restart");
  if (job.spec.ranks_per_node() == 0 || job.spec.nodes() == 0) return BrokenIn(where, "spec not resolved");
  const Attempt* live = LiveAttempt(job);
  if ((live != nullptr) != (job.phase == Job::Phase::kActive))
    return BrokenIn(where, "phase and attempt differ");
  if (job.phase == Job::Phase::kEnded && !IsEnded(job.end_state))
    return BrokenIn(where, "ended without a state");
  auto key = state.keys.find({job.spec.owner().uid(), job.key});
  if (key == state.keys.end() || key->second != job.id) return BrokenIn(where, "submit key lost");
  return job.attempt ? CheckAttempt(job, *job.attempt) : absl::OkStatus();
}

// Orders as 1, 2, 3 ... within the attempt: archiving other jobs shortens the log, and so shifts the
// positions that a replay gives, but never their order.
std::map<uint64_t, size_t> Ordinals(const Attempt& attempt) {
  std::map<uint64_t, size_t> ordinals{{0, 0}};
  for (const Fault& fault : attempt.faults) ordinals[fault.order] = 0;
  for (const auto& share : attempt.nodes) {
    for (const auto& [rank, info] : share->ranks) ordinals[info.order] = 0;
  }
  size_t next = 0;
  for (auto& [order, ordinal] : ordinals) ordinal = next++;
  return ordinals;
}

std::string DumpAttempt(const Attempt& attempt) {
  const std::map<uint64_t, size_t> ordinals = Ordinals(attempt);
  std::string out =
      absl::StrCat(" attempt ", attempt.number.value(), " phase ", static_cast<int>(attempt.phase),
                   " launched ", attempt.launched, " ", attempt.master_addr, ":", attempt.master_port,
                   " stop ", attempt.stop_cause, " grace ", attempt.grace_ms, " at ",
                   absl::ToUnixNanos(attempt.placed_at), "/", absl::ToUnixNanos(attempt.launched_at), "/",
                   absl::ToUnixNanos(attempt.started_at), "/", absl::ToUnixNanos(attempt.stopping_at), "\n");
  if (attempt.checkpoint) absl::StrAppend(&out, "  from ", attempt.checkpoint->ShortDebugString(), "\n");
  for (const Fault& fault : attempt.faults) {
    absl::StrAppend(&out, "  fault ", fault.cause, " ", fault.node.str(), " rank ", fault.rank, " order ",
                    ordinals.at(fault.order), " after ", fault.after_stop, " ", fault.detail, "\n");
  }
  for (const auto& share : attempt.nodes) {
    absl::StrAppend(&out, "  node ", share->node.str(), " phase ", static_cast<int>(share->phase), " placed ",
                    share->placed.ShortDebugString(), " log ", share->log_dir, " fenced ", share->fenced,
                    " cause ", share->gone_cause, " ", share->gone_detail, "\n");
    if (share->checkpoint) absl::StrAppend(&out, "   found ", share->checkpoint->ShortDebugString(), "\n");
    for (const auto& [rank, info] : share->ranks) {
      absl::StrAppend(&out, "   rank ", rank, " order ", ordinals.at(info.order), " by_gone ",
                      info.told_by_gone, " ", info.report.ShortDebugString(), "\n");
    }
  }
  return out;
}

}  // namespace

absl::Status CheckInvariants(const State& state) {
  std::map<std::pair<NodeId, uint32_t>, JobId> gpus, ports;
  for (const auto& [id, job] : state.jobs) {
    if (absl::Status status = CheckJob(state, *job); !status.ok()) return status;
    const Attempt* live = LiveAttempt(*job);
    if (live == nullptr) continue;
    for (const auto& share : live->nodes) {
      if (share->phase == AttemptNode::Phase::kGone) continue;
      for (uint32_t gpu : share->placed.gpus()) {
        auto [it, fresh] = gpus.insert({{share->node, gpu}, id});
        if (!fresh) return BrokenIn(id.str(), absl::StrCat("GPU held by ", it->second.str(), " too"));
      }
    }
    if (!live->launched) continue;
    auto [it, fresh] = ports.insert({{live->nodes[0]->node, live->master_port}, id});
    if (!fresh) return BrokenIn(id.str(), absl::StrCat("port held by ", it->second.str(), " too"));
  }
  std::map<std::string, NodeId> names;
  for (const auto& [id, node] : state.nodes) {
    if (!names.insert({node->name, id}).second) return BrokenIn(id.str(), "node name used twice");
  }
  return absl::OkStatus();
}

std::string DumpState(const State& state) {
  std::string out =
      absl::StrCat("cluster ", state.cluster_id, " term ", state.term, " jobs ", state.last_job_number, "\n");
  for (const auto& [id, node] : state.nodes) {
    absl::StrAppend(&out, "node ", id.str(), " ", node->name, " boot ", node->boot_id, " peer ",
                    node->peer_address, " phase ", static_cast<int>(node->phase), " user ", node->agent_user,
                    " witness ", node->witness, " committee ", node->committee, " ", node->release, " ",
                    node->inventory.ShortDebugString(),
                    node->offer ? absl::StrCat(" offers ", node->offer->ShortDebugString()) : "", "\n");
  }
  for (const auto& [number, committee] : state.committees) {
    absl::StrAppend(&out, "committee ", committee.ShortDebugString(), "\n");
  }
  for (const auto& [id, job] : state.jobs) {
    absl::StrAppend(
        &out, "job ", id.str(), " key ", job->key, " phase ", static_cast<int>(job->phase), " next ",
        job->next_attempt.value(), " restarts ", job->restarts, " short ", job->short_failures,
        " never launched ", job->never_launched, " failed at ", absl::ToUnixNanos(job->failed_at),
        " restarts took ",
        absl::StrJoin(
            job->restarts_took, " ",
            [](std::string* out, absl::Duration took) { absl::StrAppend(out, absl::FormatDuration(took)); }),
        " not before ", absl::ToUnixNanos(job->not_before), " state ", job->end_state, " code ",
        job->exit_code, " why ", job->why.ShortDebugString(), " spec ", job->spec.ShortDebugString(), "\n");
    if (job->stop) {
      absl::StrAppend(&out, " stop ", job->stop->user, " ", job->stop->reason, " ",
                      job->stop->grace_ms ? absl::StrCat(*job->stop->grace_ms) : "-", "\n");
    }
    for (const v1::Placement& placement : job->placements) {
      absl::StrAppend(&out, " ran on ", placement.ShortDebugString(), "\n");
    }
    if (job->attempt) absl::StrAppend(&out, DumpAttempt(*job->attempt));
  }
  for (const auto& [key, id] : state.keys) {
    absl::StrAppend(&out, "key ", key.first, " ", key.second, " ", id.str(), "\n");
  }
  return out;
}

}  // namespace dgxrun::core
