// NVML, opened at run time: the binaries run on machines without a driver.
#ifndef DGXRUN_AGENT_NVML_H_
#define DGXRUN_AGENT_NVML_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dgxrun::agent {

// A GPU as the driver shows it.
struct DriverGpu {
  std::string pci;  // as sysfs writes it: "0000:1b:00.0"
  std::string uuid, model;
  uint64_t memory_bytes = 0;  // 0: not known
};

// All devices that this process may use. Errors say which step failed and NVML's own text:
// "libnvidia-ml.so.1 cannot be opened: ...", "nvmlInit: Driver/library version mismatch".
absl::StatusOr<std::vector<DriverGpu>> ReadNvml(const std::string& library = "libnvidia-ml.so.1");

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_NVML_H_
