// The plain functions are deprecated, and stay for as long as OpenSSL 3 does.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "controller/sha256.h"

#include "openssl/sha.h"

namespace dgxrun {

static_assert(kSha256Bytes == SHA256_DIGEST_LENGTH);

std::array<unsigned char, kSha256Bytes> Sha256(std::string_view bytes) {
  std::array<unsigned char, kSha256Bytes> digest;
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, bytes.data(), bytes.size());
  SHA256_Final(digest.data(), &context);
  return digest;
}

}  // namespace dgxrun
