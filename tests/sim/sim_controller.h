// The controller of the simulation: the real core behind an engine whose disk is a vector and which may
// crash between any two of its steps. A mutation makes it wrong on purpose, to see whether an oracle
// notices.
#ifndef DGXRUN_TESTS_SIM_SIM_CONTROLLER_H_
#define DGXRUN_TESTS_SIM_SIM_CONTROLLER_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/core/core.h"
#include "tests/sim/oracle.h"
#include "tests/sim/world.h"

namespace dgxrun::sim {

enum class Mutation {
  kNone,
  kNoFenceWait,           // a lost node is taken for fenced before its lease has run out
  kNoCommittee,           // ... or while a committee may keep its ranks alive
  kSingleWitness,         // an agent takes the word of one witness for a majority's
  kAnswerFirst,           // effects and answers leave before the records are on the disk
  kReuseAttempt,          // the attempt after a failed one gets the same number
  kLaunchAfterTombstone,  // an agent starts whatever it is told to
  kForgetAck,             // reports are taken, but never acknowledged
  kFreeBeforeGone,        // a node counts as free when its attempt is told to stop
  kDeaf                   // the last lines of stderr are not looked at
};

class ControllerHost {
 public:
  virtual ~ControllerHost() = default;
  virtual void ToNode(const core::SendToNode& send, const Disk& history) = 0;
  virtual void Answered(const core::Answer& answer, const Disk& history) = 0;
  virtual void Replayed(const std::string& before, const std::string& after) = 0;
  virtual void Crashed() = 0;
  virtual void Broken(const std::string& what) = 0;
};

class SimController {
 public:
  SimController(World* world, ControllerHost* host, Mutation mutation)
      : world_(world), host_(host), mutation_(mutation) {}

  // Peers mode; before the first Start.
  void ServePeers(const core::PeersConfig& peers) { peers_ = peers; }

  bool up() const { return up_; }
  void Start();
  void Crash();
  void LoseLog();                                 // after a crash: the next start is with an empty disk
  void CrashIn(int steps) { crash_in_ = steps; }  // between two steps of an input
  void Feed(decltype(core::Input::body) body);

  std::vector<v1::JobStatus> Jobs() const;  // archived ones too
  const Disk& history() const { return history_; }
  const std::set<std::string>& covered() const { return covered_; }
  const core::State& state() const { return state_; }

 private:
  bool Point();  // a moment at which it may die; true: it did
  bool Persist(const std::vector<v1::Record>& records);
  bool Leave(const core::Input& input, const core::Decision& decision);
  void Perform(const core::Effect& effect);
  void Archive(const JobId& job);
  void ScheduleTick();
  void Apply(const v1::Record& record);
  void Cover(const core::Input& input);
  void FreeWhatStops(core::Decision* decision);

  World* const world_;
  ControllerHost* const host_;
  const Mutation mutation_;
  bool up_ = false;
  std::optional<core::PeersConfig> peers_;
  uint64_t epoch_ = 0;
  uint64_t starts_ = 0;
  int crash_in_ = 0;
  core::State state_;
  core::Contacts contacts_;
  std::string dump_;  // of the state at the last crash
  Disk disk_;
  Disk history_;                   // all that was ever durable
  std::set<std::string> covered_;  // "state: input" pairs that were met
  std::map<std::string, v1::JobStatus> archive_;
  // The outbox: last message per identity on each connection.
  std::map<core::ConnectionId, std::map<std::tuple<int, std::string, uint32_t>, std::string>> sent_;
};

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_SIM_CONTROLLER_H_
