// A node's topology and a plan for it as JSON, for programs. Pure. The names are stable: docs/topology.md
// lists them. The texts for people are in launcher/binding/render.h.
#ifndef DGXRUN_CLI_TOPO_JSON_H_
#define DGXRUN_CLI_TOPO_JSON_H_

#include <string>

#include "dgxrun/v1/topology.pb.h"

namespace dgxrun::cli {

// Both end with a newline. What is not known is null.
std::string TopologyJson(const v1::NodeTopology& topology);
std::string BindingJson(const v1::NodeBinding& binding);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_TOPO_JSON_H_
