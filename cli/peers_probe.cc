#include "cli/peers_probe.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/certificates.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

using AddressList = OpenSslPtr<addrinfo, freeaddrinfo>;

class Deadline {
 public:
  Deadline(absl::Duration limit, int abort_fd) : end_(absl::Now() + limit), abort_fd_(abort_fd) {}

  // Whether `fd` became ready; false: the time is up, or somebody wants to leave.
  bool Wait(int fd, short events) const {
    pollfd fds[2] = {{fd, events, 0}, {abort_fd_, POLLIN, 0}};
    for (;;) {
      const int64_t left = absl::ToInt64Milliseconds(end_ - absl::Now());
      if (left <= 0) return false;
      const int ready = poll(fds, abort_fd_ >= 0 ? 2 : 1, static_cast<int>(left));
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0 && fds[1].revents == 0;
    }
  }

 private:
  const absl::Time end_;
  const int abort_fd_;
};

UniqueFd ConnectTo(const addrinfo& address, const Deadline& deadline, std::string* why) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = 0;
  if (!fd.valid()) {
    error = errno;
  } else if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      error = ETIMEDOUT;
      if (deadline.Wait(fd.get(), POLLOUT)) getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error == 0) return fd;
  *why = strerror(error);
  return UniqueFd();
}

X509* ReadCertificate(const std::string& pem) {
  OpenSslPtr<BIO, BIO_free_all> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr);
}

std::string CommonName(X509_NAME* name) {
  char text[128] = "";
  X509_NAME_get_text_by_NID(name, NID_commonName, text, sizeof text);
  return text;
}

// What its certificate says of the server; dates do not matter here.
ProbeResult Judge(X509* theirs, const PeersCertificate& ours) {
  if (theirs == nullptr || CommonName(X509_get_issuer_name(theirs)) != kPeersAuthority) {
    return {EndpointAnswer::kStranger, "speaks TLS, but is no dgxrun"};
  }
  OpenSslPtr<X509, X509_free> ca(ReadCertificate(ours.ca));
  EVP_PKEY* key = ca != nullptr ? X509_get0_pubkey(ca.get()) : nullptr;
  const bool same = key != nullptr && X509_verify(theirs, key) == 1;
  ERR_clear_error();
  return {same ? EndpointAnswer::kOurs : EndpointAnswer::kOtherKey, ""};
}

ProbeResult Shake(int fd, const PeersCertificate& certificate, const Deadline& deadline) {
  OpenSslPtr<SSL_CTX, SSL_CTX_free> context(SSL_CTX_new(TLS_client_method()));
  OpenSslPtr<SSL, SSL_free> ssl(context != nullptr ? SSL_new(context.get()) : nullptr);
  static constexpr unsigned char kH2[] = {2, 'h', '2'};  // as gRPC asks
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1 ||
      SSL_set_alpn_protos(ssl.get(), kH2, sizeof kH2) != 0) {
    return {EndpointAnswer::kNobody, "TLS cannot be started"};
  }
  // Without a certificate of ours the other side would call the handshake failed, and say so.
  OpenSslPtr<X509, X509_free> cert(ReadCertificate(certificate.cert));
  OpenSslPtr<BIO, BIO_free_all> bio(
      BIO_new_mem_buf(certificate.key.data(), static_cast<int>(certificate.key.size())));
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (cert == nullptr || key == nullptr || SSL_use_certificate(ssl.get(), cert.get()) != 1 ||
      SSL_use_PrivateKey(ssl.get(), key.get()) != 1) {
    return {EndpointAnswer::kNobody, "TLS cannot be started"};
  }
  SSL_set_verify(ssl.get(), SSL_VERIFY_NONE, nullptr);  // Judge says more than yes or no
  for (;;) {
    const int done = SSL_connect(ssl.get());
    if (done == 1) break;
    const int error = SSL_get_error(ssl.get(), done);
    ERR_clear_error();
    const short events = error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
    if (events == 0) return {EndpointAnswer::kStranger, "does not speak TLS"};
    if (!deadline.Wait(fd, events)) return {EndpointAnswer::kNobody, "took the connection and said nothing"};
  }
  OpenSslPtr<X509, X509_free> theirs(SSL_get1_peer_certificate(ssl.get()));
  return Judge(theirs.get(), certificate);
}

}  // namespace

ProbeResult ProbeEndpoint(const std::string& host, uint32_t port, const PeersCertificate& certificate,
                          absl::Duration limit, int abort_fd) {
  const Deadline deadline(limit, abort_fd);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return {EndpointAnswer::kNobody, gai_strerror(error)};
  const AddressList addresses(found);
  ProbeResult last;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const UniqueFd fd = ConnectTo(*address, deadline, &last.detail);
    if (fd.valid()) return Shake(fd.get(), certificate, deadline);
  }
  return last;
}

}  // namespace dgxrun::cli
