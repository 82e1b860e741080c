// A node of the simulation: the real AgentCore on a store that survives crashes, the real Gang as the shim
// of each attempt, and ranks that do what the script says. Three lives of different length: power, agent,
// shims.
#ifndef DGXRUN_TESTS_SIM_SIM_NODE_H_
#define DGXRUN_TESTS_SIM_SIM_NODE_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/agent_core.h"
#include "launcher/gang.h"
#include "tests/sim/checkpoint_folder.h"
#include "tests/sim/oracle.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_controller.h"
#include "tests/sim/world.h"

namespace dgxrun::sim {

// What a node asks of its surroundings.
class NodeHost {
 public:
  virtual ~NodeHost() = default;
  virtual void Dial(const std::string& node) = 0;  // the agent wants a stream
  virtual void HangUp(const std::string& node) = 0;
  virtual void FromAgent(const std::string& node, const v1::AgentMsg& message) = 0;
  // An agent asks another one, and it answers.
  virtual void AskWitness(const std::string& node, const std::string& witness, uint64_t round,
                          const v1::WitnessQuestion& question) = 0;
  virtual void WitnessAnswers(const std::string& witness, uint64_t question_id,
                              const v1::WitnessAnswer& answer) = 0;
  virtual void RankStarted(const Process& process) = 0;
  virtual void RankDied(const Process& process) = 0;
  // A rank ended otherwise than well: its peers' collectives break.
  virtual void RankFailed(const Process& process) = 0;
};

class SimNode {
 public:
  SimNode(World* world, NodeHost* host, Script* script, std::string name, int gpus, Mutation mutation);

  const std::string& name() const { return name_; }
  void SetFolders(CheckpointFolders* folders) { folders_ = folders; }  // before the agent's first start
  void SetOffer(const v1::PeerOffer& offer) { offer_ = offer; }  // peers mode; before the agent's first start
  bool powered() const { return powered_; }
  bool agent_up() const { return core_ != nullptr; }
  size_t unacked() const { return core_->unacked().size(); }  // agent_up() only

  void StartAgent();
  void CrashAgent();               // shims and ranks live on
  void CrashAgentIn(int actions);  // between two actions
  void PowerOff();
  void PowerOn();  // a new boot id; the disk is as it was

  // From the network.
  void LinkUp();
  void LinkDown();
  void FromController(const v1::ControllerMsg& message);
  void Asked(uint64_t question_id, const v1::WitnessQuestion& question);
  void Answered(uint64_t round, const v1::WitnessAnswer& answer);

  // Peers of a rank that failed: each dies as the script says, unless it hangs.
  void BreakCollective(const std::string& job, uint32_t attempt);
  std::vector<Process> Living() const;

 private:
  struct Rank {
    Process process;
    bool alive = false;
    bool dying = false;  // its end is decided; only SIGKILL may come sooner
    std::string tail;
  };
  struct Shim {
    agent::AttemptKey key;
    std::unique_ptr<Gang> gang;
    std::vector<Rank> ranks;
    uint32_t world_size = 1;
    v1::NodePlan plan;
    uint64_t timer = 0;
    bool spawned = false;
    bool finished = false;
    int64_t last_delivery = 0;
  };
  using ShimPtr = std::shared_ptr<Shim>;

  void Handle(decltype(agent::Input::body) body);
  void Perform(const agent::Action& action);
  void StartShim(const agent::StartShimFor& start);
  void Spawn(const ShimPtr& shim);
  void Command(const agent::ToShim& to);
  void Perform(const ShimPtr& shim, const GangActions& actions);
  void Deliver(const ShimPtr& shim, v1::ShimMsg message);
  v1::ShimEvent WithTails(const Shim& shim, v1::ShimEvent event) const;
  void SayHello(const ShimPtr& shim);
  void Terminate(const ShimPtr& shim);
  void KillRanks(const ShimPtr& shim);
  void EndRank(const ShimPtr& shim, size_t index, int64_t delay, const Ending& ending);
  void ReapIfEmpty(const ShimPtr& shim);
  void SaveNow(const ShimPtr& shim, size_t index);
  void ReportPorts();
  void Witness(uint64_t epoch);

  World* const world_;
  NodeHost* const host_;
  Script* const script_;
  CheckpointFolders* folders_ = nullptr;
  const std::string name_;
  const int gpus_;
  const Mutation mutation_;
  int boots_ = 1;
  bool powered_ = true;
  uint64_t epoch_ = 0;  // of the agent's life; what was scheduled in an older one is void
  uint64_t power_ = 0;  // of the node's
  int crash_in_ = 0;
  uint64_t link_ = 0;
  std::unique_ptr<agent::AgentCore> core_;
  std::optional<v1::PeerOffer> offer_;
  agent::StoredState store_;
  std::map<agent::AttemptKey, ShimPtr> shims_;  // with a folder: living, or finished and not yet removed
  std::set<uint32_t> ports_in_use_;
};

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_SIM_NODE_H_
