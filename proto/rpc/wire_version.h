// The version of the wire that this binary speaks, and who may talk to whom: the major must be equal,
// the minor may differ by one (a cluster is upgraded node by node).
#ifndef DGXRUN_PROTO_RPC_WIRE_VERSION_H_
#define DGXRUN_PROTO_RPC_WIRE_VERSION_H_

#include <string>

#include "absl/status/status.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace grpc {
class ClientContext;
class ServerContextBase;
}  // namespace grpc

namespace dgxrun {

v1::WireVersion OurWireVersion();

// FailedPrecondition names both versions and which side to upgrade. `peer`: "agent", "controller", "dgxrun".
absl::Status CheckWireVersion(const v1::WireVersion& theirs, const std::string& peer);

// A client says its version with every call, as metadata "dgxrun-wire: 1.1 0.3.0" (major.minor release); so
// no request needs a field for it.
inline constexpr char kWireVersionKey[] = "dgxrun-wire";
void SayWireVersion(grpc::ClientContext* context);
// OK too where nothing is said (clients before wire 1.2 said it in Info and Submit only). InvalidArgument:
// what is said is no version.
absl::Status CheckSaidVersion(const grpc::ServerContextBase& context, const std::string& peer);

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_RPC_WIRE_VERSION_H_
