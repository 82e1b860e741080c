// X.509 certificates on P-256 keys: authorities and what they sign. Made in memory; nothing is written here.
#ifndef DGXRUN_CLI_CERTIFICATES_H_
#define DGXRUN_CLI_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dgxrun::cli {

template <class T, void (*Free)(T*)>
struct OpenSslDeleter {
  void operator()(T* p) const { Free(p); }
};
template <class T, void (*Free)(T*)>
using OpenSslPtr = std::unique_ptr<T, OpenSslDeleter<T, Free>>;
using Key = std::unique_ptr<EVP_PKEY, OpenSslDeleter<EVP_PKEY, EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, OpenSslDeleter<X509, X509_free>>;

struct CertificateRequest {
  std::string common_name;
  bool is_ca = false;
  bool is_server = false;
  std::vector<std::string> alternative_names;  // names and addresses
  // Clocks of new nodes may be a little behind the one that made the certificate.
  absl::Duration backdate = absl::Hours(1);
};

absl::StatusOr<Key> MakeKey();
// `issuer` and `issuer_key` null: signs itself.
absl::StatusOr<Cert> MakeCertificate(const CertificateRequest& request, EVP_PKEY* key, X509* issuer,
                                     EVP_PKEY* issuer_key);
absl::StatusOr<std::string> KeyPem(EVP_PKEY* key);
absl::StatusOr<std::string> CertificatePem(X509* cert);

// "what: the newest error of OpenSSL".
absl::Status OpenSslError(const std::string& what);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CERTIFICATES_H_
