#include "launcher/topology/read_topology.h"

#include <errno.h>
#include <hwloc.h>
#include <string.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/topology/rdma_ports.h"
#include "launcher/topology/tree.h"

namespace dgxrun {
namespace {

// The largest node's XML is a few hundred KiB; a log or a device is a mistake.
constexpr size_t kMaxXmlBytes = 16 << 20;
// hwloc's export of a tree nests about 20 deep; its importer calls itself once per level.
constexpr int kMaxDepth = 200;

using TreePtr = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)>;

absl::StatusOr<TreePtr> NewTree() {
  hwloc_topology_t tree = nullptr;
  if (hwloc_topology_init(&tree) != 0) return absl::InternalError("hwloc cannot start");
  TreePtr owner(tree, hwloc_topology_destroy);
  // Bridges tell PIX from PXB. Disallowed CPUs too: a GPU's place does not depend on what this process may
  // use.
  hwloc_topology_set_io_types_filter(tree, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(tree, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  return owner;
}

// The first element, without comments, declarations and blanks before it: "topology version=\"2.0\"".
absl::string_view FirstElement(absl::string_view xml) {
  for (;;) {
    xml = absl::StripLeadingAsciiWhitespace(xml);
    if (!absl::StartsWith(xml, "<")) return "";
    const bool aside = absl::StartsWith(xml, "<?") || absl::StartsWith(xml, "<!");
    const absl::string_view end = absl::StartsWith(xml, "<!--") ? "-->" : ">";
    const size_t at = xml.find(end);
    if (at == absl::string_view::npos) return "";
    if (!aside) return xml.substr(1, at - 1);
    xml.remove_prefix(at + end.size());
  }
}

std::string Attribute(absl::string_view element, absl::string_view name) {
  const std::string before = absl::StrCat(" ", name, "=\"");
  const size_t at = element.find(before);
  if (at == absl::string_view::npos) return "";
  const absl::string_view rest = element.substr(at + before.size());
  return std::string(rest.substr(0, rest.find('"')));
}

// How deep elements are nested; -1: they do not close one another.
int Depth(absl::string_view xml) {
  int depth = 0;
  int deepest = 0;
  for (size_t at = xml.find('<'); at != absl::string_view::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == absl::string_view::npos) return -1;
    const char next = xml[at + 1];
    if (next == '?' || next == '!') continue;
    if (next == '/') {
      if (--depth < 0) return -1;
    } else if (xml[end - 1] != '/') {
      deepest = std::max(deepest, ++depth);
    }
  }
  return depth == 0 ? deepest : -1;
}

// What hwloc would answer with one word for all.
absl::Status CheckXml(absl::string_view xml) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(xml);
  if (stripped.empty()) return absl::InvalidArgumentError("the file is empty");
  if (xml.find('\0') != absl::string_view::npos) return absl::InvalidArgumentError("this is no text");
  const absl::string_view element = FirstElement(stripped);
  if (element.empty()) return absl::InvalidArgumentError("this is no XML");
  const absl::string_view name = element.substr(0, element.find_first_of(" \t\r\n/"));
  if (name == "system") {
    return absl::InvalidArgumentError(
        "this is NCCL's own topology (NCCL_TOPO_FILE), which has no cores; needed is hwloc's: lstopo "
        "FILE.xml");
  }
  if (name != "topology") {
    return absl::InvalidArgumentError(absl::StrCat("this is XML of <", name, ">, not a topology of hwloc"));
  }
  // None before 2.0.
  const std::string version = Attribute(element, "version");
  if (!version.empty() && !absl::StartsWith(version, "2.")) {
    return absl::InvalidArgumentError(absl::StrCat("this is of hwloc ", version,
                                                   ", and hwloc 2 reads it; write it with: lstopo "
                                                   "--export-xml-flags v2 FILE.xml"));
  }
  if (!absl::EndsWith(stripped, "</topology>")) {
    return absl::InvalidArgumentError("the file is cut short: it does not end with </topology>");
  }
  const int depth = Depth(stripped);
  if (depth < 0) return absl::InvalidArgumentError("the file is damaged: elements do not close one another");
  if (depth > kMaxDepth)
    return absl::InvalidArgumentError("the file is damaged: elements are nested too deep");
  return absl::OkStatus();
}

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<v1::NodeTopology> ParseTopology(const std::string& xml, const std::string& path) {
  if (absl::Status status = CheckXml(xml); !status.ok()) return In(path, status);
  absl::StatusOr<TreePtr> tree = NewTree();
  if (!tree.ok()) return In(path, tree.status());
  // The length counts the NUL.
  if (hwloc_topology_set_xmlbuffer(tree->get(), xml.c_str(), static_cast<int>(xml.size() + 1)) != 0 ||
      hwloc_topology_load(tree->get()) != 0) {
    return In(path, absl::InvalidArgumentError("the file is damaged: hwloc cannot read it"));
  }
  absl::StatusOr<v1::NodeTopology> topology = FromTree(tree->get());
  if (!topology.ok()) return In(path, topology.status());
  topology->set_source(path);
  return topology;
}

absl::StatusOr<v1::NodeTopology> ReadTopologyFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  std::string xml(kMaxXmlBytes + 1, '\0');
  file.read(xml.data(), static_cast<std::streamsize>(xml.size()));
  if (file.bad()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
  xml.resize(static_cast<size_t>(file.gcount()));
  if (xml.size() > kMaxXmlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": more than 16 MiB; no node's topology is so large"));
  }
  return ParseTopology(xml, path);
}

absl::StatusOr<v1::NodeTopology> ReadTopologyLive(const std::string& sysfs) {
  absl::StatusOr<TreePtr> tree = NewTree();
  if (!tree.ok()) return tree.status();
  if (hwloc_topology_load(tree->get()) != 0) {
    return absl::InternalError(absl::StrCat("hwloc cannot read this machine: ", strerror(errno)));
  }
  absl::StatusOr<v1::NodeTopology> topology = FromTree(tree->get());
  if (!topology.ok()) return topology;
  topology->set_source("live");
  // hwloc knows the cgroup; the affinity of this thread may be less.
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_s*)> own(hwloc_bitmap_alloc(),
                                                                       hwloc_bitmap_free);
  if (hwloc_get_cpubind(tree->get(), own.get(), HWLOC_CPUBIND_THREAD) == 0) {
    CpuList cpus;
    for (int cpu = hwloc_bitmap_first(own.get()); cpu >= 0; cpu = hwloc_bitmap_next(own.get(), cpu)) {
      cpus.push_back(static_cast<uint32_t>(cpu));
    }
    if (absl::Status status = RestrictCpus(FormatCpuList(cpus), &*topology); !status.ok()) return status;
  }
  ReadRdmaPorts(sysfs, &*topology);
  return topology;
}

absl::Status RestrictCpus(absl::string_view cpus, v1::NodeTopology* topology) {
  const absl::StatusOr<CpuList> wanted = ParseCpuList(cpus);
  if (!wanted.ok()) return wanted.status();
  const CpuList both = Intersection(*wanted, ListOf(topology->allowed_cpus()));
  if (both.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "none of the CPUs \"", cpus, "\" may be used here: allowed are ", topology->allowed_cpus()));
  }
  topology->set_allowed_cpus(FormatCpuList(both));
  return absl::OkStatus();
}

}  // namespace dgxrun
