// Lines about a job that a person should see: what is odd, though nothing has failed. Durable (AlarmRaised),
// shown on the console, by `status` and by `why`. Pure.
#ifndef DGXRUN_CONTROLLER_CORE_ALARMS_H_
#define DGXRUN_CONTROLLER_CORE_ALARMS_H_

#include <string>

#include "controller/core/decide.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::core {

// Whether the job's attempt already has an alarm of this kind.
bool HasAlarm(const Job& job, AttemptNo attempt, v1::AlarmKind kind);

// Adds an alarm of the job's current attempt, unless the job already has one of this kind and text, or
// kMaxAlarms in all. `node` empty: no single one.
void RaiseAlarm(Draft* draft, const JobId& job, v1::AlarmKind kind, const std::string& text,
                const std::string& node = "");

// Steps that begin lower than this part of the step that was loaded are a reset, not a script that counts
// from one or repeats its last epoch.
inline constexpr double kResetBelow = 0.9;
// An exit with 0 below this part of --last-step is suspicious: a last, shorter epoch is not.
inline constexpr double kDoneFrom = 0.95;
// Usual intervals without a new complete checkpoint: one may be late by a long validation, three are not.
inline constexpr int kIntervalsWithout = 3;
// Saves closer together than this are not worth a word when they stop coming.
inline constexpr absl::Duration kMinSilence = absl::Seconds(30);

// With --ckpt-keep old ones make room within some seconds: told by one heartbeat, removed, told by another.
inline constexpr absl::Duration kTidyTime = absl::Seconds(20);

// From what the nodes tell of the live attempt's progress: alarms, and the stop where the job asked for one.
void DecideProgress(Draft* draft, const JobId& job);

// The attempt has ended with 0 everywhere: is that believable?
void DecideSuccess(Draft* draft, const JobId& job);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_ALARMS_H_
