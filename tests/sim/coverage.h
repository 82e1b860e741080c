// Pairs of (state of a job or node, input) that the controller's core met.
#ifndef DGXRUN_TESTS_SIM_COVERAGE_H_
#define DGXRUN_TESTS_SIM_COVERAGE_H_

#include <set>
#include <string>

#include "controller/core/committee.h"
#include "controller/core/core.h"

namespace dgxrun::sim {

// Adds what the input meets in this state, before it is decided.
void CoverInput(const core::State& state, const core::Contacts& contacts, const core::Input& input,
                std::set<std::string>* covered);

// All pairs that can be met; each was met by a long run, and those that cannot be are left out with the
// reason beside them.
const std::set<std::string>& ReachablePairs();

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_COVERAGE_H_
