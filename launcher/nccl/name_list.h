// The lists of NCCL_SOCKET_IFNAME and NCCL_IB_HCA as NCCL itself reads them (nccl 2.18 to 2.30,
// misc/socket.cc and misc/utils.cc): an optional `^` (all but these), then an optional `=` (whole names),
// then names with commas between them. Both marks speak for the whole list. Without `=` a name is a PREFIX:
// mlx5_1 takes mlx5_10 too. No blanks are trimmed. Which interface or device a value takes is decided here
// and nowhere else.
#ifndef DGXRUN_LAUNCHER_NCCL_NAME_LIST_H_
#define DGXRUN_LAUNCHER_NCCL_NAME_LIST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/nccl/network.h"

namespace dgxrun::nccl {

// Versions as NCCL numbers them (2.28.3 is 22803).
inline constexpr int kDownIsSkippedSince = 22803;  // before, interfaces that are down are taken too
inline constexpr int kDynamicGidSince = 22100;     // before, NCCL_IB_GID_INDEX is 0 unless set

using Environment = std::map<std::string, std::string>;

struct NameToken {
  std::string name;
  int port = -1;  // -1: any
};

struct NameList {
  bool exclude = false;
  bool exact = false;
  std::vector<NameToken> tokens;  // empty: matches everything (with `^`: nothing)

  bool Takes(absl::string_view name, int port) const;
  // Whether this one token matches, without regard to `^`.
  bool TokenMatches(const NameToken& token, absl::string_view name, int port) const;
};

NameList ParseNameList(absl::string_view value);

struct PortRef {
  const RdmaDevice* device;
  const RdmaPort* port;
};
std::string PortName(const PortRef& ref);  // "mlx5_0:1"

// The ports that NCCL uses of a node: ACTIVE, of a link layer it knows, taken by `hca` (NCCL_IB_HCA; empty:
// all).
std::vector<PortRef> UsablePorts(const NodeNetwork& node, absl::string_view hca);

// The interfaces that NCCL uses, in its order; the first is that of the bootstrap. What NCCL_SOCKET_IFNAME
// selects, else NCCL's own pick: ib*, then all but docker*, lo* and virbr*, then docker*, lo*, virbr*. NCCL
// older than 2.28.3 (`version` below 22803; 0: not known, read as a new one) takes interfaces that are down.
std::vector<const NetInterface*> NcclInterfaces(const NodeNetwork& node, const Environment& env, int version);

// What strtoll(base 0) makes of it, as NCCL does: "1x" is 1 and "true" is 0. `clean` says whether all of it
// was a number.
int64_t NcclNumber(absl::string_view text, bool* clean);

// /etc/nccl.conf or ~/.nccl.conf: NAME=VALUE, `#` in the first column is a comment, nothing is trimmed.
Environment ParseNcclConf(absl::string_view text);
// What a rank of this node really has: `env`, and below it the node's /etc/nccl.conf.
Environment EffectiveEnvironment(const NodeNetwork& node, const Environment& env);

std::string ValueOf(const Environment& env, const std::string& name);  // empty: unset

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_NAME_LIST_H_
