#include "launcher/binding/plan_binding.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/binding/cpu_list.h"
#include "launcher/binding/deal_nics.h"
#include "launcher/binding/split_cores.h"

namespace dgxrun {
namespace {

// The training loop and NCCL's threads keep about two cores busy; the rest may load data. More than 16
// workers of a rank cost memory and seldom help.
constexpr uint32_t kCoresOfTheLoop = 2;
constexpr uint32_t kMaxLoaderWorkers = 16;

// What is near a rank: one entry for each of its GPUs, or one for a rank without.
struct Place {
  Share share;
  Home home;
};

class Planner {
 public:
  Planner(const v1::NodeTopology& topology, const BindingRequest& request)
      : topology_(topology), request_(request), nodes_(CpuNodes(topology)), units_(UnitsOf(topology)) {}

  absl::StatusOr<v1::NodeBinding> Plan() {
    if (request_.ranks == 0) return absl::InvalidArgumentError("a node must have at least one rank");
    if (nodes_.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no CPU may be used: allowed are \"", topology_.allowed_cpus(), "\", which no NUMA node here has"));
    }
    absl::StatusOr<std::vector<size_t>> chosen = ChooseUnits(topology_, units_, request_.gpus);
    if (!chosen.ok()) return chosen.status();
    chosen_ = *std::move(chosen);
    if (WantsGpus() && chosen_.empty()) {
      return absl::NotFoundError("the job asks for GPUs, and the devices that it names are none");
    }
    if (!chosen_.empty()) {
      absl::StatusOr<NicDeal> deal = DealNics(topology_, request_.nics);
      if (!deal.ok()) return deal.status();
      deal_ = *std::move(deal);
      PlaceUnits();
    } else {
      PlaceCpuRanks();
    }
    v1::NodeBinding binding;
    for (size_t unit : chosen_) binding.add_visible_devices(DeviceName(topology_, units_[unit]));
    for (uint32_t rank = 0; rank < request_.ranks; ++rank) *binding.add_ranks() = PlanRank(rank);
    NoteSharedCores(&binding);
    const std::vector<std::string> far = FarWarnings();
    if (request_.strict && !far.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("not all ranks can be beside their GPUs: ", absl::StrJoin(far, "; ")));
    }
    for (const std::string& warning : far) binding.add_warnings(warning);
    for (const std::string& warning : deal_.warnings) binding.add_warnings(warning);
    return binding;
  }

 private:
  bool WantsGpus() const {
    return request_.gpus.count > 0 || request_.gpus.visible.has_value() || !request_.gpus.indices.empty();
  }

  const v1::Locality& LocalityOf(size_t unit) const {
    return topology_.gpus(static_cast<int>(units_[unit].gpu)).locality();
  }

  // Places of all units, in their numbering; with CpuShare::kJob only those of the job have one.
  void PlaceUnits() {
    std::vector<size_t> takers(units_.size());
    std::iota(takers.begin(), takers.end(), 0);
    if (request_.cpu_share == CpuShare::kJob) {
      takers = chosen_;
      std::sort(takers.begin(), takers.end());
    }
    std::vector<const v1::Locality*> localities;
    localities.reserve(takers.size());
    for (size_t unit : takers) localities.push_back(&LocalityOf(unit));
    const std::vector<Home> homes = FindHomes(topology_, nodes_, localities);
    std::vector<Share> shares = SplitNodes(nodes_, localities, homes);
    if (request_.cpu_share == CpuShare::kPackage) AddIdleNodes(topology_, nodes_, homes, &shares);
    places_.resize(units_.size());
    for (size_t i = 0; i < takers.size(); ++i) places_[takers[i]] = {std::move(shares[i]), homes[i]};
  }

  // One place for each rank: nodes in proportion to their cores, blocks of each.
  void PlaceCpuRanks() {
    const std::vector<size_t> counts = Apportion(nodes_, request_.ranks);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (size_t i = 0; i < counts[n]; ++i) {
        const Block block = BlockOf(nodes_[n].cores.size(), counts[n], i);
        Place place{{}, {n, v1::NEARNESS_LOCAL}};
        for (size_t core = block.begin; core < block.end; ++core) place.share.push_back({n, core});
        places_.push_back(std::move(place));
      }
    }
  }

  // Units of a rank, or none.
  std::vector<size_t> UnitsOfRank(uint32_t rank) const {
    if (chosen_.empty()) return {};
    if (chosen_.size() <= request_.ranks) return {chosen_[rank % chosen_.size()]};
    const Block block = BlockOf(chosen_.size(), request_.ranks, rank);
    return {chosen_.begin() + static_cast<std::ptrdiff_t>(block.begin),
            chosen_.begin() + static_cast<std::ptrdiff_t>(block.end)};
  }

  // Its part of the cores where several ranks use one unit.
  Share PartOf(const Share& share, uint32_t rank) const {
    if (chosen_.empty() || chosen_.size() >= request_.ranks) return share;
    const size_t unit = rank % chosen_.size();
    const size_t ranks = (request_.ranks - unit - 1) / chosen_.size() + 1;  // that use this unit
    const Block block = BlockOf(share.size(), ranks, rank / chosen_.size());
    return {share.begin() + static_cast<std::ptrdiff_t>(block.begin),
            share.begin() + static_cast<std::ptrdiff_t>(block.end)};
  }

  v1::RankBinding PlanRank(uint32_t rank) {
    v1::RankBinding binding;
    binding.set_local_rank(rank);
    const std::vector<size_t> units = UnitsOfRank(rank);
    Share share;
    std::set<size_t> homes;
    v1::Nearness nearness = v1::NEARNESS_UNSPECIFIED;
    for (size_t place : units.empty() ? std::vector<size_t>{rank} : units) {
      const Share part = PartOf(places_[place].share, rank);
      share.insert(share.end(), part.begin(), part.end());
      homes.insert(places_[place].home.node);
      nearness = std::max(nearness, places_[place].home.nearness);
    }
    const uint32_t own_cores = static_cast<uint32_t>(share.size());
    FillGpus(units, &binding);
    if (request_.bind != Bind::kNone) {
      binding.set_nearness(nearness);
      BindCpus(share, homes, &binding);
      BindMemory(homes, &binding);
    }
    uint32_t threads = own_cores;
    if (request_.bind == Bind::kNone) {
      size_t cores = 0;
      for (const CpuNode& node : nodes_) cores += node.cores.size();
      threads = static_cast<uint32_t>(cores / request_.ranks);
    }
    binding.set_omp_threads(std::max<uint32_t>(1, threads));
    const uint32_t spare = threads > kCoresOfTheLoop ? threads - kCoresOfTheLoop : 1;
    binding.set_loader_workers(std::min(spare, kMaxLoaderWorkers));
    return binding;
  }

  void FillGpus(const std::vector<size_t>& units, v1::RankBinding* binding) const {
    std::set<std::string> seen;
    for (size_t unit : units) {
      const v1::GpuPlace& gpu = topology_.gpus(static_cast<int>(units_[unit].gpu));
      binding->add_gpus(gpu.index());
      binding->add_devices(DeviceName(topology_, units_[unit]));
      const NicHand& hand = deal_.hands[units_[unit].gpu];
      if (binding->nics().empty()) binding->set_nic_path(hand.path);
      for (const std::string& nic : hand.nics) {
        if (seen.insert(nic).second) binding->add_nics(nic);
      }
      if (!hand.note.empty() && seen.insert(hand.note).second) binding->add_notes(hand.note);
    }
  }

  void BindCpus(const Share& share, const std::set<size_t>& homes, v1::RankBinding* binding) const {
    Share cores = share;
    if (request_.bind == Bind::kNuma || request_.bind == Bind::kSocket) {
      std::set<uint32_t> packages;
      for (size_t home : homes) packages.insert(nodes_[home].package);
      cores.clear();
      for (size_t n = 0; n < nodes_.size(); ++n) {
        if (request_.bind == Bind::kNuma ? homes.count(n) == 0 : packages.count(nodes_[n].package) == 0)
          continue;
        for (size_t core = 0; core < nodes_[n].cores.size(); ++core) cores.push_back({n, core});
      }
    }
    std::set<std::pair<size_t, size_t>> distinct;
    CpuList cpus;
    size_t in_part = 0;
    for (const CoreRef& ref : cores) {
      if (!distinct.emplace(ref.node, ref.core).second) continue;
      const CpuNode::UsableCore& core = nodes_[ref.node].cores[ref.core];
      cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
      in_part += core.in_part ? 1 : 0;
    }
    binding->set_cpus(FormatCpuList(Normalized(std::move(cpus))));
    binding->set_cores(static_cast<uint32_t>(distinct.size()));
    if (in_part > 0) {
      binding->add_notes(absl::StrCat(in_part, " of its ", distinct.size(),
                                      " cores in part only: not all hardware threads are allowed"));
    }
  }

  // Nodes are homes here, so they have CPUs: a GPU's own memory, HBM and CXL never come in.
  void BindMemory(const std::set<size_t>& homes, v1::RankBinding* binding) const {
    if (request_.membind == Membind::kNone) return;
    std::set<uint32_t> packages;
    for (size_t home : homes) packages.insert(nodes_[home].package);
    CpuList mems;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const bool near =
          request_.bind == Bind::kSocket ? packages.count(nodes_[n].package) != 0 : homes.count(n) != 0;
      if (near) mems.push_back(nodes_[n].id);
    }
    mems = Normalized(std::move(mems));
    const CpuList held = Intersection(mems, ListOf(topology_.allowed_mems()));
    if (held.empty()) {
      binding->add_notes(absl::StrCat("no memory policy: memory of NUMA ", FormatCpuList(mems),
                                      " is not allowed, only of ", topology_.allowed_mems()));
      return;
    }
    binding->set_mems(FormatCpuList(held));
    binding->set_memory_policy(request_.membind == Membind::kStrict ? v1::MEMORY_POLICY_BIND
                                                                    : v1::MEMORY_POLICY_PREFER);
  }

  void NoteSharedCores(v1::NodeBinding* binding) const {
    if (request_.bind != Bind::kCore) return;
    std::map<uint32_t, int> users;
    for (const v1::RankBinding& rank : binding->ranks()) {
      for (uint32_t cpu : ListOf(rank.cpus())) ++users[cpu];
    }
    for (v1::RankBinding& rank : *binding->mutable_ranks()) {
      int most = 1;
      for (uint32_t cpu : ListOf(rank.cpus())) most = std::max(most, users[cpu]);
      if (most > 1)
        rank.add_notes(absl::StrCat("there are fewer cores than ranks: ", most, " ranks share one"));
    }
  }

  // One line for all GPUs that were displaced alike.
  std::vector<std::string> FarWarnings() const {
    if (request_.bind == Bind::kNone) return {};
    struct Far {
      CpuList gpus, from, to;
    };
    enum class Known { kNuma, kPackage, kNothing };
    std::map<std::pair<Known, v1::Nearness>, Far> alike;
    for (size_t unit : chosen_) {
      const Home& home = places_[unit].home;
      if (home.nearness == v1::NEARNESS_LOCAL) continue;
      const v1::Locality& locality = LocalityOf(unit);
      const Known known = locality.has_numa()      ? Known::kNuma
                          : locality.has_package() ? Known::kPackage
                                                   : Known::kNothing;
      Far& far = alike[{known, home.nearness}];
      far.gpus.push_back(topology_.gpus(static_cast<int>(units_[unit].gpu)).index());
      if (known == Known::kNuma) far.from.push_back(locality.numa());
      if (known == Known::kPackage) far.from.push_back(locality.package());
      far.to.push_back(nodes_[home.node].id);
    }
    std::vector<std::string> warnings;
    for (const auto& [how, far] : alike) {
      const std::string from = FormatCpuList(Normalized(far.from));
      const std::string why =
          how.first == Known::kNuma      ? absl::StrCat("no allowed core to spare on NUMA ", from)
          : how.first == Known::kPackage ? absl::StrCat("only its socket is known (", from, ")")
                                         : "where it is, is not known";
      warnings.push_back(absl::StrCat("GPU ", FormatCpuList(Normalized(far.gpus)), ": ", why,
                                      "; cores of NUMA ", FormatCpuList(Normalized(far.to)), ", ",
                                      WordOf(how.second)));
    }
    return warnings;
  }

  static const char* WordOf(v1::Nearness nearness) {
    switch (static_cast<int>(nearness)) {
      case v1::NEARNESS_PACKAGE:
        return "in its socket";
      case v1::NEARNESS_NEAREST:
        return "the nearest of another socket";
      case v1::NEARNESS_ANY:
        return "of another socket";
      case v1::NEARNESS_UNKNOWN:
        return "perhaps far";
    }
    return "its own";
  }

  const v1::NodeTopology& topology_;
  const BindingRequest& request_;
  const std::vector<CpuNode> nodes_;
  const std::vector<Unit> units_;
  std::vector<size_t> chosen_;  // units of the job, in the order of ranks
  std::vector<Place> places_;   // by unit; by rank where there are no GPUs
  NicDeal deal_;
};

// The order of a message's lists must not matter.
v1::NodeTopology Ordered(const v1::NodeTopology& topology) {
  v1::NodeTopology ordered = topology;
  std::map<uint32_t, v1::NumaNode> numa;
  std::vector<uint32_t> old_ids;
  for (const v1::NumaNode& node : topology.numa()) {
    old_ids.push_back(node.id());
    numa[node.id()] = node;
  }
  ordered.clear_numa();
  for (auto& [id, node] : numa) {
    std::map<uint32_t, uint32_t> by_id;  // distances follow their node
    for (int i = 0; i < node.distances_size() && i < static_cast<int>(old_ids.size()); ++i) {
      by_id[old_ids[static_cast<size_t>(i)]] = node.distances(i);
    }
    node.clear_distances();
    for (const auto& [to, distance] : by_id) node.add_distances(distance);
    std::sort(node.mutable_cores()->begin(), node.mutable_cores()->end(),
              [](const v1::Core& a, const v1::Core& b) {
                return std::lexicographical_compare(a.cpus().begin(), a.cpus().end(), b.cpus().begin(),
                                                    b.cpus().end());
              });
    *ordered.add_numa() = std::move(node);
  }
  std::vector<int> gpus(static_cast<size_t>(topology.gpus_size()));
  std::iota(gpus.begin(), gpus.end(), 0);
  std::stable_sort(gpus.begin(), gpus.end(),
                   [&](int a, int b) { return topology.gpus(a).index() < topology.gpus(b).index(); });
  ordered.clear_gpus();
  for (int i : gpus) {
    v1::GpuPlace* gpu = ordered.add_gpus();
    *gpu = topology.gpus(i);
    gpu->clear_nvlinks();
    for (int j : gpus) {
      if (j < topology.gpus(i).nvlinks_size()) gpu->add_nvlinks(topology.gpus(i).nvlinks(j));
    }
  }
  std::stable_sort(ordered.mutable_nics()->begin(), ordered.mutable_nics()->end(),
                   [](const v1::NicPlace& a, const v1::NicPlace& b) {
                     return std::tuple(a.pci(), a.name().size(), a.name()) <
                            std::tuple(b.pci(), b.name().size(), b.name());
                   });
  return ordered;
}

absl::Status UnknownWord(absl::string_view word, absl::string_view words) {
  return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is none of ", words));
}

}  // namespace

absl::StatusOr<v1::NodeBinding> PlanBinding(const v1::NodeTopology& topology, const BindingRequest& request) {
  const v1::NodeTopology ordered = Ordered(topology);
  return Planner(ordered, request).Plan();
}

absl::StatusOr<Bind> ParseBind(absl::string_view word) {
  if (word == "core") return Bind::kCore;
  if (word == "numa") return Bind::kNuma;
  if (word == "socket") return Bind::kSocket;
  if (word == "none") return Bind::kNone;
  return UnknownWord(word, "core, numa, socket, none");
}

absl::StatusOr<CpuShare> ParseCpuShare(absl::string_view word) {
  if (word == "node") return CpuShare::kNode;
  if (word == "job") return CpuShare::kJob;
  if (word == "package") return CpuShare::kPackage;
  return UnknownWord(word, "node, job, package");
}

absl::StatusOr<Membind> ParseMembind(absl::string_view word) {
  if (word == "prefer") return Membind::kPrefer;
  if (word == "strict") return Membind::kStrict;
  if (word == "none") return Membind::kNone;
  return UnknownWord(word, "prefer, strict, none");
}

}  // namespace dgxrun
