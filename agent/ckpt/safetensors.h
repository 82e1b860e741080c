// safetensors files: 8 bytes with the header's length N, N bytes of JSON, the data. Complete if and only if
// the file has 8 + N + max(end of data) bytes; there is no checksum and no end mark.
#ifndef DGXRUN_AGENT_CKPT_SAFETENSORS_H_
#define DGXRUN_AGENT_CKPT_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"

namespace dgxrun::agent::ckpt {

// The format's own limit on N.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafeTensor {
  std::string name;
  std::string dtype;   // "F32", "BF16", ...
  uint64_t begin = 0;  // of the file
  uint64_t end = 0;
  uint64_t row_bytes = 0;  // of its last dimension; 0: a scalar or not known
};

struct SafetensorsHeader {
  uint64_t data = 0;                // where data begins
  uint64_t end = 0;                 // bytes that the file must have
  std::vector<SafeTensor> tensors;  // by begin
};

// Reads and checks the header, not the size. kOutOfRange: the file ends within it; kDataLoss: not a header,
// or its tensors overlap or leave holes.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(File& file);

// For files of the right size: reads all data and looks for zeros that no tensor should hold: a run of at
// least kMinZeroRun within a tensor of floats that also has other values, and that does not begin and end
// with one of its rows; or, where no tensor holds anything else, all of it. What is found may still be a
// pruned model, so it is a doubt and no proof.
inline constexpr uint64_t kMinZeroRun = 256;
struct ZeroRun {
  std::string tensor;
  uint64_t begin = 0;  // of the file
  uint64_t bytes = 0;
};
absl::StatusOr<std::vector<ZeroRun>> FindZeroRuns(File& file, const SafetensorsHeader& header,
                                                  size_t max_found);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_SAFETENSORS_H_
