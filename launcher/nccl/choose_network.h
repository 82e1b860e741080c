// Which network a job uses, from the facts of all its nodes: a pure function, called by the controller when
// it makes the plan of a launch (the result goes into each node's environment and MASTER_ADDR). What the user
// or the cluster file set is never replaced; lint.h checks it.
//
// The rules:
//   one node          NCCL uses no network card; nothing is set.
//   RDMA              when every node has ACTIVE ports of one link layer that its ranks can open. Taken are
//   the
//                     rails of the plan (RankBinding.nics) where the caller knows them, else the fastest
//                     ports. Written as whole names (`=mlx5_0:1,...`), with NCCL_NET=IB: a rank that cannot
//                     use them fails at once in place of training on TCP.
//   sockets           otherwise; warned about where some nodes have RDMA.
//   the interface     one subnet that every node is in: for RDMA the one in which the agents reached the
//                     controller (it only carries the bootstrap), for sockets the fastest. No subnet in
//                     common (routed fabrics): the interface of the contact address. Interfaces that are
//                     down, have only link-local addresses, or belong to containers and tunnels are not
//                     looked at.
#ifndef DGXRUN_LAUNCHER_NCCL_CHOOSE_NETWORK_H_
#define DGXRUN_LAUNCHER_NCCL_CHOOSE_NETWORK_H_

#include <map>
#include <string>
#include <vector>

#include "launcher/nccl/name_list.h"
#include "launcher/nccl/network.h"

namespace dgxrun::nccl {

struct NetworkRequest {
  Environment set;            // NCCL_*, GLOO_* of the user and of the cluster file
  bool require_rdma = false;  // the cluster file's `net = "IB"`
  int nccl_version = 0;       // 22809 for 2.28.9; 0: not known
  // Node name -> RDMA devices of the plan, as "mlx5_0". A node that is not in it: not known.
  std::map<std::string, std::vector<std::string>> rails;
};

enum class Transport { kLocal, kInfiniBand, kRoce, kSocket };
const char* Word(Transport transport);

struct NodeChoice {
  std::string node;
  Environment env;        // to add to the ranks' environment; differs between nodes where their names do
  std::string interface;  // of the bootstrap; empty: NCCL's own pick
  std::string address;    // on it: MASTER_ADDR where this node has rank 0, and what peers must reach
  std::vector<std::string> ports;  // "mlx5_0:1"
};

struct NetworkChoice {
  Transport transport = Transport::kLocal;
  std::vector<NodeChoice> nodes;      // in the order of the input
  std::vector<std::string> notes;     // what was decided and why, one line each
  std::vector<std::string> warnings;  // what a person should look at
};

// The same result for the same input. `nodes` in the order of their ranks; an empty list gives an empty
// choice.
NetworkChoice ChooseNetwork(const std::vector<NodeNetwork>& nodes, const NetworkRequest& request);

// Whether an interface can carry a job between nodes at all: up, with an address that is neither loopback nor
// link-local, and not one of a container or a tunnel (docker*, veth*, br-*, cni*, flannel*, virbr*, wg*,
// ...).
bool CarriesJobs(const NetInterface& interface);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_CHOOSE_NETWORK_H_
