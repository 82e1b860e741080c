// What ranks do: run for a while, and in some attempts one of them fails, whereupon its peers die of the
// broken collective or hang in it. Decided from the seed when an attempt is first asked about.
#ifndef DGXRUN_TESTS_SIM_SCRIPT_H_
#define DGXRUN_TESTS_SIM_SCRIPT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/world.h"

namespace dgxrun::sim {

struct Ending {
  int code = 0;
  int signal = 0;
  std::string tail;  // last line of stderr
};

struct AttemptScript {
  int64_t duration = 0;
  int culprit = -1;  // rank that fails; -1: none
  int64_t fails_after = 0;
  Ending failure;
  int spawn_fails = -1;  // rank whose exec fails; -1: none
};

class Script {
 public:
  // `fault`: told of each failure that the script plans, when it happens.
  using FaultSink = std::function<void(const std::string& job, uint32_t attempt, int rank)>;
  Script(World* world, FaultSink fault) : world_(world), fault_(std::move(fault)) {}

  const AttemptScript& Of(const std::string& job, uint32_t attempt, uint32_t ranks);
  // The attempt has loaded something bad: rank 0 fails of it soon, whatever was planned.
  void FailsSoon(const std::string& job, uint32_t attempt, uint32_t ranks, const std::string& tail);
  void Happened(const std::string& job, uint32_t attempt, int rank) { fault_(job, attempt, rank); }

  // How a peer of a failed rank dies; false: it hangs until it is stopped.
  bool Victim(Ending* ending);
  // What SIGTERM does: false: it is ignored.
  bool OnTerm(Ending* ending, int64_t* delay);

  bool failures = true;  // off in calm runs

 private:
  World* const world_;
  const FaultSink fault_;
  std::map<std::pair<std::string, uint32_t>, AttemptScript> attempts_;
  std::set<std::pair<std::string, uint32_t>> fail_soon_;
};

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_SCRIPT_H_
