// The one file that reads keys and certificates, and says who a peer is.
//
// Off loopback there is only mutual TLS. Certificates come from `dgxrun cluster init`: common names are
// "controller", "agent" and "user:<account>"; every controller certificate carries the fixed subject
// alternative name kControllerName, which clients check instead of the address they dialled.
#ifndef DGXRUN_PROTO_RPC_CREDENTIALS_H_
#define DGXRUN_PROTO_RPC_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/channel_arguments.h"

namespace dgxrun {

inline constexpr char kControllerName[] = "dgxrun-controller";
inline constexpr char kAgentName[] = "dgxrun-agent";  // the same, of agents

struct TlsFiles {
  std::string ca, cert, key;  // PEM paths
  bool empty() const { return ca.empty() && cert.empty() && key.empty(); }
};

// The same, made in memory and kept there (peers mode). Whoever made them has checked them.
struct TlsPems {
  std::string ca, cert, key;  // PEM texts
  bool empty() const { return cert.empty(); }
};
inline constexpr char kPeerName[] = "peer";  // common name of every certificate in peers mode

// Errors name the file and what is wrong: missing, unreadable, a key that others may read, expired.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerTls(const TlsFiles& files);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientTls(const TlsFiles& files);

std::shared_ptr<grpc::ServerCredentials> ServerTls(const TlsPems& pems);

// Channel and server arguments that every connection of ours uses; each with its reason in the .cc
// (sizes, back-off, no proxy, no port sharing, no BDP probes).
// `server`: the name that its certificate must carry.
grpc::ChannelArguments ClientArguments(bool tls, const char* server = kControllerName);
void SetServerArguments(grpc::ServerBuilder* builder);

// Connects to "unix:/path" (plain; the server asks the kernel who we are) or "host:port" (TLS).
// `bulk`: a connection of its own, never shared with another channel to the same target.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& target, const TlsFiles& files,
                                                    bool bulk);

std::shared_ptr<grpc::Channel> Dial(const std::string& target, const TlsPems& pems, bool bulk);

// From one agent to another: its certificate must name it an agent.
absl::StatusOr<std::shared_ptr<grpc::Channel>> DialAgent(const std::string& target, const TlsFiles& files);

// Common name of the client's verified certificate; empty when there is none (unix socket, in process).
std::string TlsCommonName(const grpc::ServerContextBase& context);

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_RPC_CREDENTIALS_H_
