#include "cli/cluster_init.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/paths.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

// A cluster lives for years and its authority is made once; leaves are renewed with the machines' upkeep.
constexpr long kCaSeconds = 10L * 365 * 24 * 3600;
constexpr long kLeafSeconds = 2L * 365 * 24 * 3600;
// Clocks of new nodes may be a little behind the one that made the certificate.
constexpr long kBackdateSeconds = 3600;
constexpr int kSerialBits = 127;  // random serials, so that two authorities of one name do not clash
constexpr int kPort = 7450;       // written into the first files; any other will do

// The name that clients check in the controller's certificate, whatever address they dial. Equal to
// kControllerName of proto/rpc/credentials.h, which this file must not include: it links no gRPC.
constexpr char kControllerAlternativeName[] = "dgxrun-controller";

template <class T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* p) const { Free(p); }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY, EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Deleter<X509, X509_free>>;
using Bio = std::unique_ptr<BIO, Deleter<BIO, BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION, X509_EXTENSION_free>>;
using BigNumber = std::unique_ptr<BIGNUM, Deleter<BIGNUM, BN_free>>;

absl::Status OpenSslError(const std::string& what) {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

struct Request {
  std::string common_name;
  bool is_ca = false;
  bool is_server = false;
  std::vector<std::string> alternative_names;
};

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

bool AddExtensions(X509* cert, X509* issuer, const Request& request) {
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

// `issuer` and `issuer_key` null: signs itself.
absl::StatusOr<Cert> MakeCertificate(const Request& request, EVP_PKEY* key, X509* issuer,
                                     EVP_PKEY* issuer_key) {
  Cert cert(X509_new());
  X509* const by = issuer != nullptr ? issuer : cert.get();
  bool ok =
      cert != nullptr && X509_set_version(cert.get(), 2) == 1 && SetSerial(cert.get()) &&
      X509_gmtime_adj(X509_getm_notBefore(cert.get()), -kBackdateSeconds) != nullptr &&
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

// Never replaces a file: O_EXCL.
absl::Status WriteNew(const std::string& path, const std::string& bytes, mode_t mode) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid() || write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return absl::FailedPreconditionError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::Status WritePair(const std::string& stem, EVP_PKEY* key, X509* cert) {
  Bio key_pem(BIO_new(BIO_s_mem()));
  Bio cert_pem(BIO_new(BIO_s_mem()));
  if (key_pem == nullptr || cert_pem == nullptr ||
      PEM_write_bio_PrivateKey(key_pem.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      PEM_write_bio_X509(cert_pem.get(), cert) != 1) {
    return OpenSslError("cannot encode " + stem);
  }
  if (absl::Status written = WriteNew(stem + ".key", Contents(key_pem.get()), 0600); !written.ok())
    return written;
  return WriteNew(stem + ".crt", Contents(cert_pem.get()), 0644);
}

absl::StatusOr<Key> MakeKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  return key;
}

absl::Status RefuseExisting(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    struct stat info;
    if (lstat(path.c_str(), &info) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " exists; nothing is overwritten: choose another folder or remove it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHost(const std::string& host) {
  const bool bad = host.empty() || host.find_first_of(" \t,;\"\\/") != std::string::npos;
  if (bad)
    return absl::InvalidArgumentError(absl::StrCat("\"", host, "\" is neither a host name nor an address"));
  return absl::OkStatus();
}

std::string HostPort(const std::string& host) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", kPort)
                                             : absl::StrCat("[", host, "]:", kPort);
}

std::string Head(const std::string& role, const std::string& name, const std::string& controller) {
  return absl::StrCat("# ", role, "\n[cluster]\nname = \"", name, "\"\ncontroller = \"", controller,
                      "\"\n\n");
}
std::string Tls(const std::string& stem) {
  return absl::StrCat("[tls]   # relative paths start at this file's folder\nca = \"ca.crt\"\ncert = \"",
                      stem, ".crt\"\nkey = \"", stem, ".key\"\n");
}

}  // namespace

absl::Status MakeClusterCertificates(const std::string& dir, const std::vector<std::string>& hosts,
                                     const std::vector<std::string>& users) {
  for (const std::string& host : hosts) {
    if (absl::Status ok = CheckHost(host); !ok.ok()) return ok;
  }
  std::vector<std::pair<std::string, Request>> leaves;
  Request controller{.common_name = "controller", .is_server = true};
  controller.alternative_names = {kControllerAlternativeName};
  controller.alternative_names.insert(controller.alternative_names.end(), hosts.begin(), hosts.end());
  leaves.emplace_back("controller", controller);
  leaves.emplace_back("agent", Request{.common_name = "agent"});
  for (const std::string& user : users)
    leaves.emplace_back("user-" + user, Request{.common_name = "user:" + user});

  std::vector<std::string> paths = {dir + "/ca.key", dir + "/ca.crt"};
  for (const auto& [stem, request] : leaves) {
    paths.push_back(absl::StrCat(dir, "/", stem, ".key"));
    paths.push_back(absl::StrCat(dir, "/", stem, ".crt"));
  }
  if (absl::Status fresh = RefuseExisting(paths); !fresh.ok()) return fresh;
  if (absl::Status made = MakeFolders(dir, 0700); !made.ok()) return made;

  auto ca_key = MakeKey();
  if (!ca_key.ok()) return ca_key.status();
  const Request authority{.common_name = "dgxrun cluster authority", .is_ca = true};
  auto ca = MakeCertificate(authority, ca_key->get(), nullptr, nullptr);
  if (!ca.ok()) return ca.status();
  if (absl::Status written = WritePair(dir + "/ca", ca_key->get(), ca->get()); !written.ok()) return written;
  for (const auto& [stem, request] : leaves) {
    auto key = MakeKey();
    if (!key.ok()) return key.status();
    auto cert = MakeCertificate(request, key->get(), ca->get(), ca_key->get());
    if (!cert.ok()) return cert.status();
    absl::Status written = WritePair(absl::StrCat(dir, "/", stem), key->get(), cert->get());
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InitCluster(const std::string& dir, const std::string& name,
                                        const std::vector<std::string>& hosts,
                                        const std::vector<std::string>& users) {
  if (hosts.empty()) return absl::InvalidArgumentError("give the controller's name or address: --host NAME");
  if (users.empty()) return absl::InvalidArgumentError("give an account: --user NAME");
  const std::string files[] = {dir + "/controller.toml", dir + "/agent.toml", dir + "/cluster.toml"};
  if (absl::Status fresh = RefuseExisting({files[0], files[1], files[2]}); !fresh.ok()) return fresh;
  if (absl::Status made = MakeClusterCertificates(dir, hosts, users); !made.ok()) return made;

  const std::string dialled = HostPort(hosts[0]);
  const std::string controller = absl::StrCat(
      Head("For dgxrun-controller.", name, dialled),
      "[controller]\nstate_dir = \"/var/lib/dgxrun/controller\"   # the log; a local disk, never NFS\n",
      "listen = \"0.0.0.0:", kPort, "\"\n\n", Tls("controller"));
  const std::string agent = absl::StrCat(
      Head("For dgxrun-agent, the same on every node.", name, dialled),
      "[agent]\nstate_dir = \"/var/lib/dgxrun/agent\"\nrun_dir = \"/run/dgxrun/jobs\"   # a tmpfs\n",
      "log_dir = \"/var/log/dgxrun\"\n\n", Tls("agent"));
  const std::string client = absl::StrCat(
      Head(absl::StrCat("For users: ~/.config/dgxrun/cluster.toml or /etc/dgxrun/cluster.toml, with "
                        "the user's own certificate."),
           name, dialled),
      Tls("user-" + users[0]));
  const std::string texts[] = {controller, agent, client};
  for (size_t i = 0; i < 3; ++i) {
    if (absl::Status written = WriteNew(files[i], texts[i], 0644); !written.ok()) return written;
  }
  return absl::StrCat("made ", dir, ": ca.key stays here, and away from the nodes\n",
                      "  controller's machine: ca.crt controller.{crt,key,toml}; dgxrun-controller --config ",
                      "controller.toml\n",
                      "  every node:           ca.crt agent.{crt,key,toml}; dgxrun-agent --config ",
                      "agent.toml\n", "  user ", users[0], ":  ca.crt user-", users[0],
                      ".{crt,key} and cluster.toml as ~/.config/dgxrun/cluster.toml\n");
}

}  // namespace dgxrun::cli
