// The shared secret of peers mode, and the certificates that follow from it.
//
// All processes of a job have the same secret: $DGXRUN_PEERS_KEY, else the file peers.key in the user's
// folder (made with random bytes at its first use; in a shared home it is the same on all nodes). An
// authority's key is derived from it, and each process signs itself a certificate that lives in its memory:
// who has the secret is in, nobody else is. The secret is never on a command line, in a record or in a log.
#ifndef DGXRUN_CLI_PEERS_KEY_H_
#define DGXRUN_CLI_PEERS_KEY_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/paths.h"

namespace dgxrun::cli {

inline constexpr char kPeersKeyVariable[] = "DGXRUN_PEERS_KEY";
// Subject of every authority of peers mode: tells one with another key from something else that speaks TLS.
inline constexpr char kPeersAuthority[] = "dgxrun peers";

struct PeersSecret {
  std::string bytes;
  std::string from;   // "DGXRUN_PEERS_KEY" or the file's path, for people
  bool made = false;  // the file was made just now
};

// FailedPrecondition names the variable or file and what is wrong: too short, readable by others, not ours.
absl::StatusOr<PeersSecret> FindPeersSecret(const EnvMap& env, const Paths& paths);

struct PeersCertificate {
  std::string ca, cert, key;  // PEM
};
absl::StatusOr<PeersCertificate> MakePeersCertificate(const std::string& secret);

// "copy FILE of one node to all, or set DGXRUN_PEERS_KEY to the same words everywhere".
std::string HowToShareTheKey(const Paths& paths);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_PEERS_KEY_H_
