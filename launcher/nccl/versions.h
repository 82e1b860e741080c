// Which driver, CUDA, NCCL and torch a rank really runs with, without importing anything: from the files that
// it has mapped (/proc/PID/maps) and the metadata that lies beside them. And what of it does not go together:
// pure.
//
// An agent reads them some seconds after a rank started (a library is mapped when the script imports it) and
// reports them when they change; the controller compares those of all ranks.
#ifndef DGXRUN_LAUNCHER_NCCL_VERSIONS_H_
#define DGXRUN_LAUNCHER_NCCL_VERSIONS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dgxrun::nccl {

struct RankVersions {
  std::string driver;       // "580.65.06"; empty: none, or not known (so for all)
  std::string nccl;         // "2.28.9"
  std::string nccl_path;    // of the library that is mapped
  std::string torch;        // "2.11.0+cu130"
  std::string torch_cuda;   // "13.0"; "none": built for CPUs only
  std::string torch_path;   // its folder
  bool reads_done = false;  // /proc/PID/maps could be read
};

// Paths of mapped files in the text of /proc/PID/maps, each once, in order. At most kMaxMapped of them.
inline constexpr size_t kMaxMapped = 4096;
std::vector<std::string> MappedFiles(absl::string_view maps);

// `version.py` of torch: its __version__ and cuda.
void ParseTorchVersion(absl::string_view text, RankVersions* versions);
// /proc/driver/nvidia/version ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..."), or
// /sys/module/nvidia/version alone.
std::string ParseDriverVersion(absl::string_view text);

// Reads those of one process. `proc` and `sysfs` are the roots ("/proc", "/sys"); paths in the maps are taken
// below proc/PID/root, since a rank may live in a mount namespace of its own.
RankVersions ReadRankVersions(const std::string& proc, const std::string& sysfs, int pid);

struct NodeVersions {
  std::string node;
  bool has_gpus = false;
  std::vector<RankVersions> ranks;  // by local rank
};

struct VersionFinding {
  std::string rule;  // "cpu-torch", "old-driver", "differs"
  std::vector<std::string> nodes;
  std::string message;
  std::string fix;
};
std::vector<VersionFinding> CompareVersions(const std::vector<NodeVersions>& nodes);

// The lowest driver that runs programs of this CUDA ("12.8" -> 525): within one major version any driver of
// that major's first release will do (CUDA's minor version compatibility). 0: not known.
int LowestDriver(absl::string_view cuda);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_VERSIONS_H_
