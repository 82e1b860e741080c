// Judges of a run. An oracle sees what really happened (processes, messages, the disk, the answers that
// callers got) and shares no code with the core: it knows nothing of the core's state or rules.
#ifndef DGXRUN_TESTS_SIM_ORACLE_H_
#define DGXRUN_TESTS_SIM_ORACLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/job.pb.h"
#include "dgxrun/v1/record.pb.h"

namespace dgxrun::sim {

struct Process {  // one living rank
  std::string job;
  uint32_t attempt = 0;
  uint32_t rank = 0;
  std::string node;
  std::vector<std::string> gpus;
};

using Disk = std::vector<v1::Record>;

class Oracle {
 public:
  virtual ~Oracle() = default;
  virtual const char* name() const = 0;

  virtual void OnStart(const Process&) {}
  virtual void OnDeath(const Process&) {}
  // A message leaves the controller; `disk` is what a crash at this moment would leave.
  virtual void OnMessage(const std::string& /*node*/, const v1::ControllerMsg&, const Disk&) {}
  virtual void OnSubmitAnswered(const std::string& /*key*/, const std::string& /*job*/, const Disk&) {}
  // Something was done to the attempt that may rightly be named as its cause. rank -1: to the node;
  // job empty: to everything on the node; node empty: to every node.
  virtual void OnFault(const std::string& /*job*/, uint32_t /*attempt*/, int /*rank*/,
                       const std::string& /*node*/) {}
  // What really happens in a job's checkpoint folder.
  virtual void OnSaved(const std::string& /*job*/, const v1::Checkpoint&) {}
  virtual void OnMovedAside(const std::string& /*job*/, const std::string& /*path*/) {}
  // A controller has replayed its disk: texts of the state before the crash and after the replay.
  virtual void OnReplay(const std::string& /*before*/, const std::string& /*after*/) {}
  // Reports that an agent keeps, since they are not acknowledged; whenever it was told something.
  virtual void OnUnacknowledged(const std::string& /*node*/, size_t /*reports*/, bool /*at_the_end*/) {}
  // The state of every job and every process that is left, after the quiet phase.
  virtual void OnEnd(const std::vector<v1::JobStatus>&, const std::vector<Process>&, const Disk&) {}

  const std::vector<std::string>& complaints() const { return complaints_; }

 protected:
  void Complain(const std::string& what) { complaints_.push_back(std::string(name()) + ": " + what); }

 private:
  std::vector<std::string> complaints_;
};

std::unique_ptr<Oracle> MakeOneAttemptOracle();
std::unique_ptr<Oracle> MakeGpuOracle();
std::unique_ptr<Oracle> MakeDurableOracle();
std::unique_ptr<Oracle> MakeReplayOracle();
std::unique_ptr<Oracle> MakeBudgetOracle();
std::unique_ptr<Oracle> MakeSubmitOracle();
std::unique_ptr<Oracle> MakeCheckpointsOracle();
std::unique_ptr<Oracle> MakeQuietOracle();
std::unique_ptr<Oracle> MakeVerdictOracle();
std::unique_ptr<Oracle> MakeNothingLeftOracle();
std::unique_ptr<Oracle> MakeQueueOracle();

}  // namespace dgxrun::sim

#endif  // DGXRUN_TESTS_SIM_ORACLE_H_
