// What the NVIDIA driver's own files say of its GPUs: /proc/driver/nvidia/gpus/<pci>/information,
// /dev/nvidia<minor> and /sys/module/nvidia/version. A few small reads, where NVML takes tens of milliseconds
// and 16 MB to start.
//
// A GPU is usable when its file gives a UUID, it is not excluded, and this process may read and write its
// device node (mode and cgroup; the device is not opened, which would start it). What is on the bus and has
// no file or no node is not shown to this process: a container that was given some of the GPUs. A GPU in MIG
// mode counts as one, as with NVML.
//
// Not known here: the memory size (0), and whether a GPU that is listed still works.
#ifndef DGXRUN_AGENT_DRIVER_FILES_H_
#define DGXRUN_AGENT_DRIVER_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/nvml.h"

namespace dgxrun::agent {

struct DriverFiles {
  std::string root;  // what stands before /proc, /sys and /dev (tests)
  // Opened, but not started, to see that it is there and of the driver's version.
  std::string library = "libnvidia-ml.so.1";
};

// The usable ones among `pci`. An error means that the files do not settle it and NVML has to be asked: none
// is usable, a UUID is not known yet (a GPU that nobody has opened), the library is missing or of another
// version.
absl::StatusOr<std::vector<DriverGpu>> ReadDriverFiles(const std::vector<std::string>& pci,
                                                       const DriverFiles& files);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_DRIVER_FILES_H_
