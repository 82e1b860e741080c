// Which checkpoint an attempt starts from, what is done about the others, and when one is not given out
// again. Pure.
//
// Before an attempt each node lists and judges the job's checkpoint folder (first Prepare). What the nodes
// found is joined, since the folder may or may not be shared. The choice is the newest COMPLETE one that is
// not poisoned; where there is none, the newest WEIGHTS_ONLY or UNVERIFIED one, and a line says so. Then
// every node that has found anything is asked a second time (Prepare.resume): to make pointers name the
// choice and to move aside what its framework would take in its place. Both rounds are idempotent, and the
// choice is a function of the records alone, so either may be repeated after a crash of anybody.
//
// Poison: two attempts in a row that loaded the same checkpoint and failed in the same way soon after. It is
// then passed over and moved aside, but never if it is the last complete one: that one is given again.
#ifndef DGXRUN_CONTROLLER_CORE_CHECKPOINTS_H_
#define DGXRUN_CONTROLLER_CORE_CHECKPOINTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controller/core/model.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "proto/resume_word.h"

namespace dgxrun::core {

// An attempt that failed sooner than this after its launch may have failed of what it loaded: starting
// interpreters, loading hundreds of GB and the first steps take minutes.
inline constexpr absl::Duration kSoonAfterLoad = absl::Minutes(10);

struct CheckpointChoice {
  std::optional<v1::Checkpoint> checkpoint;
  std::vector<v1::Checkpoint> aside;  // to be moved aside: poisoned, or bad and newer than the choice
  std::vector<std::string> lines;     // for a person: what was passed over and why, newest first
};

// From what the nodes of the attempt reported. A node of wire 1.0 reports one checkpoint, which counts as
// UNVERIFIED.
CheckpointChoice ChooseCheckpoint(const Job& job, const Attempt& attempt);

// Whether the node is asked a second time: it has found a checkpoint, or a pointer that leads nowhere.
bool HasSecondRound(const AttemptNode& share);
// Every node has answered the first question, so that there is a choice to tell.
bool AllFound(const Attempt& attempt);
// Every node has answered all that it is asked.
bool IsPrepared(const Attempt& attempt);
// Whether an answer is to the second question: what the node has made its pointers name is named in it.
bool AnswersSecondRound(const v1::Prepared& prepared, const CheckpointChoice& choice);

// An attempt with fewer nodes than the job asks for: why it cannot load what its nodes have found. nullopt:
// it can, or there is nothing to load, or it has all nodes.
std::optional<std::string> WhyNotSmaller(const Job& job, const Attempt& attempt);
// Whether a single node of the attempt has the whole of it, as far as they have told (`progress` may be
// null). Else its files lie on several nodes' own disks, and it is lost with each of them.
bool LiesWholeOnOneNode(const Attempt& attempt, const AttemptProgress* progress,
                        const v1::Checkpoint& checkpoint);

// The attempt has failed and is started again: the checkpoint that it had loaded is to be poisoned, and why.
// `newest`: newest complete one that the nodes have seen since; absent: none was seen.
struct Poison {
  v1::Checkpoint checkpoint;
  std::string reason;
  bool last = false;  // there is no other one to load: it stays, and a line says so
};
std::optional<Poison> PoisonAfter(const Job& job, const Attempt& attempt, const v1::Why& why, absl::Time now,
                                  const std::optional<v1::Checkpoint>& newest);

// Whether two failures have the same root: cause, code or signal, and the last line of stderr without its
// numbers. Only causes that what was loaded can have.
bool SameRoot(const v1::Why& a, const v1::Why& b);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_CHECKPOINTS_H_
