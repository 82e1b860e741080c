// --ckpt-keep over the nodes of a running attempt: who removes what. Pure.
//
// Only all nodes together know which checkpoints are complete, so no node removes anything by itself. Nodes
// that have told of the newest complete checkpoint hold the folder; each must have told of it before anything
// is decided. Where all tell the same of it (time and size), they share one folder, or there is one: the
// first of them tends it by the job's rule, with a listing of its own. Else each has its own folder with its
// own files: what goes is chosen here, by the same rule, of the checkpoints that are complete over all nodes,
// and each is told which of its shares go. What a pin, a pointer or a link holds on any node stays on all.
#ifndef DGXRUN_CONTROLLER_CORE_TIDY_H_
#define DGXRUN_CONTROLLER_CORE_TIDY_H_

#include <map>

#include "controller/core/model.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::core {

// Whether anything is to be removed at all: running, and the job asks for it.
bool KeepsFew(const Job& job);

// What each node is told now; a node without a word has nothing to remove. Idempotent: the same until the
// nodes tell something new.
std::map<NodeId, v1::RemoveCheckpoints> WhatGoes(const Contacts& contacts, const Job& job);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_TIDY_H_
