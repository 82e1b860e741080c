// Who answers at an endpoint: asked before the agent dials, whose library says only that it does not work.
#ifndef DGXRUN_CLI_PEERS_PROBE_H_
#define DGXRUN_CLI_PEERS_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "cli/peers_key.h"

namespace dgxrun::cli {

enum class EndpointAnswer {
  kNobody,    // refused, unreachable, silent; or the time was up
  kOurs,      // a dgxrun with our key
  kOtherKey,  // a dgxrun of peers mode with another key
  kStranger,  // something else
};

struct ProbeResult {
  EndpointAnswer answer = EndpointAnswer::kNobody;
  std::string detail;  // "connection refused", "does not speak TLS"
};

// Blocks for at most `limit`, or until `abort_fd` (-1: none) can be read.
ProbeResult ProbeEndpoint(const std::string& host, uint32_t port, const PeersCertificate& certificate,
                          absl::Duration limit, int abort_fd);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_PEERS_PROBE_H_
