// The version of the wire that this binary speaks, and who may talk to whom: the major must be equal,
// the minor may differ by one (a cluster is upgraded node by node).
#ifndef DGXRUN_PROTO_RPC_WIRE_VERSION_H_
#define DGXRUN_PROTO_RPC_WIRE_VERSION_H_

#include <string>

#include "absl/status/status.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun {

v1::WireVersion OurWireVersion();

// FailedPrecondition names both versions and which side to upgrade. `peer`: "agent", "controller", "dgxrun".
absl::Status CheckWireVersion(const v1::WireVersion& theirs, const std::string& peer);

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_RPC_WIRE_VERSION_H_
