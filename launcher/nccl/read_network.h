// Reads a NodeNetwork from this machine. Every folder is a parameter, so that tests read trees of their own;
// what cannot be read stays "not known". The agent calls it at its start and whenever it sends its inventory.
#ifndef DGXRUN_LAUNCHER_NCCL_READ_NETWORK_H_
#define DGXRUN_LAUNCHER_NCCL_READ_NETWORK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/nccl/network.h"

namespace dgxrun::nccl {

struct NetworkRoots {
  std::string sysfs = "/sys";
  std::string dev = "/dev";
  std::string etc = "/etc";
};

// `addresses`: of LocalAddresses(), in its order.
NodeNetwork ReadNodeNetwork(const NetworkRoots& roots, const std::vector<InterfaceAddress>& addresses);

// All IPv4 and IPv6 addresses of this machine, in the order of getifaddrs().
absl::StatusOr<std::vector<InterfaceAddress>> LocalAddresses();

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_READ_NETWORK_H_
