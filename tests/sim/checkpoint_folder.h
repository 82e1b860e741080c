// The checkpoint folder of each job, which all nodes share, and the training that fills it: rank 0 saves
// every few seconds; some saves are cut off, and some are such that every attempt that loads them fails soon,
// always in the same way. Answers what agents are asked before an attempt, and does what they are told to do.
#ifndef DGXRUN_TESTS_SIM_CHECKPOINT_FOLDER_H_
#define DGXRUN_TESTS_SIM_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/job.pb.h"
#include "tests/sim/world.h"

namespace dgxrun::sim {

// Last line of stderr of whoever has loaded a bad one.
inline constexpr char kBadTensor[] = "RuntimeError: bad tensor in what was loaded";

class CheckpointFolders {
 public:
  // Told of what really happens in the folders.
  struct Events {
    std::function<void(const std::string& job, const v1::Checkpoint& checkpoint)> saved;
    std::function<void(const std::string& job, const std::string& path)> moved_aside;
  };
  CheckpointFolders(World* world, Events events) : world_(world), events_(std::move(events)) {}

  // Either question of Prepare.
  v1::Prepared Answer(const v1::Prepare& prepare);
  // What ranks of this plan load: whether they will fail of it.
  bool IsBad(const std::string& job, const v1::NodePlan& plan) const;
  // Rank 0 of the attempt saves.
  void Save(const std::string& job, const v1::NodePlan& plan);

 private:
  struct Saved {
    v1::Checkpoint checkpoint;
    bool bad = false;
  };
  struct Folder {
    std::map<std::string, Saved> checkpoints;  // by path
    std::string format;
  };

  World* const world_;
  const Events events_;
  std::map<std::string, Folder> folders_;  // by job
};

// DGXRUN_RESUME_FROM; empty: nothing.
std::string ResumesFrom(const v1::NodePlan& plan);

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_CHECKPOINT_FOLDER_H_
