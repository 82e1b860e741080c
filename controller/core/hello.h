// Whether a node may join. Asked by Observe (which keeps the answer) and by Decide (which admits), so it is
// one pure function.
#ifndef DGXRUN_CONTROLLER_CORE_HELLO_H_
#define DGXRUN_CONTROLLER_CORE_HELLO_H_

#include <optional>

#include "controller/core/model.h"

namespace dgxrun::core {

// nullopt: welcome. Final refusals are those that the same agent would meet again: another cluster, a wrong
// version, a term above ours, a name that is taken.
std::optional<v1::Refused> JudgeHello(const State& state, const Contacts& contacts, const v1::Hello& hello);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_HELLO_H_
