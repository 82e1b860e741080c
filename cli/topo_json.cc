#include "cli/topo_json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "launcher/binding/cpu_list.h"
#include "launcher/binding/path_class.h"

namespace dgxrun::cli {
namespace {

using TopoJson = nlohmann::ordered_json;

// Names come from a file that anybody may have written: what is not UTF-8 is replaced; dump would throw.
std::string DumpTopo(const TopoJson& json) {
  return json.dump(2, ' ', false, TopoJson::error_handler_t::replace) + "\n";
}

TopoJson TextOrNull(const std::string& text) { return text.empty() ? TopoJson(nullptr) : TopoJson(text); }

template <class List>
TopoJson TextList(const List& list) {
  TopoJson json = TopoJson::array();
  for (const std::string& text : list) json.push_back(text);
  return json;
}

const char* KindWord(v1::NumaKind kind) {
  switch (static_cast<int>(kind)) {
    case v1::NUMA_KIND_CPU:
      return "cpu";
    case v1::NUMA_KIND_MEMORY:
      return "memory";
    case v1::NUMA_KIND_GPU_MEMORY:
      return "gpu_memory";
  }
  return "unknown";
}

const char* NearWord(v1::Nearness nearness) {
  switch (static_cast<int>(nearness)) {
    case v1::NEARNESS_LOCAL:
      return "local";
    case v1::NEARNESS_PACKAGE:
      return "package";
    case v1::NEARNESS_NEAREST:
      return "nearest";
    case v1::NEARNESS_ANY:
      return "any";
    case v1::NEARNESS_UNKNOWN:
      return "unknown";
  }
  return "not_bound";
}

const char* PolicyWord(v1::MemoryPolicy policy) {
  switch (static_cast<int>(policy)) {
    case v1::MEMORY_POLICY_PREFER:
      return "prefer";
    case v1::MEMORY_POLICY_BIND:
      return "bind";
  }
  return "default";
}

TopoJson PortJson(const v1::NicPort& port) {
  TopoJson json;
  json["number"] = port.number();
  json["active"] = port.state() == v1::PORT_STATE_UNSPECIFIED
                       ? TopoJson(nullptr)
                       : TopoJson(port.state() == v1::PORT_STATE_ACTIVE);
  json["rate_mbps"] = port.rate_mbps() > 0 ? TopoJson(port.rate_mbps()) : TopoJson(nullptr);
  json["link_layer"] = port.link_layer() == v1::LINK_LAYER_INFINIBAND ? TopoJson("InfiniBand")
                       : port.link_layer() == v1::LINK_LAYER_ETHERNET ? TopoJson("Ethernet")
                                                                      : TopoJson(nullptr);
  return json;
}

void AddPlace(const v1::Locality& locality, TopoJson* json) {
  (*json)["numa"] = locality.has_numa() ? TopoJson(locality.numa()) : TopoJson(nullptr);
  (*json)["package"] = locality.has_package() ? TopoJson(locality.package()) : TopoJson(nullptr);
}

TopoJson NumaJson(const v1::NumaNode& numa) {
  TopoJson json;
  json["id"] = numa.id();
  json["package"] = numa.package();
  json["kind"] = KindWord(numa.kind());
  CpuList cpus;
  for (const v1::Core& core : numa.cores()) cpus.insert(cpus.end(), core.cpus().begin(), core.cpus().end());
  json["cpus"] = FormatCpuList(Normalized(std::move(cpus)));
  json["cores"] = numa.cores_size();
  json["memory_bytes"] = numa.memory_bytes();
  return json;
}

TopoJson GpuJson(const v1::NodeTopology& topology, int i) {
  const v1::GpuPlace& gpu = topology.gpus(i);
  TopoJson json;
  json["index"] = gpu.index();
  json["pci"] = gpu.pci();
  json["uuid"] = TextOrNull(gpu.uuid());
  json["model"] = TextOrNull(gpu.model());
  AddPlace(gpu.locality(), &json);
  json["memory_node"] = gpu.has_memory_node() ? TopoJson(gpu.memory_node()) : TopoJson(nullptr);
  json["to_gpus"] = TopoJson::array();
  for (int j = 0; j < topology.gpus_size(); ++j) {
    const uint32_t links = NvLinks(topology, static_cast<size_t>(i), static_cast<size_t>(j));
    const std::string path = PathName(PathBetween(gpu, topology.gpus(j)));
    json["to_gpus"].push_back(i == j ? "X" : links > 0 ? "NV" + std::to_string(links) : path);
  }
  json["to_nics"] = TopoJson::array();
  for (const v1::NicPlace& nic : topology.nics()) json["to_nics"].push_back(PathName(PathBetween(gpu, nic)));
  json["partitions"] = TopoJson::array();
  for (const v1::GpuPartition& partition : gpu.partitions()) {
    json["partitions"].push_back(
        {{"uuid", TextOrNull(partition.uuid())}, {"profile", TextOrNull(partition.profile())}});
  }
  return json;
}

TopoJson NicJson(const v1::NicPlace& nic) {
  TopoJson json;
  json["name"] = nic.name();
  json["pci"] = TextOrNull(nic.pci());
  json["netdev"] = TextOrNull(nic.netdev());
  AddPlace(nic.locality(), &json);
  json["never_a_rail"] = nic.never_a_rail();
  json["ports"] = TopoJson::array();
  for (const v1::NicPort& port : nic.ports()) json["ports"].push_back(PortJson(port));
  return json;
}

TopoJson RankJsonOf(const v1::RankBinding& rank) {
  TopoJson json;
  json["local_rank"] = rank.local_rank();
  json["gpus"] = TopoJson::array();
  for (uint32_t gpu : rank.gpus()) json["gpus"].push_back(gpu);
  json["devices"] = TextList(rank.devices());
  json["cpus"] = TextOrNull(rank.cpus());
  json["cores"] = rank.cores();
  json["memory_policy"] = PolicyWord(rank.memory_policy());
  json["mems"] = TextOrNull(rank.mems());
  json["nics"] = TextList(rank.nics());
  json["nic_path"] =
      rank.nic_path() == v1::PATH_CLASS_UNSPECIFIED ? TopoJson(nullptr) : TopoJson(PathName(rank.nic_path()));
  json["nearness"] = NearWord(rank.nearness());
  json["omp_threads"] = rank.omp_threads();
  json["loader_workers"] = rank.loader_workers();
  json["notes"] = TextList(rank.notes());
  return json;
}

}  // namespace

std::string TopologyJson(const v1::NodeTopology& topology) {
  TopoJson json;
  json["source"] = topology.source();
  json["packages"] = topology.packages();
  json["allowed_cpus"] = topology.allowed_cpus();
  json["allowed_mems"] = topology.allowed_mems();
  json["numa"] = TopoJson::array();
  for (const v1::NumaNode& numa : topology.numa()) json["numa"].push_back(NumaJson(numa));
  json["gpus"] = TopoJson::array();
  for (int i = 0; i < topology.gpus_size(); ++i) json["gpus"].push_back(GpuJson(topology, i));
  json["nics"] = TopoJson::array();
  for (const v1::NicPlace& nic : topology.nics()) json["nics"].push_back(NicJson(nic));
  json["netdevs"] = TextList(topology.netdevs());
  json["notes"] = TextList(topology.notes());
  return DumpTopo(json);
}

std::string BindingJson(const v1::NodeBinding& binding) {
  TopoJson json;
  json["ranks"] = TopoJson::array();
  for (const v1::RankBinding& rank : binding.ranks()) json["ranks"].push_back(RankJsonOf(rank));
  json["visible_devices"] = TextList(binding.visible_devices());
  json["warnings"] = TextList(binding.warnings());
  return DumpTopo(json);
}

}  // namespace dgxrun::cli
