// How near two devices are. A PCIe switch is an upstream port and its downstream ports, each a bridge: two
// devices below the same upstream port, each on a downstream port of it (or on none), are PIX.
#ifndef DGXRUN_LAUNCHER_BINDING_PATH_CLASS_H_
#define DGXRUN_LAUNCHER_BINDING_PATH_CLASS_H_

#include <cstddef>
#include <cstdint>

#include "dgxrun/v1/topology.pb.h"

namespace dgxrun {

// Of a GPU or a network card; both have `locality` and `path`. SYS where either place is not known.
v1::PathClass PathBetween(const v1::PciPath& a_path, const v1::Locality& a, const v1::PciPath& b_path,
                          const v1::Locality& b);

template <class A, class B>
v1::PathClass PathBetween(const A& a, const B& b) {
  return PathBetween(a.path(), a.locality(), b.path(), b.locality());
}

// Both packages are known and differ.
bool CrossesPackages(const v1::Locality& a, const v1::Locality& b);

// Links between two GPUs, by position in topology.gpus; 0 where there are none or it is not known.
uint32_t NvLinks(const v1::NodeTopology& topology, size_t a, size_t b);

// "PIX"; "-" for PATH_CLASS_UNSPECIFIED.
const char* PathName(v1::PathClass path);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BINDING_PATH_CLASS_H_
