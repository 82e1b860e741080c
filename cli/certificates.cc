#include "cli/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dgxrun::cli {
namespace {

// A cluster lives for years and its authority is made once; leaves are renewed with the machines' upkeep.
constexpr long kCaSeconds = 10L * 365 * 24 * 3600;
constexpr long kLeafSeconds = 2L * 365 * 24 * 3600;
constexpr int kSerialBits = 127;  // random serials, so that two authorities of one name do not clash

using Bio = std::unique_ptr<BIO, OpenSslDeleter<BIO, BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, OpenSslDeleter<X509_EXTENSION, X509_EXTENSION_free>>;
using BigNumber = std::unique_ptr<BIGNUM, OpenSslDeleter<BIGNUM, BN_free>>;

bool AddExtension(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(cert, extension.get(), -1) == 1;
}

bool IsAddress(const std::string& host) {
  ASN1_OCTET_STRING* address = a2i_IPADDRESS(host.c_str());
  if (address == nullptr) {
    ERR_clear_error();
    return false;
  }
  ASN1_OCTET_STRING_free(address);
  return true;
}

bool SetSerial(X509* cert) {
  BigNumber number(BN_new());
  return number != nullptr && BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(cert)) != nullptr;
}

bool AddExtensions(X509* cert, X509* issuer, const CertificateRequest& request) {
  bool ok = AddExtension(cert, issuer, NID_subject_key_identifier, "hash") &&
            AddExtension(cert, issuer, NID_basic_constraints,
                         request.is_ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
            AddExtension(cert, issuer, NID_key_usage,
                         request.is_ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature");
  if (!request.is_ca) {
    ok = ok && AddExtension(cert, issuer, NID_authority_key_identifier, "keyid") &&
         AddExtension(cert, issuer, NID_ext_key_usage,
                      request.is_server ? "serverAuth,clientAuth" : "clientAuth");
  }
  if (!request.alternative_names.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : request.alternative_names) {
      names.push_back((IsAddress(name) ? "IP:" : "DNS:") + name);
    }
    ok = ok && AddExtension(cert, issuer, NID_subject_alt_name, absl::StrJoin(names, ","));
  }
  return ok;
}

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace

absl::Status OpenSslError(const std::string& what) {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

absl::StatusOr<Cert> MakeCertificate(const CertificateRequest& request, EVP_PKEY* key, X509* issuer,
                                     EVP_PKEY* issuer_key) {
  Cert cert(X509_new());
  X509* const by = issuer != nullptr ? issuer : cert.get();
  bool ok =
      cert != nullptr && X509_set_version(cert.get(), 2) == 1 && SetSerial(cert.get()) &&
      X509_gmtime_adj(X509_getm_notBefore(cert.get()), -absl::ToInt64Seconds(request.backdate)) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(cert.get()), request.is_ca ? kCaSeconds : kLeafSeconds) != nullptr &&
      X509_set_pubkey(cert.get(), key) == 1;
  if (ok) {
    ok = X509_NAME_add_entry_by_txt(X509_get_subject_name(cert.get()), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(request.common_name.c_str()), -1,
                                    -1, 0) == 1 &&
         X509_set_issuer_name(cert.get(), X509_get_subject_name(by)) == 1 &&
         AddExtensions(cert.get(), by, request) &&
         X509_sign(cert.get(), issuer_key != nullptr ? issuer_key : key, EVP_sha256()) > 0;
  }
  if (!ok) return OpenSslError("cannot make the certificate of " + request.common_name);
  return cert;
}

absl::StatusOr<Key> MakeKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  return key;
}

absl::StatusOr<std::string> KeyPem(EVP_PKEY* key) {
  Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr ||
      PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpenSslError("cannot encode a key");
  }
  return Contents(bio.get());
}

absl::StatusOr<std::string> CertificatePem(X509* cert) {
  Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), cert) != 1) {
    return OpenSslError("cannot encode a certificate");
  }
  return Contents(bio.get());
}

}  // namespace dgxrun::cli
