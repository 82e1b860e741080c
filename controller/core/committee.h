// The committee: agents that tell a controller that is down from a node that is cut off (architecture 5).
//
//   agents       ranks outlive the controller while a majority of the committee says that it is silent too
//   controller   fences a node by time only while it hears so many of the committee that no majority can say
//   so
//
// Two majorities share a member, so never both; the times that this rests on are in proto/lease_rule.h.
//
// A node asks the committee that it holds, which may be an older one: it is told of each new one and says
// which it has stored. So what must be heard, before a node is fenced, is enough of every committee that this
// node may hold. Nodes that bear no witness (an older release, peers mode) hold none.
#ifndef DGXRUN_CONTROLLER_CORE_COMMITTEE_H_
#define DGXRUN_CONTROLLER_CORE_COMMITTEE_H_

#include <string>
#include <vector>

#include "controller/core/decide.h"

namespace dgxrun::core {

// A change waits until so few are held by any node: each is looked at 4 times a second.
inline constexpr size_t kMaxCommittees = 8;

// Target of the Witness service that a Hello offers; empty: none.
std::string WitnessTarget(const v1::Hello& hello, const std::string& peer_address);

// What a heartbeat proves about when the node last heard of us: it carries the number of an answer, and its
// own number will be answered in turn. See the .cc.
void ObservePing(Contact* contact, uint64_t number, uint64_t last_answer, absl::Time now);
// Which committees have been heard enough, and since when. At each tick.
void ObserveCommittees(Contacts* contacts, const State& state, absl::Time now);

// Since when a lost node can get no licence; InfiniteFuture: it may have one now; InfinitePast: it never can.
absl::Time NoLicenceSince(const State& state, const Contacts& contacts, const Node& node);
// Members that are not heard, by name, of the first committee that keeps the node from being fenced.
std::vector<std::string> SilentMembers(const State& state, const Contacts& contacts, const Node& node);

// Records: what a Hello or a heartbeat says of the committee that the node holds; a new committee, if one is
// due.
void TakeCommittee(Draft* draft, const NodeConnected& input);
void TakeCommittee(Draft* draft, const NodeHeartbeat& input);
void NameCommittee(Draft* draft);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_COMMITTEE_H_
