#include "controller/core/committee.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controller/core/placement.h"
#include "proto/lease_rule.h"

namespace dgxrun::core {
namespace {

// Heartbeats whose answers may still be told of; an answer takes one period and a round trip.
constexpr size_t kMaxPings = 16;

// Whether the node is known to have been in touch within node_lease, as it counts itself.
bool HeardAsMember(const Contacts& contacts, const std::string& id, absl::Time now) {
  auto it = contacts.nodes.find(NodeId(id));
  return it != contacts.nodes.end() && now - it->second.knew_us <= contacts.config.node_lease;
}

// So few are silent that they are no majority.
bool Enough(const v1::Committee& committee, const Contacts& contacts, absl::Time now) {
  int silent = 0;
  for (const v1::CommitteeMember& member : committee.members()) {
    if (!HeardAsMember(contacts, member.node_id(), now)) ++silent;
  }
  return silent < CommitteeMajority(committee);
}

void AddTaken(Draft* draft, const NodeId& node, uint64_t number) {
  v1::Record record;
  record.mutable_committee_taken()->set_node_id(node.str());
  record.mutable_committee_taken()->set_number(number);
  draft->Add(std::move(record));
}

void AddNamed(Draft* draft, const v1::Committee& committee) {
  v1::Record record;
  *record.mutable_committee_named()->mutable_committee() = committee;
  draft->Add(std::move(record));
}

v1::CommitteeMember MemberOf(const Node& node) {
  v1::CommitteeMember member;
  member.set_node_id(node.id.str());
  member.set_name(node.name);
  member.set_target(node.witness);
  return member;
}

}  // namespace

std::string WitnessTarget(const v1::Hello& hello, const std::string& peer_address) {
  if (hello.has_offer()) return "";
  if (!hello.witness_path().empty()) return absl::StrCat("unix:", hello.witness_path());
  if (hello.witness_port() == 0 || peer_address.empty()) return "";
  const bool v6 = absl::StrContains(peer_address, ":");
  return absl::StrCat(v6 ? "[" : "", peer_address, v6 ? "]" : "", ":", hello.witness_port());
}

// Heartbeat n was sent after the node had our answer `last_answer`, so after we sent that. Once a later one
// says that n itself was answered, the node counts itself in touch as of the sending of n. Number 0 is the
// Hello, answered by the Welcome.
void ObservePing(Contact* contact, uint64_t number, uint64_t last_answer, absl::Time now) {
  auto answered = contact->pings.find(last_answer);
  absl::Time sent_after = absl::InfinitePast();  // of this heartbeat
  if (answered != contact->pings.end()) {
    contact->knew_us = std::max(contact->knew_us, answered->second.sent_after);
    sent_after = answered->second.heard;
    contact->pings.erase(contact->pings.begin(), answered);
  }
  contact->pings[number] = {now, sent_after};
  if (contact->pings.size() > kMaxPings) contact->pings.erase(contact->pings.begin());
}

void ObserveCommittees(Contacts* contacts, const State& state, absl::Time now) {
  const bool gap = now - contacts->committees_looked_at > absl::Nanoseconds(kCommitteeGapNs);
  contacts->committees_looked_at = now;
  std::map<uint64_t, absl::Time> since;
  for (const auto& [number, committee] : state.committees) {
    if (!Enough(committee, *contacts, now)) continue;
    auto before = contacts->committee_since.find(number);
    since[number] = gap || before == contacts->committee_since.end() ? now : before->second;
  }
  contacts->committee_since = std::move(since);
}

absl::Time NoLicenceSince(const State& state, const Contacts& contacts, const Node& node) {
  if (node.witness.empty()) return absl::InfinitePast();
  absl::Time since = absl::InfinitePast();
  for (auto it = state.committees.lower_bound(node.committee); it != state.committees.end(); ++it) {
    auto heard = contacts.committee_since.find(it->first);
    if (heard == contacts.committee_since.end()) return absl::InfiniteFuture();
    since = std::max(since, heard->second);
  }
  return since;
}

std::vector<std::string> SilentMembers(const State& state, const Contacts& contacts, const Node& node) {
  std::vector<std::string> silent;
  if (node.witness.empty()) return silent;
  for (auto it = state.committees.lower_bound(node.committee); it != state.committees.end(); ++it) {
    if (contacts.committee_since.count(it->first) > 0) continue;
    for (const v1::CommitteeMember& member : it->second.members()) {
      if (!HeardAsMember(contacts, member.node_id(), contacts.committees_looked_at)) {
        silent.push_back(member.name());
      }
    }
    break;
  }
  std::sort(silent.begin(), silent.end(), NaturalLess);
  return silent;
}

void TakeCommittee(Draft* draft, const NodeConnected& input) {
  const NodeId id(input.hello.node_id());
  const v1::Committee& held = input.hello.committee();
  // One that this log does not know: it was dropped, or the log is an old copy. It counts as long as the node
  // holds it.
  if (held.number() > 0 && draft->state().committees.count(held.number()) == 0) AddNamed(draft, held);
  if (FindNode(draft->state(), id)->committee != held.number()) AddTaken(draft, id, held.number());
}

void TakeCommittee(Draft* draft, const NodeHeartbeat& input) {
  const Node* node = FindNode(draft->state(), input.node);
  const uint64_t number = input.heartbeat.committee();
  if (node == nullptr || number <= node->committee || draft->state().committees.count(number) == 0) return;
  auto contact = draft->contacts().nodes.find(input.node);
  if (contact == draft->contacts().nodes.end() || contact->second.connection != input.connection) return;
  AddTaken(draft, input.node, number);
}

// Members stay as long as they may be of use: each change has to reach every node. A lost one is replaced
// when it is fenced, an unfenced one never, since its word is what the fence waits for.
void NameCommittee(Draft* draft) {
  const State& state = draft->state();
  if (state.committees.size() >= kMaxCommittees) return;
  v1::Committee next;
  next.set_number(state.committees.empty() ? 1 : state.committees.rbegin()->first + 1);
  std::set<std::string> kept;
  bool moved = false;
  if (!state.committees.empty()) {
    for (const v1::CommitteeMember& member : state.committees.rbegin()->second.members()) {
      const Node* node = FindNode(state, NodeId(member.node_id()));
      if (node == nullptr || node->phase == NodePhase::kFenced || node->witness.empty()) continue;
      moved = moved || node->witness != member.target();
      *next.add_members() = MemberOf(*node);
      kept.insert(member.node_id());
    }
  }
  // Nearly always: nobody is missing, however many nodes there are.
  if (!moved && kept.size() == static_cast<size_t>(kCommitteeSize)) return;
  std::vector<const Node*> others;
  for (const auto& [id, node] : state.nodes) {
    const bool fit =
        node->phase == NodePhase::kUp && !node->witness.empty() && IsConnected(draft->contacts(), id);
    if (fit && kept.count(id.str()) == 0) others.push_back(&*node);
  }
  const size_t missing = std::min(others.size(), static_cast<size_t>(kCommitteeSize) - kept.size());
  if (missing == 0 && !moved) return;
  // Spread over the names, which follow racks: one rack that is cut off should not hold a majority.
  std::sort(others.begin(), others.end(),
            [](const Node* a, const Node* b) { return NaturalLess(a->name, b->name); });
  for (size_t i = 0; i < missing; ++i) *next.add_members() = MemberOf(*others[i * others.size() / missing]);
  AddNamed(draft, next);
}

}  // namespace dgxrun::core
