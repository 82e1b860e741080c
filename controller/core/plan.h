// The complete plan of one node for one attempt: what every rank is started with. Pure, and the same each
// time it is asked for, so that a Launch may be sent again.
//
// Names and formats are torchrun's (torch/distributed/elastic/agent/server/local_elastic_agent.py), so that
// a script which runs under torchrun runs here unchanged. TORCHELASTIC_USE_AGENT_STORE is False: rank 0
// hosts the store itself. Not set here, since only the node knows them: TORCHELASTIC_ERROR_FILE, DGXRUN_MARK.
#ifndef DGXRUN_CONTROLLER_CORE_PLAN_H_
#define DGXRUN_CONTROLLER_CORE_PLAN_H_

#include <string>

#include "controller/core/model.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::core {

// `attempt` was launched; `index` is the node's place in it, which is its GROUP_RANK.
v1::NodePlan BuildNodePlan(const Config& config, const Job& job, const Attempt& attempt, size_t index);

// `second`: every node has said what it found; the choice is told (checkpoints.h).
v1::Prepare BuildPrepare(const Job& job, const Attempt& attempt, bool second = false);

// Where rank 0 can be reached by all nodes of the attempt; empty: no such address is known. `own_host`: where
// the controller's own machine is reached by the others, if it may be a node (peers mode); else empty.
std::string MasterAddress(const State& state, const Attempt& attempt, const std::string& own_host = "");

// A reserved port of rank 0's node that no live attempt uses there and that the job's last attempt did not
// use; 0: none at the moment.
uint32_t MasterPort(const State& state, const Contacts& contacts, const Job& job, const Attempt& attempt);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_PLAN_H_
