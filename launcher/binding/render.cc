#include "launcher/binding/render.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/path_class.h"

namespace dgxrun {
namespace {

using Row = std::vector<std::string>;

// Columns two blanks apart; no blanks at the end of a line.
std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

CpuList CpusOf(const v1::NumaNode& numa) {
  CpuList cpus;
  for (const v1::Core& core : numa.cores()) cpus.insert(cpus.end(), core.cpus().begin(), core.cpus().end());
  return Normalized(std::move(cpus));
}

const v1::NumaNode* FindNuma(const v1::NodeTopology& topology, uint32_t id) {
  for (const v1::NumaNode& numa : topology.numa()) {
    if (numa.id() == id) return &numa;
  }
  return nullptr;
}

std::string Or(const std::string& text, const char* otherwise) { return text.empty() ? otherwise : text; }

std::string MemoryText(uint64_t bytes) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  if (bytes == 0) return "-";
  if (bytes < kGib) return absl::StrCat(bytes >> 20, " MiB");
  return absl::StrCat((bytes + kGib / 2) / kGib, " GiB");
}

std::string GpuOfMemory(const v1::NodeTopology& topology, uint32_t id) {
  for (const v1::GpuPlace& gpu : topology.gpus()) {
    if (gpu.has_memory_node() && gpu.memory_node() == id) return absl::StrCat("memory of GPU", gpu.index());
  }
  return "memory of a GPU";
}

std::string NumaTable(const v1::NodeTopology& topology) {
  const CpuList allowed = ListOf(topology.allowed_cpus());
  std::vector<Row> rows = {{"NUMA", "package", "cores", "CPUs", "allowed", "memory"}};
  for (const v1::NumaNode& numa : topology.numa()) {
    Row row = {absl::StrCat(numa.id()), absl::StrCat(numa.package())};
    if (numa.kind() == v1::NUMA_KIND_CPU) {
      const CpuList cpus = CpusOf(numa);
      const CpuList usable = Intersection(cpus, allowed);
      row.push_back(absl::StrCat(numa.cores_size()));
      row.push_back(FormatCpuList(cpus));
      row.push_back(usable == cpus ? "all" : Or(FormatCpuList(usable), "none"));
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    row.push_back(MemoryText(numa.memory_bytes()));
    if (numa.kind() == v1::NUMA_KIND_MEMORY) row.push_back("no CPUs");
    if (numa.kind() == v1::NUMA_KIND_GPU_MEMORY) row.push_back(GpuOfMemory(topology, numa.id()));
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

template <class A, class B>
std::string Cell(const A& a, const B& b) {
  return absl::StrCat(PathName(PathBetween(a, b)), CrossesPackages(a.locality(), b.locality()) ? "*" : "");
}

std::string LocalCpus(const v1::NodeTopology& topology, const v1::Locality& locality) {
  if (!locality.cpus().empty()) return locality.cpus();
  const v1::NumaNode* numa = locality.has_numa() ? FindNuma(topology, locality.numa()) : nullptr;
  return numa == nullptr ? "?" : Or(FormatCpuList(CpusOf(*numa)), "none");
}

std::string NumaWord(const v1::Locality& locality) {
  return locality.has_numa() ? absl::StrCat(locality.numa()) : "?";
}

std::string Matrix(const v1::NodeTopology& topology) {
  const int gpus = topology.gpus_size();
  const int nics = topology.nics_size();
  const bool own_memory = std::any_of(topology.gpus().begin(), topology.gpus().end(),
                                      [](const v1::GpuPlace& gpu) { return gpu.has_memory_node(); });
  Row head = {""};
  for (int i = 0; i < gpus; ++i) head.push_back(absl::StrCat("GPU", topology.gpus(i).index()));
  for (int i = 0; i < nics; ++i) head.push_back(absl::StrCat("NIC", i));
  head.insert(head.end(), {"NUMA", "CPUs"});
  if (own_memory) head.push_back("own memory");
  std::vector<Row> rows = {head};
  for (int i = 0; i < gpus; ++i) {
    const v1::GpuPlace& gpu = topology.gpus(i);
    Row row = {absl::StrCat("GPU", gpu.index())};
    for (int j = 0; j < gpus; ++j) {
      const uint32_t links = NvLinks(topology, static_cast<size_t>(i), static_cast<size_t>(j));
      row.push_back(i == j ? "X" : links > 0 ? absl::StrCat("NV", links) : Cell(gpu, topology.gpus(j)));
    }
    for (const v1::NicPlace& nic : topology.nics()) row.push_back(Cell(gpu, nic));
    row.push_back(NumaWord(gpu.locality()));
    row.push_back(LocalCpus(topology, gpu.locality()));
    if (own_memory) row.push_back(gpu.has_memory_node() ? absl::StrCat(gpu.memory_node()) : "-");
    rows.push_back(std::move(row));
  }
  for (int i = 0; i < nics; ++i) {
    const v1::NicPlace& nic = topology.nics(i);
    Row row = {absl::StrCat("NIC", i)};
    for (const v1::GpuPlace& gpu : topology.gpus()) row.push_back(Cell(nic, gpu));
    for (int j = 0; j < nics; ++j) row.push_back(i == j ? "X" : Cell(nic, topology.nics(j)));
    row.push_back(NumaWord(nic.locality()));
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

std::string PortWord(const v1::NicPort& port) {
  std::string text = absl::StrCat("port ", port.number());
  switch (static_cast<int>(port.state())) {
    case v1::PORT_STATE_ACTIVE:
      absl::StrAppend(&text, " active");
      break;
    case v1::PORT_STATE_DOWN:
      absl::StrAppend(&text, " down");
      break;
    default:
      absl::StrAppend(&text, " state not known");
  }
  if (port.link_layer() == v1::LINK_LAYER_INFINIBAND) absl::StrAppend(&text, " InfiniBand");
  if (port.link_layer() == v1::LINK_LAYER_ETHERNET) absl::StrAppend(&text, " Ethernet");
  if (port.rate_mbps() > 0) absl::StrAppend(&text, " ", port.rate_mbps() / 1000, " Gb/s");
  return text;
}

std::string Names(const v1::NodeTopology& topology) {
  std::vector<Row> rows;
  for (const v1::GpuPlace& gpu : topology.gpus()) {
    rows.push_back({absl::StrCat("GPU", gpu.index()), gpu.pci(), Or(gpu.model(), "-"), Or(gpu.uuid(), "-")});
    if (!gpu.partitions().empty()) rows.back().push_back(absl::StrCat(gpu.partitions_size(), " partitions"));
  }
  for (int i = 0; i < topology.nics_size(); ++i) {
    const v1::NicPlace& nic = topology.nics(i);
    std::vector<std::string> ports;
    for (const v1::NicPort& port : nic.ports()) ports.push_back(PortWord(port));
    std::string name = nic.name();
    if (!nic.netdev().empty() && nic.netdev() != name) absl::StrAppend(&name, " (", nic.netdev(), ")");
    rows.push_back(
        {absl::StrCat("NIC", i), nic.pci(), name, Or(absl::StrJoin(ports, ", "), "state not known")});
    if (nic.never_a_rail()) rows.back().push_back("never a rail");
  }
  return Table(rows);
}

constexpr char kLegend[] =
    "X self, NV# that many NVLinks, PIX one PCIe switch, PXB several, PHB a host bridge, NODE within a NUMA "
    "node,\n"
    "SYS between NUMA nodes; * between sockets, ? not known\n";

// GPUs of a rank: "3", "0-3", with the partition where there is one.
std::string GpuWord(const v1::NodeTopology& topology, const v1::RankBinding& rank) {
  CpuList indexes(rank.gpus().begin(), rank.gpus().end());
  std::string text = Or(FormatCpuList(Normalized(std::move(indexes))), "-");
  for (const v1::GpuPlace& gpu : topology.gpus()) {
    for (const v1::GpuPartition& partition : gpu.partitions()) {
      const std::string& name = partition.uuid().empty() ? partition.profile() : partition.uuid();
      if (std::find(rank.devices().begin(), rank.devices().end(), name) != rank.devices().end())
        absl::StrAppend(&text, ":", name);
    }
  }
  return text;
}

std::string MemoryWord(const v1::RankBinding& rank) {
  switch (static_cast<int>(rank.memory_policy())) {
    case v1::MEMORY_POLICY_PREFER:
      return absl::StrCat("prefer ", rank.mems());
    case v1::MEMORY_POLICY_BIND:
      return absl::StrCat("bind ", rank.mems());
  }
  return "-";
}

const char* NearnessWord(v1::Nearness nearness) {
  switch (static_cast<int>(nearness)) {
    case v1::NEARNESS_LOCAL:
      return "local";
    case v1::NEARNESS_PACKAGE:
      return "same socket";
    case v1::NEARNESS_NEAREST:
      return "nearest socket";
    case v1::NEARNESS_ANY:
      return "another socket";
    case v1::NEARNESS_UNKNOWN:
      return "not known";
  }
  return "-";
}

}  // namespace

std::string TopologyText(const v1::NodeTopology& topology) {
  std::string text = absl::StrCat("packages ", topology.packages(), ", NUMA nodes ", topology.numa_size(),
                                  ", GPUs ", topology.gpus_size(), ", RDMA devices ", topology.nics_size(),
                                  "\nCPUs allowed ", Or(topology.allowed_cpus(), "none"), "; memory of NUMA ",
                                  Or(topology.allowed_mems(), "none"), "\n\n", NumaTable(topology));
  if (topology.gpus_size() + topology.nics_size() > 0) {
    absl::StrAppend(&text, "\n", Matrix(topology), "\n", Names(topology), "\n", kLegend);
  }
  if (!topology.netdevs().empty()) {
    absl::StrAppend(&text, "other network interfaces: ", absl::StrJoin(topology.netdevs(), ", "), "\n");
  }
  for (const std::string& note : topology.notes()) absl::StrAppend(&text, "note: ", note, "\n");
  return text;
}

std::string BindingText(const v1::NodeTopology& topology, const v1::NodeBinding& binding) {
  std::vector<Row> rows = {
      {"rank", "GPU", "cores", "CPUs", "memory", "NIC", "path", "cores are", "OMP", "workers"}};
  std::map<std::string, CpuList> notes;  // note -> ranks
  for (const v1::RankBinding& rank : binding.ranks()) {
    rows.push_back({absl::StrCat(rank.local_rank()), GpuWord(topology, rank),
                    rank.cpus().empty() ? "-" : absl::StrCat(rank.cores()), Or(rank.cpus(), "not bound"),
                    MemoryWord(rank), Or(absl::StrJoin(rank.nics(), " "), "-"), PathName(rank.nic_path()),
                    NearnessWord(rank.nearness()), absl::StrCat(rank.omp_threads()),
                    absl::StrCat(rank.loader_workers())});
    for (const std::string& note : rank.notes()) notes[note].push_back(rank.local_rank());
  }
  std::string text = Table(rows);
  if (!binding.visible_devices().empty()) {
    absl::StrAppend(&text, "devices: ", absl::StrJoin(binding.visible_devices(), ","), "\n");
  }
  for (const std::string& warning : binding.warnings()) absl::StrAppend(&text, "warning: ", warning, "\n");
  for (const auto& [note, ranks] : notes) {
    absl::StrAppend(&text, "rank ", FormatCpuList(Normalized(ranks)), ": ", note, "\n");
  }
  return text;
}

}  // namespace dgxrun
