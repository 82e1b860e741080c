#include "launcher/topology/overrides.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/base/nearest_word.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/topology/merge_driver.h"

// As in launcher/base/cluster_file.cc, which says why.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#undef TOML_EXCEPTIONS
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(expr) static_cast<void>(0)
#include "toml++/toml.h"

namespace dgxrun {
namespace {

constexpr size_t kMaxOverrideBytes = 1 << 20;  // some lines

class Overrides {
 public:
  Overrides(const std::string& path, v1::NodeTopology* topology) : path_(path), topology_(topology) {}

  absl::Status Apply(const toml::table& root) {
    for (const auto& [key, node] : root) {
      const std::string section(key.str());
      const toml::table* entries = node.as_table();
      if (section != "gpu" && section != "nic" && section != "numa") {
        Fail(key.source(), Unknown("section", section, {"gpu", "nic", "numa"}));
      } else if (entries == nullptr) {
        Fail(node.source(), absl::StrCat("[", section, "] must be a table"));
      } else {
        for (const auto& [name, entry] : *entries) Entry(section, name, entry);
      }
    }
    if (!status_.ok()) return status_;
    DropUnused();
    return absl::OkStatus();
  }

 private:
  void Fail(const toml::source_region& where, const std::string& message) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ":", where.begin.line, ":", where.begin.column, ": ", message));
  }

  static std::string Unknown(const char* what, const std::string& word,
                             const std::vector<std::string>& words) {
    const std::string nearest = NearestWord(word, words);
    return absl::StrCat("unknown ", what, " \"", word, "\"",
                        nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
                        " (there are: ", words.empty() ? "none" : absl::StrJoin(words, ", "), ")");
  }

  void Entry(const std::string& section, const toml::key& name, const toml::node& node) {
    const toml::table* table = node.as_table();
    const std::string word(name.str());
    if (table == nullptr)
      return Fail(node.source(), absl::StrCat("[", section, ".", word, "] must be a table"));
    if (section == "gpu") return Gpu(word, name, *table);
    if (section == "nic") return Nic(word, name, *table);
    Numa(word, name, *table);
  }

  void CheckKeys(const toml::table& table, const std::vector<std::string>& keys) {
    for (const auto& [key, value] : table) {
      const std::string word(key.str());
      if (std::find(keys.begin(), keys.end(), word) == keys.end())
        Fail(key.source(), Unknown("key", word, keys));
    }
  }

  void Gpu(const std::string& pci, const toml::key& name, const toml::table& table) {
    CheckKeys(table, {"numa", "use"});
    std::vector<std::string> all;
    for (v1::GpuPlace& gpu : *topology_->mutable_gpus()) {
      all.push_back(gpu.pci());
      if (gpu.pci() != pci) continue;
      Move(absl::StrCat("GPU ", pci), table, gpu.mutable_locality());
      if (Flag(table, "use", true)) return;
      unused_.insert(pci);
      topology_->add_notes(absl::StrCat("GPU ", pci, " is left out: ", path_));
      return;
    }
    Fail(name.source(), Unknown("GPU", pci, all));
  }

  void Nic(const std::string& device, const toml::key& name, const toml::table& table) {
    CheckKeys(table, {"numa", "rail"});
    std::vector<std::string> all;
    for (v1::NicPlace& nic : *topology_->mutable_nics()) {
      all.push_back(nic.name());
      if (nic.name() != device) continue;
      Move(device, table, nic.mutable_locality());
      nic.set_never_a_rail(!Flag(table, "rail", true));
      if (nic.never_a_rail()) topology_->add_notes(absl::StrCat(device, " is never a rail: ", path_));
      return;
    }
    Fail(name.source(), Unknown("RDMA device", device, all));
  }

  void Numa(const std::string& word, const toml::key& name, const toml::table& table) {
    CheckKeys(table, {"memory_only"});
    std::vector<std::string> all;
    for (v1::NumaNode& numa : *topology_->mutable_numa()) {
      all.push_back(absl::StrCat(numa.id()));
      if (all.back() != word) continue;
      if (!Flag(table, "memory_only", false) || numa.kind() != v1::NUMA_KIND_CPU) return;
      return MakeMemoryOnly(name, &numa);
    }
    Fail(name.source(), Unknown("NUMA node", word, all));
  }

  void MakeMemoryOnly(const toml::key& name, v1::NumaNode* numa) {
    CpuList left = ListOf(topology_->allowed_cpus());
    CpuList gone;
    for (const v1::Core& core : numa->cores())
      gone.insert(gone.end(), core.cpus().begin(), core.cpus().end());
    gone = Normalized(std::move(gone));
    left.erase(std::remove_if(left.begin(), left.end(), [&](uint32_t cpu) { return Contains(gone, cpu); }),
               left.end());
    if (left.empty()) return Fail(name.source(), "without this NUMA node no allowed CPU is left");
    topology_->set_allowed_cpus(FormatCpuList(left));
    numa->clear_cores();
    numa->set_kind(v1::NUMA_KIND_MEMORY);
    topology_->add_notes(absl::StrCat("NUMA ", numa->id(), " is memory only: ", path_));
  }

  void Move(const std::string& what, const toml::table& table, v1::Locality* locality) {
    const toml::node* node = table.get("numa");
    if (node == nullptr) return;
    const auto* value = node->as_integer();
    if (value == nullptr) return Fail(node->source(), "\"numa\" must be a number");
    std::vector<std::string> all;
    for (const v1::NumaNode& numa : topology_->numa()) {
      if (numa.kind() == v1::NUMA_KIND_GPU_MEMORY) continue;
      all.push_back(absl::StrCat(numa.id()));
      if (value->get() != static_cast<int64_t>(numa.id())) continue;
      topology_->add_notes(absl::StrCat(what, " is on NUMA ", numa.id(), ", not ",
                                        locality->has_numa() ? absl::StrCat(locality->numa()) : "unknown",
                                        ": ", path_));
      locality->set_numa(numa.id());
      locality->set_package(numa.package());
      locality->clear_cpus();
      return;
    }
    Fail(node->source(), absl::StrCat("there is no NUMA node ", value->get(), " for ", what,
                                      " (there are: ", absl::StrJoin(all, ", "), ")"));
  }

  bool Flag(const toml::table& table, const char* key, bool otherwise) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return otherwise;
    const auto* value = node->as_boolean();
    if (value != nullptr) return value->get();
    Fail(node->source(), absl::StrCat("\"", key, "\" must be true or false"));
    return otherwise;
  }

  // Numbers and links follow the GPUs that stay, as when the driver does not show one.
  void DropUnused() {
    if (unused_.empty()) return;
    std::vector<DriverDevice> left;
    for (const v1::GpuPlace& gpu : topology_->gpus()) {
      if (unused_.count(gpu.pci()) == 0) left.push_back({gpu.pci(), gpu.uuid(), gpu.model(), {}});
    }
    const int notes = topology_->notes_size();
    MergeDriver(left, topology_);
    topology_->mutable_notes()->DeleteSubrange(notes, topology_->notes_size() - notes);  // said already
  }

  const std::string& path_;
  v1::NodeTopology* const topology_;
  std::set<std::string> unused_;
  absl::Status status_;
};

}  // namespace

absl::Status ApplyOverrides(const std::string& text, const std::string& path, v1::NodeTopology* topology) {
  const toml::parse_result parsed = toml::parse(text, path);
  if (parsed.failed()) {
    const toml::parse_error& error = parsed.error();
    const std::string description(error.description());
    return absl::InvalidArgumentError(absl::StrCat(path, ":", error.source().begin.line, ":",
                                                   error.source().begin.column, ": ", description));
  }
  v1::NodeTopology changed = *topology;
  if (absl::Status status = Overrides(path, &changed).Apply(parsed.table()); !status.ok()) return status;
  *topology = std::move(changed);
  return absl::OkStatus();
}

absl::Status ApplyOverrideFile(const std::string& path, v1::NodeTopology* topology) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  std::string text(kMaxOverrideBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxOverrideBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than 1 MiB"));
  return ApplyOverrides(text, path, topology);
}

}  // namespace dgxrun
