// What silence means. A node that is silent for node_lease is lost, and the rest of its jobs is stopped at
// once. It is fenced when its ranks must be dead by its own lease: isolation_timeout after the latest of
// its last word, this controller's start, this controller's last pause and the moment since which no
// committee can keep its ranks alive (committee.h), plus what killing takes, plus a margin for clocks. Only
// then may a new attempt start without it. Or proof comes: it was rebooted, its snapshot shows that nothing
// lives, or a person says that it is off.
//
// The node counts its lease from the *sending* of a heartbeat that was answered, which lies before the
// moment at which we heard it; so our count always ends later.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/core/alarms.h"
#include "controller/core/committee.h"
#include "controller/core/decide.h"

namespace dgxrun::core {
namespace {

// From the end of the lease to the last process reaped: SIGKILL to all, and a GPU driver that takes its time
// to release memory.
constexpr absl::Duration kKillAllowance = absl::Seconds(3);
// Two CLOCK_BOOTTIMEs over at most a minute differ by far less; the rest is scheduling.
constexpr absl::Duration kClockMargin = absl::Seconds(1);

// The latest moment at which the node may still have been in touch with a controller, as far as we know.
absl::Time LastWord(const Contacts& contacts, const NodeId& node) {
  absl::Time last = std::max(contacts.started_at, contacts.awake_since);
  auto it = contacts.nodes.find(node);
  if (it != contacts.nodes.end()) last = std::max(last, it->second.last_heard);
  return last;
}

void Lose(Draft* draft, const NodeId& id, absl::Time last_word) {
  const std::string name = FindNode(draft->state(), id)->name;
  v1::Record record;
  record.mutable_node_lost()->set_node_id(id.str());
  record.mutable_node_lost()->set_last_heard_unix_ns(absl::ToUnixNanos(last_word));
  draft->Add(std::move(record));
  for (const JobId& job : JobsOn(draft->state(), id)) {
    if (draft->contacts().ahead.count(job) > 0) continue;
    AddFault(
        draft, job, id, v1::CAUSE_NODE_LOST, -1,
        absl::StrCat("node ", name, " has not answered for ",
                     absl::FormatDuration(absl::Trunc(draft->now() - last_word, absl::Milliseconds(100)))),
        last_word);
  }
}

// `user`: whose word it is that the node is off; empty: by time.
void Fence(Draft* draft, const NodeId& id, const std::string& user) {
  v1::Record record;
  record.mutable_node_fenced()->set_node_id(id.str());
  record.mutable_node_fenced()->set_user(user);
  draft->Add(std::move(record));
  for (const JobId& job : JobsOn(draft->state(), id)) {
    const Attempt* attempt = LiveAttempt(*FindJobById(draft->state(), job));
    // Nothing was launched: the attempt ends by itself, without anything to wait for.
    if (!attempt->launched || draft->contacts().ahead.count(job) > 0) continue;
    v1::Record gone;
    gone.mutable_node_gone()->set_job_id(job.str());
    gone.mutable_node_gone()->set_attempt(attempt->number.value());
    gone.mutable_node_gone()->set_node_id(id.str());
    gone.mutable_node_gone()->set_fenced(true);
    gone.mutable_node_gone()->set_cause(v1::CAUSE_NODE_LOST);
    gone.mutable_node_gone()->set_detail(
        user.empty() ? "fenced by time" : absl::StrCat("fenced: ", user, " says that it is off"));
    draft->Add(std::move(gone));
  }
}

}  // namespace

void DecideFence(Draft* draft, const FenceNode& input) {
  const auto answer = [&](absl::Status status) {
    draft->AddAnswer(input.request, std::move(status), JobId());
  };
  if (absl::Status may = Authorize(input.caller, Verb::kFenceNode, nullptr); !may.ok()) return answer(may);
  const Node* found = nullptr;
  for (const auto& [id, node] : draft->state().nodes) {
    if (id.str() == input.node || node->name == input.node) found = &*node;
  }
  if (found == nullptr) return answer(absl::NotFoundError(absl::StrCat("there is no node ", input.node)));
  const NodeId id = found->id;
  if (found->phase == NodePhase::kFenced) return answer(absl::OkStatus());
  const absl::Duration silent = draft->now() - LastWord(draft->contacts(), id);
  if (IsConnected(draft->contacts(), id) && silent <= draft->contacts().config.node_lease) {
    return answer(absl::FailedPreconditionError(absl::StrCat(
        "node ", found->name, " is in touch, so it is not off; stop the jobs on it with dgxrun stop")));
  }
  // The order of a node that is lost by itself, so that each job has its fault before its node is gone.
  if (found->phase == NodePhase::kUp) Lose(draft, id, LastWord(draft->contacts(), id));
  Fence(draft, id, input.caller.user);
  NameCommittee(draft);
  answer(absl::OkStatus());
}

void DecideTick(Draft* draft) {
  const Config& config = draft->contacts().config;
  const absl::Duration fence_after = config.isolation_timeout + kKillAllowance + kClockMargin;
  std::vector<NodeId> ids;
  for (const auto& [id, node] : draft->state().nodes) {
    if (node->phase != NodePhase::kFenced) ids.push_back(id);
  }
  for (const NodeId& id : ids) {
    const absl::Time last_word = LastWord(draft->contacts(), id);
    const absl::Duration silent = draft->now() - last_word;
    const NodePhase phase = FindNode(draft->state(), id)->phase;
    if (phase == NodePhase::kUp && silent > config.node_lease) Lose(draft, id, last_word);
    if (phase != NodePhase::kLost || silent <= fence_after) continue;
    // The wait for a node that a committee may keep alive begins when it no longer may.
    const absl::Time alone = NoLicenceSince(draft->state(), draft->contacts(), *FindNode(draft->state(), id));
    if (draft->now() - std::max(last_word, alone) > fence_after) Fence(draft, id, "");
  }
  NameCommittee(draft);
  std::vector<JobId> with_progress;
  for (const auto& [id, progress] : draft->contacts().progress) with_progress.push_back(id);
  for (const JobId& id : with_progress) DecideProgress(draft, id);
  // Delays run out, and heartbeats bring ports.
  AdvanceAll(draft);
}

}  // namespace dgxrun::core
