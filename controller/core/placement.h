// Where an attempt goes, and what a submit may ask for. Pure; nothing is reserved here: an AttemptPlaced
// record is what holds GPUs, from its writing until NodeGone of each node.
//
// Host order gives rank order: nodes sorted by name, digits by value ("dgx-9" before "dgx-10"). A job keeps
// its nodes and their order in later attempts while they live; a node that was lost is replaced in place.
// No reservation: a small job may overtake a big one that waits.
#ifndef DGXRUN_CONTROLLER_CORE_PLACEMENT_H_
#define DGXRUN_CONTROLLER_CORE_PLACEMENT_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "controller/core/model.h"

namespace dgxrun::core {

bool NaturalLess(const std::string& a, const std::string& b);

// GPU indexes on the node that an attempt holds: placed there, and not gone.
std::set<uint32_t> GpusInUse(const State& state, const NodeId& node);

// Whether the node's agent may run ranks of this owner at all.
bool MayRunOwner(const Node& node, const v1::Owner& owner);

// Something lives on the node that the log does not place there: an older attempt that outlived its fence,
// or one that only a newer log knows. Its GPUs are not free, whatever the state says.
bool HasStrays(const State& state, const Contacts& contacts, const NodeId& node);

struct Placement {
  std::vector<v1::PlacedNode> nodes;  // empty: not now
  std::string waiting_for;            // then: what for
};
Placement Place(const State& state, const Contacts& contacts, const Job& job);

// Fills in what the request left open (device, ranks_per_node) from what the nodes hold.
// InvalidArgument: a request that is wrong in itself. FailedPrecondition: one that this cluster can never
// meet, naming the node and the reason. OK: it can be met once enough nodes are free.
absl::Status ResolveSpec(const State& state, const Contacts& contacts, v1::JobSpec* spec);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_PLACEMENT_H_
