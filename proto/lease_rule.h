// The times on which "a committee and a fence never both" rests. Agents and the controller must agree on
// them, so they stand in one place.
//
// A controller fences a node by time only if, all through its wait, it heard enough of the committee; an
// agent's licence rests on a majority of the same committee that says it is silent. Let the licence rest on
// answers to a question of moment t. Then a member m is in both sets: the controller knew at t - gap or later
// that m was in touch at t - gap - node_lease or later, and m said at some moment up to t + answer that it
// had not been in touch for node_lease + slack. With slack > gap + answer both cannot be.
#ifndef DGXRUN_PROTO_LEASE_RULE_H_
#define DGXRUN_PROTO_LEASE_RULE_H_

#include <cstdint>

#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun {

// An answer counts only so long after its question: a round trip in a data centre takes 1 ms, a loaded
// agent's loop some 10 ms.
inline constexpr int64_t kWitnessAnswerNs = 500'000'000;
// The longest time between two looks of the controller at the committee; after a longer one its wait begins
// anew. It looks at each tick (250 ms) and each heartbeat.
inline constexpr int64_t kCommitteeGapNs = 500'000'000;
// More than both together, by what two CLOCK_BOOTTIMEs may differ over a minute.
inline constexpr int64_t kWitnessSlackNs = 1'100'000'000;
static_assert(kWitnessSlackNs > kWitnessAnswerNs + kCommitteeGapNs);

// Members of a committee; five may lose two of them.
inline constexpr int kCommitteeSize = 5;

inline int CommitteeMajority(const v1::Committee& committee) { return committee.members_size() / 2 + 1; }

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_LEASE_RULE_H_
