// The node's pool of reserved ports. A reserved port is a bound, never listening, dual-stack socket with
// SO_REUSEADDR: a server that sets SO_REUSEADDR too can bind and listen on it, and nobody gets it by chance
// (reference/os-facts.md 1). Where the kernel has no IPv6, the socket is bound to 0.0.0.0.
//
// A port that is taken leaves the pool with its socket and is replaced by another one, so that the port of an
// attempt differs from that of the one before. Owned by the agent's thread.
#ifndef DGXRUN_AGENT_PORTS_H_
#define DGXRUN_AGENT_PORTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::agent {

class PortPool {
 public:
  // Enough for jobs that start on one node within a heartbeat; each costs one socket.
  static constexpr size_t kPoolSize = 4;

  // Ports from [low, high]; 0, 0: any that the kernel gives.
  PortPool(uint32_t low, uint32_t high) : low_(low), high_(high), next_(low) {}

  // Brings the pool to its size. ResourceExhausted when the range has fewer free ports; the pool is then
  // short.
  absl::Status Fill();
  std::vector<uint32_t> free() const;

  // The socket that holds `port`. One that is not in the pool (the agent was restarted after it was
  // announced) is bound anew. FailedPrecondition says why it cannot be had.
  absl::StatusOr<UniqueFd> Take(uint32_t port);

 private:
  const uint32_t low_, high_;
  uint32_t next_;
  std::map<uint32_t, UniqueFd> held_;
};

// Binds `port` (0: any) as described above; the port that it got is in `*got`.
absl::StatusOr<UniqueFd> HoldPort(uint32_t port, uint32_t* got);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_PORTS_H_
