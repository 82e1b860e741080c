// What a node reports of an attempt. Reports are resent until acknowledged, so each may come any number of
// times, and late: a report that the state already contains, or of an attempt that is not the live one,
// decides nothing (Observe has noted what matters of it, and it is acknowledged all the same).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/core/checkpoints.h"
#include "controller/core/decide.h"
#include "controller/core/verdict.h"

namespace dgxrun::core {
namespace {

struct At {  // the share that a report is about
  JobId job;
  AttemptNo attempt;
  NodeId node;
};

const Job& JobAt(const Draft& draft, const At& at) { return *FindJobById(draft.state(), at.job); }
const Attempt& AttemptAt(const Draft& draft, const At& at) { return *LiveAttempt(JobAt(draft, at)); }
const AttemptNode& ShareAt(const Draft& draft, const At& at) {
  return *FindShare(AttemptAt(draft, at), at.node);
}

template <class Body>
void Address(const At& at, Body* body) {
  body->set_job_id(at.job.str());
  body->set_attempt(at.attempt.value());
  body->set_node_id(at.node.str());
}

// Whether the rank number belongs to the node's share.
bool OwnsRank(const Draft& draft, const At& at, uint32_t rank) {
  const Attempt& attempt = AttemptAt(draft, at);
  const uint32_t per_node = JobAt(draft, at).spec.ranks_per_node();
  const uint32_t index = rank / per_node;
  return index < attempt.nodes.size() && attempt.nodes[index]->node == at.node;
}

void OnPrepared(Draft* draft, const At& at, const v1::Prepared& prepared) {
  const Attempt& attempt = AttemptAt(*draft, at);
  const AttemptNode& share = ShareAt(*draft, at);
  if (attempt.phase != Attempt::Phase::kPreparing) return;
  const bool first = share.phase == AttemptNode::Phase::kPlaced;
  const bool second = share.phase == AttemptNode::Phase::kPrepared && HasSecondRound(share) &&
                      AnswersSecondRound(prepared, ChooseCheckpoint(JobAt(*draft, at), attempt));
  if (!first && !second) return;
  if (prepared.errors_size() > 0) {
    AddFault(draft, at.job, at.node, v1::CAUSE_LAUNCH_REFUSED, -1,
             absl::StrCat("node ", share.name, ": ", absl::StrJoin(prepared.errors(), "; ")));
    return;
  }
  v1::Record record;
  Address(at, record.mutable_node_prepared());
  if (prepared.has_checkpoint()) {
    *record.mutable_node_prepared()->mutable_checkpoint() = prepared.checkpoint();
  }
  *record.mutable_node_prepared()->mutable_findings() = prepared.findings();
  *record.mutable_node_prepared()->mutable_notes() = prepared.notes();
  draft->Add(std::move(record));
}

void OnStarted(Draft* draft, const At& at, const v1::RanksStarted& started) {
  const AttemptNode::Phase phase = ShareAt(*draft, at).phase;
  const bool waited_for = phase == AttemptNode::Phase::kPrepared || phase == AttemptNode::Phase::kReady;
  if (!AttemptAt(*draft, at).launched || !waited_for) return;
  v1::Record record;
  v1::NodeStarted* out = record.mutable_node_started();
  Address(at, out);
  for (const auto& rank : started.ranks()) {
    if (OwnsRank(*draft, at, rank.rank())) *out->add_ranks() = rank;
  }
  out->set_log_dir(started.log_dir());
  *out->mutable_warnings() = started.warnings();
  draft->Add(std::move(record));
}

void OnExited(Draft* draft, const At& at, const v1::RankReport& rank) {
  if (!AttemptAt(*draft, at).launched || !OwnsRank(*draft, at, rank.rank())) return;
  const AttemptNode& share = ShareAt(*draft, at);
  auto known = share.ranks.find(rank.rank());
  if (known != share.ranks.end() && known->second.report.state() == v1::RANK_STATE_EXITED) return;
  v1::Record record;
  Address(at, record.mutable_rank_exited());
  *record.mutable_rank_exited()->mutable_rank() = rank;
  record.mutable_rank_exited()->mutable_rank()->set_state(v1::RANK_STATE_EXITED);
  draft->Add(std::move(record));
}

// Ranks of the share of which nobody will ever say how they ended.
bool LeavesRanksOpen(const Draft& draft, const At& at, const v1::AttemptGone& gone) {
  std::set<uint32_t> exited;
  for (const auto& [number, info] : ShareAt(draft, at).ranks) {
    if (info.report.state() == v1::RANK_STATE_EXITED) exited.insert(number);
  }
  for (const auto& rank : gone.ranks()) {
    if (rank.state() == v1::RANK_STATE_EXITED) exited.insert(rank.rank());
  }
  return exited.size() < JobAt(draft, at).spec.ranks_per_node();
}

void OnGone(Draft* draft, const At& at, const v1::AttemptGone& gone) {
  if (!AttemptAt(*draft, at).launched) return;  // it never got a Launch; there is nothing to be gone
  const std::string name = ShareAt(*draft, at).name;
  const bool told = AttemptAt(*draft, at).phase == Attempt::Phase::kStopping;
  if (gone.cause() != v1::CAUSE_UNSPECIFIED) {
    const std::string detail = gone.detail().empty() ? v1::Cause_Name(gone.cause()) : gone.detail();
    AddFault(draft, at.job, at.node, gone.cause(), -1, absl::StrCat("node ", name, ": ", detail));
  } else if (!told && LeavesRanksOpen(*draft, at, gone)) {
    AddFault(draft, at.job, at.node, v1::CAUSE_SUPERVISOR_LOST, -1,
             absl::StrCat("node ", name, ": ", gone.detail().empty() ? "ranks ended unseen" : gone.detail()));
  }
  v1::Record record;
  v1::NodeGone* out = record.mutable_node_gone();
  Address(at, out);
  for (const auto& rank : gone.ranks()) {
    if (OwnsRank(*draft, at, rank.rank())) *out->add_ranks() = rank;
  }
  out->set_log_dir(gone.log_dir());
  out->set_cause(gone.cause());
  out->set_detail(gone.detail());
  if (gone.has_lost()) *out->mutable_lost() = gone.lost();
  draft->Add(std::move(record));
}

void OnOutputLost(Draft* draft, const At& at, const v1::OutputLost& lost) {
  if (!AttemptAt(*draft, at).launched) return;
  v1::Record record;
  Address(at, record.mutable_output_was_lost());
  *record.mutable_output_was_lost()->mutable_lost() = lost;
  draft->Add(std::move(record));
}

void OnSpawnFailed(Draft* draft, const At& at, const v1::SpawnFailed& failed) {
  if (!AttemptAt(*draft, at).launched) return;
  AddFault(draft, at.job, at.node, v1::CAUSE_SPAWN_FAILED, static_cast<int32_t>(failed.rank()),
           absl::StrCat("node ", ShareAt(*draft, at).name, ": ", failed.stage(), ": ", failed.detail()));
}

void OnRefused(Draft* draft, const At& at, const v1::LaunchRefused& refused) {
  AddFault(draft, at.job, at.node, v1::CAUSE_LAUNCH_REFUSED, -1,
           absl::StrCat("node ", ShareAt(*draft, at).name, ": ", refused.reason()));
}

}  // namespace

void DecideReport(Draft* draft, const NodeReport& input) {
  auto contact = draft->contacts().nodes.find(input.node);
  if (contact == draft->contacts().nodes.end() || contact->second.connection != input.connection) return;
  const v1::Report& report = input.report;
  const At at{JobId(report.job_id()), AttemptNo(report.attempt()), input.node};
  const Job* job = FindJobById(draft->state(), at.job);
  const Attempt* attempt = job != nullptr ? LiveAttempt(*job) : nullptr;
  const bool live = attempt != nullptr && attempt->number == at.attempt && HoldsNode(*job, input.node) &&
                    draft->contacts().ahead.count(at.job) == 0;
  if (live) {
    switch (report.body_case()) {
      case v1::Report::kPrepared:
        OnPrepared(draft, at, report.prepared());
        break;
      case v1::Report::kRefused:
        OnRefused(draft, at, report.refused());
        break;
      case v1::Report::kStarted:
        OnStarted(draft, at, report.started());
        break;
      case v1::Report::kExited:
        OnExited(draft, at, report.exited());
        break;
      case v1::Report::kGone:
        OnGone(draft, at, report.gone());
        break;
      case v1::Report::kSpawnFailed:
        OnSpawnFailed(draft, at, report.spawn_failed());
        break;
      case v1::Report::kOutputLost:
        OnOutputLost(draft, at, report.output_lost());
        break;
      case v1::Report::BODY_NOT_SET:  // of a newer agent; nothing that this version acts on
        break;
    }
  }
  // An attempt that outlived its fence may just have left the node, and somebody waits for the place.
  if (report.body_case() == v1::Report::kGone) AdvanceAll(draft);
}

}  // namespace dgxrun::core
