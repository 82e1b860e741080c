// From the message that starts an attempt to what execve takes, flattened before any fork. Pure.
//
// Order of the environment, a later one wins: the caller's, the plan's common part, the rank's own part,
// what the node itself adds (DGXRUN_MARK, DGXRUN_NODE, TORCHELASTIC_ERROR_FILE).
#ifndef DGXRUN_LAUNCHER_PLAN_H_
#define DGXRUN_LAUNCHER_PLAN_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dgxrun/v1/shim.pb.h"

namespace dgxrun {

struct RankSpawn {
  uint32_t rank = 0;
  std::vector<std::string> argv;
  // Where argv[0] may be, in the order of the job's PATH; the first that is executable is taken.
  std::vector<std::string> programs;
  std::vector<std::string> env;          // "NAME=value", sorted
  std::vector<unsigned long> cpu_mask;   // as sched_setaffinity takes it; empty: not bound
  std::string stdout_path, stderr_path;  // empty: not kept
};

struct NodeSpawn {
  std::vector<RankSpawn> ranks;
  std::string cwd;
  bool set_owner = false;
  std::string user;
  uid_t uid = 0;
  gid_t gid = 0;
  bool inherit_terminal = false;  // the one rank has the caller's fds 0 and 1
};

// InvalidArgument for a plan that no kernel could run: no ranks, no argv, a zero byte in a string, a
// terminal for more than one rank.
absl::StatusOr<NodeSpawn> PlanSpawn(const v1::ShimStart& start);

// File of a rank in the attempt's log folder: "rank_<r>.<suffix>"; suffix is out, err or error.json.
std::string RankFile(const std::string& log_dir, uint32_t rank, const std::string& suffix);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_PLAN_H_
