// Which versions of the wire may talk: the major is equal, the minor differs by at most one. The one place
// that says so; the core (which links no gRPC) and proto/rpc/wire_version.h both ask it.
#ifndef DGXRUN_PROTO_WIRE_RULE_H_
#define DGXRUN_PROTO_WIRE_RULE_H_

#include <algorithm>

#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun {

inline bool WireVersionsAgree(const v1::WireVersion& a, const v1::WireVersion& b) {
  return a.major() == b.major() && std::max(a.minor(), b.minor()) - std::min(a.minor(), b.minor()) <= 1;
}

}  // namespace dgxrun

#endif  // DGXRUN_PROTO_WIRE_RULE_H_
