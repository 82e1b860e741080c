#include "cli/peers_key.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/kdf.h>
#include <openssl/obj_mac.h>
#include <openssl/param_build.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cli/certificates.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

constexpr size_t kShortestSecret = 16;  // characters; guessing is offline for whoever records a handshake
constexpr size_t kLongestSecret = 4096;
constexpr size_t kRandomBytes = 32;
// Bound to this use, so that the same words elsewhere give another key.
constexpr char kDerivation[] = "dgxrun peers authority 1";
// More than the order of P-256 has, so that the remainder is even (FIPS 186-5 A.2.1).
constexpr size_t kDerivedBytes = 48;
// Equal to kControllerName and kPeerName of proto/rpc/credentials.h, which links gRPC.
constexpr char kEndpointName[] = "dgxrun-controller";
constexpr char kCommonName[] = "peer";

absl::Status CheckSecret(const std::string& secret, const std::string& from) {
  if (secret.size() < kShortestSecret || secret.size() > kLongestSecret) {
    return absl::FailedPreconditionError(absl::StrCat(from, " must have ", kShortestSecret, " to ",
                                                      kLongestSecret, " characters, not ", secret.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) {
    const std::string text = absl::StrCat(path, ": ", strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is no file"));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": belongs to uid ", info.st_uid, ", not to you"));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": others may read this key; chmod 600 ", path));
  }
  std::string secret(kLongestSecret + 1, '\0');
  const ssize_t n = read(fd.get(), secret.data(), secret.size());
  if (n < 0) return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno)));
  secret.resize(static_cast<size_t>(n));
  return std::string(absl::StripAsciiWhitespace(secret));
}

// Complete under another name first, then linked: two processes at once end with one key.
absl::Status MakeSecretFile(const std::string& folder, const std::string& path) {
  std::array<char, kRandomBytes> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError("no random bytes from the kernel");
  }
  const std::string text = absl::BytesToHexString({bytes.data(), bytes.size()});
  if (absl::Status made = MakeFolders(folder, 0700); !made.ok()) return made;
  const std::string temporary = absl::StrCat(path, ".", text.substr(0, 8), ".", getpid());
  {
    UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::string line = absl::BytesToHexString({bytes.data(), bytes.size()}) + "\n";
    if (!fd.valid() || write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      const int error = errno;
      unlink(temporary.c_str());
      return absl::FailedPreconditionError(
          absl::StrCat("cannot write ", temporary, ": ", strerror(error), "; or set ", kPeersKeyVariable));
    }
  }
  const bool linked = link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int error = errno;
  unlink(temporary.c_str());
  if (linked) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("cannot make ", path, ": ", strerror(error)));
}

// A number from 1 to the order of P-256 less 1, as HKDF-SHA256 gives it for the secret.
absl::StatusOr<OpenSslPtr<BIGNUM, BN_clear_free>> DeriveScalar(const std::string& secret,
                                                               const EC_GROUP* group) {
  OpenSslPtr<EVP_KDF, EVP_KDF_free> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  OpenSslPtr<EVP_KDF_CTX, EVP_KDF_CTX_free> context(kdf != nullptr ? EVP_KDF_CTX_new(kdf.get()) : nullptr);
  std::array<unsigned char, kDerivedBytes> bytes;
  std::string digest = "SHA256", key = secret, info = kDerivation;
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end(),
  };
  if (context == nullptr || EVP_KDF_derive(context.get(), bytes.data(), bytes.size(), params) != 1) {
    return OpenSslError("cannot derive the peers' key");
  }
  OpenSslPtr<BN_CTX, BN_CTX_free> work(BN_CTX_new());
  OpenSslPtr<BIGNUM, BN_clear_free> wide(BN_bin2bn(bytes.data(), bytes.size(), nullptr));
  OpenSslPtr<BIGNUM, BN_clear_free> range(BN_dup(EC_GROUP_get0_order(group)));
  OpenSslPtr<BIGNUM, BN_clear_free> scalar(BN_new());
  const bool ok = work != nullptr && wide != nullptr && range != nullptr && scalar != nullptr &&
                  BN_sub_word(range.get(), 1) == 1 &&
                  BN_nnmod(scalar.get(), wide.get(), range.get(), work.get()) == 1 &&
                  BN_add_word(scalar.get(), 1) == 1;
  if (!ok) return OpenSslError("cannot derive the peers' key");
  return scalar;
}

absl::StatusOr<Key> DeriveKey(const std::string& secret) {
  OpenSslPtr<EC_GROUP, EC_GROUP_free> group(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  if (group == nullptr) return OpenSslError("P-256");
  auto scalar = DeriveScalar(secret, group.get());
  if (!scalar.ok()) return scalar.status();
  OpenSslPtr<EC_POINT, EC_POINT_free> point(EC_POINT_new(group.get()));
  std::array<unsigned char, 65> encoded;  // 0x04, x, y
  const bool multiplied =
      point != nullptr &&
      EC_POINT_mul(group.get(), point.get(), scalar->get(), nullptr, nullptr, nullptr) == 1 &&
      EC_POINT_point2oct(group.get(), point.get(), POINT_CONVERSION_UNCOMPRESSED, encoded.data(),
                         encoded.size(), nullptr) == encoded.size();
  OpenSslPtr<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> build(OSSL_PARAM_BLD_new());
  const bool filled =
      multiplied && build != nullptr &&
      OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) == 1 &&
      OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_PRIV_KEY, scalar->get()) == 1 &&
      OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, encoded.data(),
                                       encoded.size()) == 1;
  OpenSslPtr<OSSL_PARAM, OSSL_PARAM_free> params(filled ? OSSL_PARAM_BLD_to_param(build.get()) : nullptr);
  OpenSslPtr<EVP_PKEY_CTX, EVP_PKEY_CTX_free> context(EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_KEYPAIR, params.get()) != 1) {
    return OpenSslError("cannot make the peers' key");
  }
  return Key(key);
}

}  // namespace

absl::StatusOr<PeersSecret> FindPeersSecret(const EnvMap& env, const Paths& paths) {
  PeersSecret secret;
  secret.from = kPeersKeyVariable;
  secret.bytes = Get(env, kPeersKeyVariable);
  if (secret.bytes.empty()) {
    if (paths.user_config.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("neither ", kPeersKeyVariable, " nor HOME is set: no key for the peers"));
    }
    secret.from = paths.user_config + "/peers.key";
    auto read = ReadSecret(secret.from);
    if (absl::IsNotFound(read.status())) {
      if (absl::Status made = MakeSecretFile(paths.user_config, secret.from); !made.ok()) return made;
      secret.made = true;
      read = ReadSecret(secret.from);
    }
    if (!read.ok()) return read.status();
    secret.bytes = *std::move(read);
  }
  if (absl::Status right = CheckSecret(secret.bytes, secret.from); !right.ok()) return right;
  return secret;
}

absl::StatusOr<PeersCertificate> MakePeersCertificate(const std::string& secret) {
  auto ca_key = DeriveKey(secret);
  if (!ca_key.ok()) return ca_key.status();
  // Nodes without a clock service drift; the secret is what is checked, not the date.
  constexpr absl::Duration kBackdate = absl::Hours(24);
  const CertificateRequest authority{.common_name = kPeersAuthority, .is_ca = true, .backdate = kBackdate};
  auto ca = MakeCertificate(authority, ca_key->get(), nullptr, nullptr);
  if (!ca.ok()) return ca.status();
  auto key = MakeKey();
  if (!key.ok()) return key.status();
  const CertificateRequest own{.common_name = kCommonName,
                               .is_server = true,
                               .alternative_names = {kEndpointName},
                               .backdate = kBackdate};
  auto cert = MakeCertificate(own, key->get(), ca->get(), ca_key->get());
  if (!cert.ok()) return cert.status();
  auto ca_pem = CertificatePem(ca->get());
  auto cert_pem = CertificatePem(cert->get());
  auto key_pem = KeyPem(key->get());
  for (const auto* pem : {&ca_pem, &cert_pem, &key_pem}) {
    if (!pem->ok()) return pem->status();
  }
  return PeersCertificate{*ca_pem, *cert_pem, *key_pem};
}

std::string HowToShareTheKey(const Paths& paths) {
  const std::string file =
      paths.user_config.empty() ? "~/.config/dgxrun/peers.key" : paths.user_config + "/peers.key";
  return absl::StrCat("copy ", file, " of one node to the others (mode 600), or set ", kPeersKeyVariable,
                      " to the same words on all");
}

}  // namespace dgxrun::cli
