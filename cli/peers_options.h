// The options of peers mode as values. Pure.
#ifndef DGXRUN_CLI_PEERS_OPTIONS_H_
#define DGXRUN_CLI_PEERS_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dgxrun::cli {

inline constexpr uint32_t kDefaultEndpointPort = 29400;  // torchrun's
// Peers hold endpoint port + 1 .. + this for MASTER_PORT: enough for some jobs on neighbouring ports.
inline constexpr uint32_t kMasterPorts = 64;

struct PeersOptions {
  std::string host;  // name or address, without brackets
  uint32_t port = kDefaultEndpointPort;
  std::string rdzv_id = "none";  // as torchrun's
  std::optional<uint32_t> node_rank;
  // A node without a word from the endpoint's process for so long kills its ranks.
  absl::Duration orphan_timeout = absl::Seconds(60);
  absl::Duration join_timeout = absl::Seconds(600);  // as torchrun's; zero: none

  std::string endpoint() const;  // "host:port"; an IPv6 address in brackets
};

// As typed; empty: not given.
struct PeersWords {
  std::string endpoint, rdzv_id, backend, node_rank, orphan_timeout, join_timeout;
};

// nullopt: no endpoint is given, so it is no launch of peers. Errors: one line for the user; also where other
// options of peers mode are given without an endpoint.
absl::StatusOr<std::optional<PeersOptions>> ParsePeers(const PeersWords& words);

// torchrun's --nnodes: "2" or "2:2". A range is refused.
absl::StatusOr<std::string> NodesWord(const std::string& nnodes);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_PEERS_OPTIONS_H_
