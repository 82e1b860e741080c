#include "launcher/binding/path_class.h"

#include <algorithm>

namespace dgxrun {

v1::PathClass PathBetween(const v1::PciPath& a_path, const v1::Locality& a, const v1::PciPath& b_path,
                          const v1::Locality& b) {
  if (a_path.host_bridge() == b_path.host_bridge()) {
    const int shorter = std::min(a_path.bridges_size(), b_path.bridges_size());
    int common = 0;
    while (common < shorter && a_path.bridges(common) == b_path.bridges(common)) ++common;
    if (common == 0) return v1::PATH_CLASS_PHB;
    const bool one_switch = a_path.bridges_size() - common <= 1 && b_path.bridges_size() - common <= 1;
    return one_switch ? v1::PATH_CLASS_PIX : v1::PATH_CLASS_PXB;
  }
  const bool same_numa = a.has_numa() && b.has_numa() && a.numa() == b.numa();
  return same_numa ? v1::PATH_CLASS_NODE : v1::PATH_CLASS_SYS;
}

bool CrossesPackages(const v1::Locality& a, const v1::Locality& b) {
  return a.has_package() && b.has_package() && a.package() != b.package();
}

uint32_t NvLinks(const v1::NodeTopology& topology, size_t a, size_t b) {
  const auto& links = topology.gpus(static_cast<int>(a)).nvlinks();
  return a == b || static_cast<size_t>(links.size()) <= b ? 0 : links[static_cast<int>(b)];
}

const char* PathName(v1::PathClass path) {
  switch (static_cast<int>(path)) {
    case v1::PATH_CLASS_PIX:
      return "PIX";
    case v1::PATH_CLASS_PXB:
      return "PXB";
    case v1::PATH_CLASS_PHB:
      return "PHB";
    case v1::PATH_CLASS_NODE:
      return "NODE";
    case v1::PATH_CLASS_SYS:
      return "SYS";
  }
  return "-";
}

}  // namespace dgxrun
