#include "proto/rpc/credentials.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "openssl/bio.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/x509.h"

namespace dgxrun {
namespace {

// A NodePlan with the caller's environment, or the status of a job of thousands of ranks.
constexpr int kMaxMessageBytes = 16 << 20;
// Despite its name this is the time limit of one attempt to connect: with less, a controller that 10,000
// agents come back to never gets one of them through the handshake.
constexpr int kConnectTimeoutMs = 10000;
constexpr int kFirstBackoffMs = 100;  // a controller that was restarted is found again at once
constexpr int kMaxBackoffMs = 1000;   // and within a second after a longer pause

// Over a network a dead peer is found by pings: after a partition has healed, the old connection would
// else wait for its whole retransmission back-off. The server allows pings this often.
constexpr int kKeepaliveMs = 3000;
constexpr int kKeepaliveTimeoutMs = 2000;
constexpr int kMinPingIntervalMs = 1000;

struct BioFree {
  void operator()(BIO* b) const { BIO_free(b); }
};
struct X509Free {
  void operator()(X509* x) const { X509_free(x); }
};
struct KeyFree {
  void operator()(EVP_PKEY* k) const { EVP_PKEY_free(k); }
};
using BioPtr = std::unique_ptr<BIO, BioFree>;
using X509Ptr = std::unique_ptr<X509, X509Free>;
using KeyPtr = std::unique_ptr<EVP_PKEY, KeyFree>;

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* what) {
  if (path.empty()) return absl::InvalidArgumentError(absl::StrCat("TLS: no ", what, " file is given"));
  std::ifstream in(path);
  if (!in) {
    const std::string text = absl::StrCat(path, " (TLS ", what, "): ", strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(text) : absl::NotFoundError(text);
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<X509Ptr> ParseCertificate(const std::string& path, const std::string& pem) {
  BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  X509Ptr cert(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (cert == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no PEM certificate"));
  if (X509_cmp_current_time(X509_get0_notAfter(cert.get())) <= 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the certificate has expired"));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(cert.get())) > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": the certificate is not valid yet; is this machine's clock right?"));
  }
  return cert;
}

absl::StatusOr<TlsPems> ReadPems(const TlsFiles& files) {
  TlsPems pems;
  for (auto [path, what, out] :
       {std::tuple<const std::string&, const char*, std::string*>{files.ca, "ca", &pems.ca},
        {files.cert, "cert", &pems.cert},
        {files.key, "key", &pems.key}}) {
    absl::StatusOr<std::string> text = ReadPem(path, what);
    if (!text.ok()) return text.status();
    *out = *std::move(text);
  }
  struct stat info;
  if (stat(files.key.c_str(), &info) != 0 || (info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(files.key, ": others may read this key; chmod 600 ", files.key));
  }
  absl::StatusOr<X509Ptr> ca = ParseCertificate(files.ca, pems.ca);
  if (!ca.ok()) return ca.status();
  absl::StatusOr<X509Ptr> cert = ParseCertificate(files.cert, pems.cert);
  if (!cert.ok()) return cert.status();
  BioPtr bio(BIO_new_mem_buf(pems.key.data(), static_cast<int>(pems.key.size())));
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return absl::InvalidArgumentError(absl::StrCat(files.key, ": holds no PEM key"));
  if (X509_check_private_key(cert->get(), key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.key, ": is not the key of ", files.cert));
  }
  KeyPtr ca_key(X509_get_pubkey(ca->get()));
  if (ca_key == nullptr || X509_verify(cert->get(), ca_key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(files.cert, ": was not signed by ", files.ca));
  }
  return pems;
}

std::shared_ptr<grpc::ChannelCredentials> ClientTlsFrom(const TlsPems& pems) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pems.ca;
  options.pem_cert_chain = pems.cert;
  options.pem_private_key = pems.key;
  return grpc::SslCredentials(options);
}

grpc::ChannelArguments DialArguments(bool tls, bool bulk) {
  grpc::ChannelArguments arguments = ClientArguments(tls);
  if (bulk) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerTls(const TlsPems& pems) {
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pems.ca;
  options.pem_key_cert_pairs.push_back({pems.key, pems.cert});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerTls(const TlsFiles& files) {
  absl::StatusOr<TlsPems> pems = ReadPems(files);
  if (!pems.ok()) return pems.status();
  return ServerTls(*pems);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientTls(const TlsFiles& files) {
  absl::StatusOr<TlsPems> pems = ReadPems(files);
  if (!pems.ok()) return pems.status();
  return ClientTlsFrom(*pems);
}

grpc::ChannelArguments ClientArguments(bool tls, const char* server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // Supervision of a cluster must not depend on a proxy for web pages.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  if (tls) {
    // Certificates name the server by its role: an address may change, the trust does not.
    arguments.SetSslTargetNameOverride(server);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  }
  return arguments;
}

void SetServerArguments(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  // Else the kernel lets two controllers listen on one port and deals connections out between them.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Both re-arm timers at every read, which cost half of a loaded server's time; agents have heartbeats.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& target, const TlsFiles& files,
                                                    bool bulk) {
  const bool local = absl::StartsWith(target, "unix:");
  const grpc::ChannelArguments arguments = DialArguments(!local, bulk);
  if (local) return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  if (files.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(target, " needs TLS: the cluster file has no [tls] ca, cert, key"));
  }
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = ClientTls(files);
  if (!credentials.ok()) return credentials.status();
  return grpc::CreateCustomChannel(target, *credentials, arguments);
}

std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsPems& pems, bool bulk) {
  return grpc::CreateCustomChannel(target, ClientTlsFrom(pems), DialArguments(/*tls=*/true, bulk));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> DialAgent(const std::string& target, const TlsFiles& files) {
  if (absl::StartsWith(target, "unix:")) return Dial(target, files, /*bulk=*/false);
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = ClientTls(files);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments = ClientArguments(/*tls=*/true, kAgentName);
  // A witness has to be found within its second, not within a back-off.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  return grpc::CreateCustomChannel(target, *credentials, arguments);
}

std::string TlsCommonName(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return "";
  const std::vector<grpc::string_ref> names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  // More than one common name: nobody, rather than the first.
  return names.size() == 1 ? std::string(names[0].data(), names[0].size()) : "";
}

}  // namespace dgxrun
