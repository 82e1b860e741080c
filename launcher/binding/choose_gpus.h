// Which devices of a node a job gets, and in which order: local rank i uses entry i.
//
// A *unit* is what a rank can own: a GPU, or a partition of one (MIG). Units are numbered by PCI order of the
// GPU, then by partition. Three ways to choose:
//   visible   the caller's CUDA_VISIBLE_DEVICES: the first `count` of it, in its order
//   indices   named GPUs, in the order given
//   count     of the free units, the set that is best connected: most NVLinks, then the nearest PCI paths;
//   among
//             equals the one that leaves the other free units best connected, then the lowest numbers
#ifndef DGXRUN_LAUNCHER_BINDING_CHOOSE_GPUS_H_
#define DGXRUN_LAUNCHER_BINDING_CHOOSE_GPUS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

struct Unit {
  size_t gpu = 0;      // position in topology.gpus
  int partition = -1;  // position in its partitions; -1: the whole GPU
};

struct GpuRequest {
  uint32_t count = 0;                  // units; 0 with `visible` or `indices`: all that they name
  std::vector<uint32_t> indices;       // of GPUs
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES: indexes in PCI order, UUIDs, MIG ids, or a mix
  std::set<uint32_t> occupied;         // GPUs of other jobs
};

std::vector<Unit> UnitsOf(const v1::NodeTopology& topology);

// Positions in `units`. Errors: NotFound for a device that is not there, ResourceExhausted for too few free
// ones, InvalidArgument for a device named twice, FailedPrecondition for one that is occupied.
absl::StatusOr<std::vector<size_t>> ChooseUnits(const v1::NodeTopology& topology,
                                                const std::vector<Unit>& units, const GpuRequest& request);

// As CUDA_VISIBLE_DEVICES takes it: UUID or MIG id, which mean the same whatever a scheduler hides; the index
// where neither is known.
std::string DeviceName(const v1::NodeTopology& topology, const Unit& unit);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_CHOOSE_GPUS_H_
