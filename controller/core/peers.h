// Peers mode: the same command on every node, one job, and a controller that lives in one of the commands.
//
// Each node's Hello carries its offer (what its command asks for). The job makes itself when the node of
// order 0 has come, and is placed when all its nodes have. argv, folder, script and environment are each
// node's own.
//
// A capsule (a JobAdopted record) goes out with each Launch and is kept by the agents. A controller whose log
// is empty, which meets a node on which the capsule's attempt lives, takes over cluster and job from it:
//
//   ClusterAdopted, TermRaised, JobDropped (of its own job, never placed), JobAdopted
//
// and learns the rest from the snapshots of the nodes as they come, since what they had reported to the dead
// controller was acknowledged and does not come again. Not in a capsule, since it came after the launch: that
// the attempt was being stopped, and at whose wish.
#ifndef DGXRUN_CONTROLLER_CORE_PEERS_H_
#define DGXRUN_CONTROLLER_CORE_PEERS_H_

#include <optional>

#include "controller/core/decide.h"
#include "controller/core/model.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::core {

// What only peers mode asks of a Hello; nullopt: welcome. config.peers must be set.
std::optional<v1::Refused> JudgePeer(const State& state, const Contacts& contacts, const v1::Hello& hello);

// Takes over the newest capsule of the Hello, if it tells more than the state does; and raises the term above
// the one that the node has seen.
void AdoptFrom(Draft* draft, const v1::Hello& hello);

// The facts that the node's snapshot tells of a share which an adopted job believes to be on its way.
void TellSnapshot(Draft* draft, const v1::Hello& hello);

// The job of this run, once the node that says what it is has come.
void MakePeersJob(Draft* draft);

// The capsule of the live, launched attempt of a job. The same at each call until the attempt ends, but for
// the term.
v1::JobCapsule BuildCapsule(const State& state, const Job& job);

// The job as the command of this node says it; the job itself where the node has made no offer.
Job AsOnNode(const State& state, const Job& job, const NodeId& node);

// A job that had an attempt waits for its nodes longer than config.peers->join_timeout: why it ends. nullopt:
// it goes on waiting, or is no job of peers.
std::optional<v1::Why> NodesStayedAway(const State& state, const Contacts& contacts, const Job& job,
                                       absl::Time now);

// For Apply.
void ApplyJobAdopted(State* state, const v1::JobAdopted& record);
void ApplyJobDropped(State* state, const v1::JobDropped& record);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_PEERS_H_
