// Status: the state as a person sees it. The only place where phases become JobState.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/core/check.h"
#include "controller/core/checkpoints.h"
#include "controller/core/committee.h"
#include "controller/core/core.h"
#include "controller/core/placement.h"
#include "controller/core/progress.h"
#include "controller/core/strays.h"
#include "controller/core/verdict.h"

namespace dgxrun::core {
namespace {

// 0 for "never", whatever absl makes of an infinite time.
int64_t NanosOrZero(absl::Time time) { return time == absl::InfinitePast() ? 0 : absl::ToUnixNanos(time); }

v1::NodeState NodeStateOf(const Contacts& contacts, const Node& node) {
  switch (node.phase) {
    case NodePhase::kLost:
      return v1::NODE_STATE_LOST;
    case NodePhase::kFenced:
      return v1::NODE_STATE_FENCED;
    case NodePhase::kUp:
      break;
  }
  return contacts.nodes.count(node.id) > 0 ? v1::NODE_STATE_UP : v1::NODE_STATE_UNKNOWN;
}

v1::JobState JobStateOf(const Job& job) {
  if (job.phase == Job::Phase::kEnded) return job.end_state;
  const Attempt* attempt = LiveAttempt(job);
  if (attempt == nullptr) return v1::JOB_STATE_QUEUED;
  switch (attempt->phase) {
    case Attempt::Phase::kPreparing:
    case Attempt::Phase::kLaunching:
      return v1::JOB_STATE_STARTING;
    case Attempt::Phase::kRunning:
      return v1::JOB_STATE_RUNNING;
    case Attempt::Phase::kStopping:
      return v1::JOB_STATE_STOPPING;
    case Attempt::Phase::kEnded:
      break;
  }
  return v1::JOB_STATE_QUEUED;
}

void DescribeShare(const State& state, const Contacts& contacts, const Job& job, const Attempt& attempt,
                   size_t index, v1::JobNodeStatus* out) {
  const AttemptNode& share = *attempt.nodes[index];
  const Node* node = FindNode(state, share.node);
  out->set_name(share.name);
  out->set_node_id(share.node.str());
  out->set_state(node != nullptr ? NodeStateOf(contacts, *node) : v1::NODE_STATE_UNKNOWN);
  out->set_log_dir(share.log_dir);
  out->set_lost_output_bytes(share.lost.bytes());
  out->set_lost_output_reason(share.lost.reason());
  const bool silent = node != nullptr && node->phase != NodePhase::kUp;
  const uint32_t per_node = job.spec.ranks_per_node();
  for (uint32_t local = 0; local < per_node; ++local) {
    const uint32_t rank = static_cast<uint32_t>(index) * per_node + local;
    v1::RankStatus* status = out->add_ranks();
    status->set_rank(rank);
    status->set_local_rank(local);
    status->set_state(v1::RANK_STATE_PENDING);
    status->set_visible_gpu(static_cast<int>(local) < share.placed.gpus_size()
                                ? static_cast<int32_t>(share.placed.gpus(static_cast<int>(local)))
                                : -1);
    auto it = share.ranks.find(rank);
    if (it != share.ranks.end()) {
      const v1::RankReport& report = it->second.report;
      status->set_pid(report.pid());
      status->set_inner_pid(report.inner_pid());
      status->set_state(report.state());
      if (report.state() == v1::RANK_STATE_EXITED) *status->mutable_exit() = report.exit();
    }
    if (status->state() != v1::RANK_STATE_EXITED && attempt.launched && (silent || share.fenced)) {
      status->set_state(v1::RANK_STATE_UNKNOWN);
    }
  }
}

std::string WaitingForGone(const State& state, const Contacts& contacts, const Attempt& attempt) {
  std::vector<std::string> parts;
  for (const auto& share : attempt.nodes) {
    if (share->phase == AttemptNode::Phase::kGone) continue;
    const Node* node = FindNode(state, share->node);
    const bool lost = node == nullptr || node->phase != NodePhase::kUp;
    if (!lost) {
      parts.push_back(absl::StrCat("ranks on node ", share->name, " to be gone"));
      continue;
    }
    const std::vector<std::string> silent =
        node == nullptr ? std::vector<std::string>() : SilentMembers(state, contacts, *node);
    // While so many witnesses are silent, its ranks may live on: no time proves that they are dead.
    parts.push_back(silent.empty()
                        ? absl::StrCat("node ", share->name, " (lost) to be fenced")
                        : absl::StrCat("proof that node ", share->name, " is off, since ",
                                       absl::StrJoin(silent, ", "),
                                       " of the committee do not answer either: its return, its reboot, or "
                                       "`dgxrun nodes fence ",
                                       share->name, " --is-off`"));
  }
  return absl::StrJoin(parts, ", ");
}

std::string WaitingFor(const State& state, const Contacts& contacts, const Job& job, absl::Time now) {
  if (job.phase == Job::Phase::kEnded) return "";
  if (contacts.ahead.count(job.id) > 0) {
    return "a person: a node holds a newer attempt than this controller's log knows";
  }
  const Attempt* attempt = LiveAttempt(job);
  if (attempt == nullptr) {
    if (job.not_before > now) {
      return absl::StrCat("restart in ",
                          absl::FormatDuration(absl::Ceil(job.not_before - now, absl::Seconds(1))));
    }
    return Place(state, contacts, job).waiting_for;
  }
  std::vector<std::string> parts;
  switch (attempt->phase) {
    case Attempt::Phase::kPreparing:
      for (const auto& share : attempt->nodes) {
        if (share->phase == AttemptNode::Phase::kPlaced) {
          parts.push_back(absl::StrCat("node ", share->name, " to check paths"));
        }
      }
      for (const auto& share : attempt->nodes) {
        if (parts.empty() && HasSecondRound(*share) && share->phase == AttemptNode::Phase::kPrepared) {
          parts.push_back(absl::StrCat("node ", share->name, " to put its checkpoint folder in order"));
        }
      }
      if (parts.empty())
        return absl::StrCat("a free port on node ", attempt->nodes[0]->name, " ([agent] port_range)");
      return absl::StrJoin(parts, ", ");
    case Attempt::Phase::kLaunching:
      for (const auto& share : attempt->nodes) {
        if (share->phase == AttemptNode::Phase::kPrepared || share->phase == AttemptNode::Phase::kReady) {
          parts.push_back(absl::StrCat("node ", share->name, " to start its ranks"));
        }
      }
      return absl::StrJoin(parts, ", ");
    case Attempt::Phase::kStopping:
      return WaitingForGone(state, contacts, *attempt);
    case Attempt::Phase::kRunning:
    case Attempt::Phase::kEnded:
      return "";
  }
  return "";
}

}  // namespace

v1::JobStatus DescribeJob(const State& state, const Contacts& contacts, const JobId& id, absl::Time now) {
  const Job* job = FindJobById(state, id);
  if (job == nullptr) Broken("DescribeJob", "unknown job " + id.str());
  v1::JobStatus status;
  status.set_job_id(id.str());
  status.set_name(job->spec.name());
  *status.mutable_owner() = job->spec.owner();
  status.set_state(JobStateOf(*job));
  status.set_restarts(job->restarts);
  status.set_max_restarts(job->spec.max_restarts());
  status.set_nodes_wanted(job->spec.nodes());
  status.set_ranks_per_node(job->spec.ranks_per_node());
  *status.mutable_argv() = job->spec.argv();
  status.set_cwd(job->spec.cwd());
  status.set_cluster(contacts.config.cluster_name);
  status.set_on_cpu(job->on_cpu());
  status.set_submitted_unix_ns(NanosOrZero(job->submitted_at));
  status.set_ended_unix_ns(NanosOrZero(job->ended_at));
  if (job->phase == Job::Phase::kEnded) status.set_exit_code(job->exit_code);
  if (job->attempt) {
    const Attempt& attempt = *job->attempt;
    status.set_attempt(attempt.number.value());
    status.set_started_unix_ns(NanosOrZero(attempt.started_at));
    if (attempt.checkpoint) *status.mutable_checkpoint() = *attempt.checkpoint;
    for (size_t i = 0; i < attempt.nodes.size(); ++i) {
      DescribeShare(state, contacts, *job, attempt, i, status.add_nodes());
    }
  }
  for (const v1::Placement& placement : job->placements) *status.add_placements() = placement;
  // While an attempt is being stopped its facts are judged as far as they are known.
  const Attempt* live = LiveAttempt(*job);
  std::optional<v1::Why> so_far = live != nullptr ? Judge(*live) : std::nullopt;
  if (so_far) {
    *status.mutable_why() = *so_far;
  } else if (job->why.cause() != v1::CAUSE_UNSPECIFIED) {
    *status.mutable_why() = job->why;
  }
  for (const v1::Alarm& alarm : job->alarms) *status.add_alarms() = alarm;
  if (!job->spec.ckpt_dir().empty() || ProgressOf(contacts, *job) != nullptr) {
    *status.mutable_progress() = DescribeProgress(contacts, *job);
  }
  status.set_waiting_for(WaitingFor(state, contacts, *job, now));
  return status;
}

v1::NodeInfo DescribeNode(const State& state, const Contacts& contacts, const NodeId& id, absl::Time now) {
  (void)now;
  const Node* node = FindNode(state, id);
  if (node == nullptr) Broken("DescribeNode", "unknown node " + id.str());
  v1::NodeInfo info;
  info.set_node_id(id.str());
  info.set_name(node->name);
  info.set_state(NodeStateOf(contacts, *node));
  *info.mutable_inventory() = node->inventory;
  for (uint32_t gpu : GpusInUse(state, id)) info.add_gpus_in_use(gpu);
  for (const JobId& job : JobsOn(state, id)) info.add_jobs(job.str());
  info.set_address(node->peer_address);
  info.set_agent_version(node->release);
  auto it = contacts.nodes.find(id);
  if (it == contacts.nodes.end()) {
    if (node->phase == NodePhase::kUp) info.set_detail("nothing heard since the controller's start");
    return info;
  }
  info.set_last_heard_unix_ns(NanosOrZero(it->second.last_heard));
  if (it->second.connection == 0) info.set_detail("not connected");
  for (const auto& [key, phase] : it->second.attempts) {
    if (phase == v1::ATTEMPT_PHASE_GONE) continue;
    const AttemptKind kind = ClassifyAttempt(state, id, key.first, key.second);
    if (kind == AttemptKind::kPlaced) continue;
    info.set_detail(
        absl::StrCat(kind == AttemptKind::kAhead ? "left alone: holds attempt " : "still holds attempt ",
                     key.second.value(), " of job ", key.first.str(),
                     kind == AttemptKind::kAhead ? ", newer than this controller's log" : ""));
  }
  return info;
}

absl::StatusOr<JobId> FindJob(const State& state, const Caller& caller, const std::string& what) {
  if (!what.empty() && state.jobs.count(JobId(what)) > 0) return JobId(what);
  const Job* newest = nullptr;
  for (const auto& [id, job] : state.jobs) {
    const bool match = what.empty() ? job->spec.owner().uid() == caller.uid : job->spec.name() == what;
    if (match && (newest == nullptr || job->number > newest->number)) newest = &*job;
  }
  if (newest != nullptr) return newest->id;
  return absl::NotFoundError(what.empty() ? absl::StrCat("no job of ", caller.user)
                                          : absl::StrCat("no job '", what, "'"));
}

v1::Record ArchivedRecord(const State& state, const JobId& id, absl::Time now) {
  const Job* job = FindJobById(state, id);
  if (job == nullptr || job->phase != Job::Phase::kEnded)
    Broken("ArchivedRecord", id.str() + " has not ended");
  v1::Record record;
  record.set_at_unix_ns(absl::ToUnixNanos(now));
  record.set_term(state.term);
  v1::JobArchived* archived = record.mutable_job_archived();
  archived->set_job_id(id.str());
  archived->set_number(job->number);
  archived->set_key(job->key);
  archived->set_owner_uid(job->spec.owner().uid());
  return record;
}

}  // namespace dgxrun::core
