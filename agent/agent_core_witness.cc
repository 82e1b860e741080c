// A controller that is down, or this node cut off? A committee of agents tells. While no controller answers,
// this agent asks it each second, and each time a majority has not been in touch with the controller either,
// ranks here may live for one isolation timeout more: never longer than orphan_timeout after the last word.
// What a witness says renews no lease by itself. Why this is safe is in proto/lease_rule.h.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/agent_core.h"
#include "proto/lease_rule.h"

namespace dgxrun::agent {
namespace {

constexpr int64_t kMilli = 1'000'000;

bool SameCommittee(const v1::Committee& a, const v1::Committee& b) {
  return a.SerializeAsString() == b.SerializeAsString();  // written by one controller, no maps within
}

}  // namespace

// The times of the controller survive a restart of the agent.
void AgentCore::StoreTerms(const v1::Welcome& welcome, Actions* out) {
  if (options_.witness_port == 0 && options_.witness_path.empty()) return;
  StoredCommittee terms = committee_;
  terms.node_lease_ns = int64_t{welcome.node_lease_ms()} * kMilli;
  terms.isolation_ns = int64_t{welcome.isolation_timeout_ms()} * kMilli;
  terms.orphan_ns = static_cast<int64_t>(welcome.orphan_timeout_ms()) * kMilli;
  const bool same = terms.node_lease_ns == committee_.node_lease_ns &&
                    terms.isolation_ns == committee_.isolation_ns && terms.orphan_ns == committee_.orphan_ns;
  if (same) return;
  committee_ = terms;
  out->push_back(StoreCommittee{committee_});
}

void AgentCore::OnCommittee(const v1::Committee& committee, Actions* out) {
  if (options_.witness_port == 0 && options_.witness_path.empty()) return;
  if (committee.number() < committee_.committee.number() || SameCommittee(committee, committee_.committee)) {
    return;
  }
  // Stored before a heartbeat says that it is held; and that at once, since until then the controller must
  // reckon with the older one.
  committee_.committee = committee;
  out->push_back(StoreCommittee{committee_});
  SendHeartbeat(now_ns_, out);
}

// A word of the controller: it is not down, and no licence counts any more.
void AgentCore::InTouch(int64_t sent_ns, Actions* out) {
  in_touch_ns_ = std::max(in_touch_ns_, sent_ns);
  licence_until_ns_ = 0;
  silent_.clear();
  round_sent_ns_ = 0;
  if (committee_.orphan_since_ns == 0) return;
  committee_.orphan_since_ns = 0;
  committee_.boot_id.clear();
  out->push_back(StoreCommittee{committee_});
  out->push_back(Note{"the controller answers again"});
}

bool AgentCore::SilentAsWitness(int64_t now_ns) const {
  if (committee_.node_lease_ns == 0) return false;  // never welcomed
  return now_ns - std::max(in_touch_ns_, started_ns_) >= committee_.node_lease_ns + kWitnessSlackNs;
}

void AgentCore::On(const WitnessAsked& input, int64_t now_ns, Actions* out) {
  AnswerWitness reply{input.question_id, {}};
  reply.answer.set_node_id(options_.node_id.str());
  reply.answer.set_cluster_id(cluster_id_);
  reply.answer.set_term(term_);
  if (cluster_id_.empty() || input.question.cluster_id() != cluster_id_) {
    reply.answer.set_refusal("this agent belongs to another cluster");
  } else {
    reply.answer.set_silent(SilentAsWitness(now_ns));
  }
  out->push_back(std::move(reply));
}

void AgentCore::On(const WitnessDue&, int64_t now_ns, Actions* out) {
  if (!options_.leases || committee_.committee.members_size() == 0 || committee_.orphan_ns == 0) return;
  // A question asked sooner would be answered "in touch".
  if (!AnythingLives() || !SilentAsWitness(now_ns)) return;
  const int64_t last_word_ns = std::max(in_touch_ns_, committee_.orphan_since_ns);  // 0: not known
  if (last_word_ns > 0 && now_ns >= last_word_ns + committee_.orphan_ns) return;
  AskCommittee ask{++round_, {}};
  round_sent_ns_ = now_ns;
  silent_.clear();
  for (const v1::CommitteeMember& member : committee_.committee.members()) {
    if (member.node_id() == options_.node_id.str()) {
      silent_.insert(member.node_id());
    } else {
      ask.members.push_back(member);
    }
  }
  CountWitnesses(out);  // a committee of one
  if (!ask.members.empty()) out->push_back(std::move(ask));
}

void AgentCore::On(const WitnessAnswered& input, int64_t now_ns, Actions* out) {
  const v1::WitnessAnswer& answer = input.answer;
  if (input.round != round_ || round_sent_ns_ == 0 || now_ns - round_sent_ns_ > kWitnessAnswerNs) return;
  if (!answer.refusal().empty() || answer.cluster_id() != cluster_id_ || !answer.silent()) return;
  // A higher term: there is a controller that this agent has not met.
  if (answer.term() > term_) return;
  const auto& members = committee_.committee.members();
  if (std::none_of(members.begin(), members.end(),
                   [&](const v1::CommitteeMember& m) { return m.node_id() == answer.node_id(); })) {
    return;
  }
  silent_.insert(answer.node_id());
  CountWitnesses(out);
}

void AgentCore::CountWitnesses(Actions* out) {
  if (static_cast<int>(silent_.size()) < CommitteeMajority(committee_.committee)) return;
  if (committee_.orphan_since_ns == 0) {
    // Kept, so that restarts of the agent do not make the time without a controller longer.
    committee_.orphan_since_ns = std::max(in_touch_ns_, started_ns_);
    committee_.boot_id = options_.boot_id;
    out->push_back(StoreCommittee{committee_});
    out->push_back(Note{absl::StrCat(
        "no controller answers, and ", silent_.size(), " of ", committee_.committee.members_size(),
        " witnesses say the same: ranks go on, for at most ", committee_.orphan_ns / 1'000'000'000, " s")});
  }
  const int64_t until =
      std::min(round_sent_ns_ + committee_.isolation_ns, committee_.orphan_since_ns + committee_.orphan_ns);
  if (until <= licence_until_ns_) return;
  licence_until_ns_ = until;
  RenewLeases(out);
}

}  // namespace dgxrun::agent
