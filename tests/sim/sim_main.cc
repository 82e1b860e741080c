// sim [--seed N] [--seeds COUNT] [--jobs J] [--nodes K] [--mutate NAME] [--peers] [--verbose]
//
// Runs COUNT seeds from N on. Every 50th is run twice, and its traces must agree. With --mutate the core is
// wrong on purpose, and the run succeeds if some seed is caught.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "tests/sim/coverage.h"
#include "tests/sim/simulation.h"

namespace dgxrun::sim {
namespace {

const std::map<std::string, Mutation> kMutations = {
    {"no-fence-wait", Mutation::kNoFenceWait},
    {"no-committee", Mutation::kNoCommittee},
    {"single-witness", Mutation::kSingleWitness},
    {"reuse-attempt", Mutation::kReuseAttempt},
    {"launch-after-tombstone", Mutation::kLaunchAfterTombstone},
    {"forget-ack", Mutation::kForgetAck},
    {"free-before-gone", Mutation::kFreeBeforeGone},
    {"answer-first", Mutation::kAnswerFirst},
    {"deaf", Mutation::kDeaf},
};

bool Report(const SimOptions& options, const SimResult& result) {
  for (const std::string& complaint : result.complaints) {
    std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(options.seed), complaint.c_str());
  }
  if (result.complaints.empty()) return true;
  std::fprintf(stderr, "replay: sim --seed %llu --seeds 1 --jobs %d --nodes %d%s --verbose\n",
               static_cast<unsigned long long>(options.seed), options.jobs, options.nodes,
               options.peers ? " --peers" : "");
  return false;
}

int JudgeCoverage(const std::set<std::string>& covered) {
  int missing = 0;
  for (const std::string& pair : ReachablePairs()) {
    if (covered.count(pair) > 0) continue;
    std::fprintf(stderr, "never met: %s\n", pair.c_str());
    ++missing;
  }
  for (const std::string& pair : covered) {
    if (ReachablePairs().count(pair) > 0) continue;
    std::fprintf(stderr, "not in reachable_pairs.inc: %s\n", pair.c_str());
    ++missing;
  }
  std::printf("%zu of %zu pairs of state and input met\n", covered.size(), ReachablePairs().size());
  return missing == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  SimOptions options;
  uint64_t seeds = 1;
  bool coverage = false;
  std::set<std::string> covered;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--verbose") {
      options.verbose = true;
      continue;
    }
    if (flag == "--coverage") {
      coverage = true;
      continue;
    }
    if (flag == "--peers") {
      options.peers = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "sim: %s needs a value\n", flag.c_str());
      return 64;
    }
    const std::string value = argv[++i];
    if (flag == "--seed") {
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--seeds") {
      seeds = std::strtoull(value.c_str(), nullptr, 10);
    } else if (flag == "--jobs") {
      options.jobs = std::atoi(value.c_str());
    } else if (flag == "--nodes") {
      options.nodes = std::atoi(value.c_str());
    } else if (flag == "--mutate" && kMutations.count(value) > 0) {
      options.mutation = kMutations.at(value);
    } else {
      std::fprintf(stderr, "sim: unknown %s %s\n", flag.c_str(), value.c_str());
      return 64;
    }
  }
  int ended = 0, running = 0, queued = 0, restarts = 0;
  const uint64_t first = options.seed;
  for (; options.seed < first + seeds; ++options.seed) {
    const SimResult result = Simulation(options).Run();
    if (options.mutation != Mutation::kNone) {
      if (result.complaints.empty()) continue;
      std::printf("caught at seed %llu: %s\n", static_cast<unsigned long long>(options.seed),
                  result.complaints[0].c_str());
      return 0;
    }
    if (!Report(options, result)) return 1;
    if ((options.seed - first) % 50 == 0 && Simulation(options).Run().hash != result.hash) {
      std::fprintf(stderr, "seed %llu: two runs differ\n", static_cast<unsigned long long>(options.seed));
      return 1;
    }
    covered.insert(result.covered.begin(), result.covered.end());
    ended += result.ended;
    running += result.running;
    queued += result.queued;
    restarts += result.restarts;
  }
  if (options.mutation != Mutation::kNone) {
    std::fprintf(stderr, "sim: no oracle noticed the mutation in %llu seeds\n",
                 static_cast<unsigned long long>(seeds));
    return 1;
  }
  std::printf("%llu seeds: %d jobs ended, %d run, %d wait; %d restarts\n",
              static_cast<unsigned long long>(seeds), ended, running, queued, restarts);
  return coverage ? JudgeCoverage(covered) : 0;
}

}  // namespace
}  // namespace dgxrun::sim

int main(int argc, char** argv) { return dgxrun::sim::Main(argc, argv); }
