// The header of safetensors, from any bytes. What is accepted lies in order and without holes.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/ckpt/safetensors.h"
#include "tests/fuzz/require.h"
#include "tests/unit/ckpt_kit.h"

using namespace dgxrun::agent::ckpt;  // NOLINT: one fuzzer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The length in front is right in every second input: the fuzzer should spend its time on the JSON.
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > 0 && (data[0] & 1) != 0) bytes = kit::Le(size - 1, 8) + bytes.substr(1);
  kit::MemorySource source;
  source.Put("f", bytes);
  const std::unique_ptr<File> file = *source.Open("f");
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(*file);
  if (!header.ok()) return 0;
  uint64_t at = header->data;
  for (const SafeTensor& tensor : header->tensors) {
    dgxrun::Require(tensor.begin == at && tensor.end >= tensor.begin, "tensors overlap or leave holes");
    at = tensor.end;
  }
  dgxrun::Require(at == header->end, "another end");
  if (header->end == bytes.size()) FindZeroRuns(*file, *header, 4).status().IgnoreError();
  return 0;
}
