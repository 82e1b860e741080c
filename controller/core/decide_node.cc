// A controller that starts, and nodes that come.
#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/str_cat.h"
#include "controller/core/committee.h"
#include "controller/core/decide.h"
#include "controller/core/hello.h"
#include "controller/core/peers.h"

namespace dgxrun::core {
namespace {

bool SameNode(const Node& node, const NodeConnected& input) {
  const v1::Hello& hello = input.hello;
  return node.phase == NodePhase::kUp && node.name == hello.node_name() && node.boot_id == hello.boot_id() &&
         node.peer_address == input.peer_address && node.agent_user == hello.agent_user() &&
         node.release == hello.version().release() &&
         node.witness == WitnessTarget(hello, input.peer_address) &&
         google::protobuf::util::MessageDifferencer::Equals(node.inventory, hello.inventory()) &&
         node.offer.has_value() == hello.has_offer() &&
         (!node.offer || google::protobuf::util::MessageDifferencer::Equals(*node.offer, hello.offer()));
}

void AddGone(Draft* draft, const JobId& job, AttemptNo attempt, const NodeId& node, v1::Cause cause,
             const std::string& detail) {
  v1::Record record;
  v1::NodeGone* gone = record.mutable_node_gone();
  gone->set_job_id(job.str());
  gone->set_attempt(attempt.value());
  gone->set_node_id(node.str());
  gone->set_cause(cause);
  gone->set_detail(detail);
  draft->Add(std::move(record));
}

// The node was heard; what does its snapshot prove about a share that the log believes to be there?
void CheckShare(Draft* draft, const JobId& id, const NodeConnected& input, bool rebooted) {
  const NodeId node(input.hello.node_id());
  const Job* job = FindJobById(draft->state(), id);
  const Attempt* attempt = LiveAttempt(*job);
  if (attempt == nullptr || !attempt->launched || draft->contacts().ahead.count(id) > 0) return;
  const AttemptNode* share = FindShare(*attempt, node);
  if (share == nullptr || share->phase == AttemptNode::Phase::kGone) return;
  for (const auto& held : input.hello.snapshot().attempts()) {
    if (held.job_id() != id.str() || held.attempt() != attempt->number.value()) continue;
    // It ended, and how will be told on this stream; or it lives, which nothing does after a reboot.
    if (held.phase() == v1::ATTEMPT_PHASE_GONE || !rebooted) return;
  }
  const bool started = share->phase == AttemptNode::Phase::kStarted;
  // Neither started nor rebooted: the Launch, or the Stop, was lost on the way; it is sent again.
  if (!started && !rebooted) return;
  const AttemptNo number = attempt->number;
  const v1::Cause cause = rebooted ? v1::CAUSE_NODE_LOST : v1::CAUSE_SUPERVISOR_LOST;
  const std::string detail = rebooted ? absl::StrCat("node ", share->name, " was rebooted")
                                      : absl::StrCat("node ", share->name, " no longer knows the attempt");
  AddFault(draft, id, node, cause, -1, detail);
  AddGone(draft, id, number, node, cause, detail);
}

}  // namespace

void DecideStarted(Draft* draft, const ControllerStarted& input) {
  if (draft->state().cluster_id.empty()) {
    v1::Record record;
    record.mutable_cluster_created()->set_cluster_id(input.fresh_cluster_id);
    draft->Add(std::move(record));
  }
  v1::Record record;
  record.mutable_term_raised()->set_term(draft->state().term + 1);
  draft->Add(std::move(record));
}

void DecideConnected(Draft* draft, const NodeConnected& input) {
  const v1::Hello& hello = input.hello;
  const NodeId id(hello.node_id());
  // Observe has judged the hello; a refused stream never becomes the node's connection.
  auto contact = draft->contacts().nodes.find(id);
  if (contact == draft->contacts().nodes.end() || contact->second.connection != input.connection) return;
  const bool peers = draft->contacts().config.peers.has_value();
  if (peers) AdoptFrom(draft, hello);
  std::vector<std::string> replaced;
  for (const auto& [other, node] : draft->state().nodes) {
    if (node->name == hello.node_name() && other != id) replaced.push_back(other.str());
  }
  for (const std::string& other : replaced) {
    v1::Record record;
    record.mutable_node_removed()->set_node_id(other);
    draft->Add(std::move(record));
  }
  const Node* known = FindNode(draft->state(), id);
  const bool rebooted = known != nullptr && !known->boot_id.empty() && known->boot_id != hello.boot_id();
  if (known == nullptr || !SameNode(*known, input)) {
    v1::Record record;
    v1::NodeAdmitted* admitted = record.mutable_node_admitted();
    admitted->set_node_id(id.str());
    admitted->set_name(hello.node_name());
    admitted->set_boot_id(hello.boot_id());
    admitted->set_peer_address(input.peer_address);
    *admitted->mutable_inventory() = hello.inventory();
    admitted->set_agent_user(hello.agent_user());
    admitted->set_release(hello.version().release());
    admitted->set_witness(WitnessTarget(hello, input.peer_address));
    if (hello.has_offer()) *admitted->mutable_offer() = hello.offer();
    draft->Add(std::move(record));
  }
  TakeCommittee(draft, input);
  NameCommittee(draft);
  for (const JobId& job : JobsOn(draft->state(), id)) CheckShare(draft, job, input, rebooted);
  if (peers) {
    TellSnapshot(draft, hello);
    MakePeersJob(draft);
  }
  // Jobs may have waited for this very node.
  AdvanceAll(draft);
}

}  // namespace dgxrun::core
