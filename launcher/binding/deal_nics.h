// Network cards to GPUs, jointly: GPU by GPU everyone would take the first card of a switch.
//
// A *card* here is a PCI function; RDMA devices of one function go together. Rails are the cards with an
// active port, of the one kind (link layer and rate) that has the most bandwidth in all: a management or
// storage port is not one. Or, when the caller or the override file says which, exactly those. The cards are
// dealt so that as many GPUs as possible have theirs at PIX, then at PXB, and so on, a card of the same
// package before one of another; each card serves at most ceil(GPUs / cards) GPUs. What is then left behind
// the same switch as a GPU goes to it as well. All GPUs of the node take part, whoever uses them: a job's
// rails do not depend on its neighbours.
#ifndef DGXRUN_LAUNCHER_BINDING_DEAL_NICS_H_
#define DGXRUN_LAUNCHER_BINDING_DEAL_NICS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

struct NicHand {
  std::vector<std::string> nics;                    // names, nearest first
  v1::PathClass path = v1::PATH_CLASS_UNSPECIFIED;  // to the first
  std::string note;                                 // why the nearest card of all is not it; empty: it is
};

struct NicDeal {
  std::vector<NicHand> hands;  // one for each GPU of the topology
  std::vector<std::string> warnings;
};

// `allowed`: names of RDMA devices, "mlx5_0" or "mlx5_0:1"; empty: all. NotFound for one that is not there.
absl::StatusOr<NicDeal> DealNics(const v1::NodeTopology& topology, const std::vector<std::string>& allowed);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_DEAL_NICS_H_
