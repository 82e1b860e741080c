// One run: a controller, nodes, the network between them, clients, a storm of faults and then a quiet phase,
// and the oracles that watch. The answer is a list of complaints and the hash of the trace.
#ifndef DGXRUN_TESTS_SIM_SIMULATION_H_
#define DGXRUN_TESTS_SIM_SIMULATION_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/oracle.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_controller.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/world.h"

namespace dgxrun::sim {

struct SimOptions {
  uint64_t seed = 1;
  int jobs = 6;
  int nodes = 4;
  Mutation mutation = Mutation::kNone;
  // Peers mode: one job of all nodes; the controller and the agent of n1 are one process, and its log may be
  // lost.
  bool peers = false;
  bool verbose = false;
};

struct SimResult {
  std::vector<std::string> complaints;
  uint64_t hash = 0;
  int ended = 0, running = 0, queued = 0;  // jobs at the end
  int restarts = 0;
  std::set<std::string> covered;  // coverage.h
};

class Simulation : public ControllerHost, public NodeHost {
 public:
  explicit Simulation(const SimOptions& options);
  SimResult Run();

 private:
  // A stream as both ends see it; either may think that it lives when it does not.
  struct Stream {
    core::ConnectionId id = 0;
    std::string node;
    bool agent_end = true, controller_end = true;
    int64_t last_up = 0, last_down = 0;                    // delivery in order
    std::deque<std::function<void()>> held_up, held_down;  // by a partition
  };
  using StreamPtr = std::shared_ptr<Stream>;
  struct Host {
    std::unique_ptr<SimNode> node;
    StreamPtr stream;  // the agent's present one
    bool cut_up = false, cut_down = false;
    bool dead_for_good = false;
    bool welcomed = false;  // on the present stream
    uint64_t cut = 0;       // number of the last partition
    int side = 0;           // agents reach each other when they are on the same one
  };
  struct Question {
    std::string from;
    uint64_t round = 0;
  };
  struct Client {
    std::string key;
    v1::JobSpec spec;
    bool answered = false;
  };

  // ControllerHost
  void ToNode(const core::SendToNode& send, const Disk& history) override;
  void Answered(const core::Answer& answer, const Disk& history) override;
  void Replayed(const std::string& before, const std::string& after) override;
  void Crashed() override;
  void Broken(const std::string& what) override { complaints_.push_back("invariant: " + what); }
  // NodeHost
  void Dial(const std::string& node) override;
  void HangUp(const std::string& node) override;
  void FromAgent(const std::string& node, const v1::AgentMsg& message) override;
  void RankStarted(const Process& process) override;
  void RankDied(const Process& process) override;
  void RankFailed(const Process& process) override;
  void AskWitness(const std::string& node, const std::string& witness, uint64_t round,
                  const v1::WitnessQuestion& question) override;
  void WitnessAnswers(const std::string& witness, uint64_t question_id,
                      const v1::WitnessAnswer& answer) override;

  void Open(const std::string& node);
  void AtController(const StreamPtr& stream, const v1::AgentMsg& message);
  void BreakAgentEnd(const StreamPtr& stream);
  void BreakControllerEnd(const StreamPtr& stream);
  void Flush(Host* host);

  void Submit(size_t client);
  void Fault(const std::string& job, uint32_t attempt, int rank, const std::string& node);

  // storm.cc
  void Storm();
  void OneFault();
  void OnePartition();
  void CrashController();
  void MakePeers();
  bool IsEndpoint(const Host& host) const { return options_.peers && host.node->name() == "n1"; }
  void CrashAgent(Host* host);
  void LosePower(Host* host);
  void Cut(Host* host);
  void CutRack();
  void CutController();
  void CutFromController(Host* host, bool up, bool down, int64_t for_ns);
  void Calm();

  template <class F>
  void Each(F f) {
    for (auto& oracle : oracles_) f(oracle.get());
  }

  const SimOptions options_;
  World world_;
  Script script_;
  CheckpointFolders folders_;
  SimController controller_;
  std::map<std::string, Host> hosts_;
  std::map<core::ConnectionId, StreamPtr> at_controller_;
  core::ConnectionId last_connection_ = 0;
  std::vector<Client> clients_;
  std::map<core::RequestId, size_t> requests_;
  core::RequestId last_request_ = 0;
  std::map<uint64_t, Question> questions_;
  uint64_t last_question_ = 0;
  int last_side_ = 0;
  std::vector<std::unique_ptr<Oracle>> oracles_;
  std::vector<std::string> complaints_;
  enum class Mood { kMixed, kPartitions };
  const Mood mood_;
  bool storm_ = true;
};

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_SIMULATION_H_
