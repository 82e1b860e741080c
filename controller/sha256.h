// SHA-256 of some bytes.
//
// By OpenSSL's plain functions: the one-shot SHA256() of OpenSSL 3 loads its providers at the first call,
// which costs a starting process milliseconds and megabytes.
#ifndef DGXRUN_CONTROLLER_SHA256_H_
#define DGXRUN_CONTROLLER_SHA256_H_

#include <array>
#include <cstddef>
#include <string_view>

namespace dgxrun {

inline constexpr size_t kSha256Bytes = 32;
std::array<unsigned char, kSha256Bytes> Sha256(std::string_view bytes);

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_SHA256_H_
