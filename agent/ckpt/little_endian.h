// Numbers as they lie in files.
#ifndef DGXRUN_AGENT_CKPT_LITTLE_ENDIAN_H_
#define DGXRUN_AGENT_CKPT_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>

namespace dgxrun::agent::ckpt {

// `bytes` of 1 to 8, of which the caller has made sure that they are there.
inline uint64_t LoadLittleEndian(const char* at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = bytes; i > 0; --i) value = value << 8 | static_cast<unsigned char>(at[i - 1]);
  return value;
}
inline uint16_t Load16(const char* at) { return static_cast<uint16_t>(LoadLittleEndian(at, 2)); }
inline uint32_t Load32(const char* at) { return static_cast<uint32_t>(LoadLittleEndian(at, 4)); }
inline uint64_t Load64(const char* at) { return LoadLittleEndian(at, 8); }

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_LITTLE_ENDIAN_H_
