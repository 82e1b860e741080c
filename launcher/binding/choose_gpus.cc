#include "launcher/binding/choose_gpus.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/binding/path_class.h"

namespace dgxrun {
namespace {

// Up to here all subsets are compared (16 GPUs, half of them: 12,870); above, sets are grown one by one.
constexpr uint64_t kMaxSubsets = 20000;

const v1::GpuPlace& GpuOf(const v1::NodeTopology& topology, const Unit& unit) {
  return topology.gpus(static_cast<int>(unit.gpu));
}

// CUDA takes any unambiguous beginning of a UUID.
bool Names(const v1::NodeTopology& topology, const Unit& unit, absl::string_view word) {
  const v1::GpuPlace& gpu = GpuOf(topology, unit);
  uint32_t index = 0;
  if (absl::SimpleAtoi(word, &index)) return unit.partition <= 0 && index == gpu.index();
  if (unit.partition < 0) return absl::StartsWith(word, "GPU-") && absl::StartsWith(gpu.uuid(), word);
  const v1::GpuPartition& partition = gpu.partitions(unit.partition);
  // A GPU that is cut up is used through its first instance when its own name is given, as CUDA does.
  if (absl::StartsWith(word, "GPU-")) return unit.partition == 0 && absl::StartsWith(gpu.uuid(), word);
  return absl::StartsWith(word, "MIG-") && absl::StartsWith(partition.uuid(), word);
}

absl::StatusOr<size_t> FindDevice(const v1::NodeTopology& topology, const std::vector<Unit>& units,
                                  absl::string_view word) {
  std::vector<size_t> found;
  for (size_t i = 0; i < units.size(); ++i) {
    if (Names(topology, units[i], word)) found.push_back(i);
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("device \"", word, "\" may be any of ", found.size()));
  }
  if (!found.empty()) return found.front();
  std::vector<std::string> names;
  names.reserve(units.size());
  for (const Unit& unit : units) names.push_back(DeviceName(topology, unit));
  return absl::NotFoundError(absl::StrCat("there is no device \"", word, "\" here; ",
                                          names.empty() ? "there is no GPU" : "there are ",
                                          absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::vector<size_t>> Named(const v1::NodeTopology& topology, const std::vector<Unit>& units,
                                          const GpuRequest& request) {
  std::vector<std::string> words;
  if (request.visible.has_value()) {
    for (absl::string_view word : absl::StrSplit(*request.visible, ',')) {
      word = absl::StripAsciiWhitespace(word);
      if (!word.empty()) words.emplace_back(word);
    }
  } else {
    for (uint32_t index : request.indices) words.push_back(absl::StrCat(index));
  }
  std::vector<size_t> chosen;
  for (const std::string& word : words) {
    // CUDA ends the list here; what follows is not visible.
    if (word == "-1" || word == "NoDevFiles" || word == "void" || word == "none") break;
    const absl::StatusOr<size_t> found = FindDevice(topology, units, word);
    if (!found.ok()) return found.status();
    if (std::find(chosen.begin(), chosen.end(), *found) != chosen.end()) {
      return absl::InvalidArgumentError(absl::StrCat("device \"", word, "\" is named twice"));
    }
    chosen.push_back(*found);
  }
  if (request.count > chosen.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", request.count, " GPUs, and ", chosen.size(), " are named"));
  }
  if (request.count > 0) chosen.resize(request.count);
  for (size_t i : chosen) {
    const uint32_t index = GpuOf(topology, units[i]).index();
    if (request.occupied.count(index) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("GPU ", index, " is held by another job"));
    }
  }
  return chosen;
}

// (NVLinks, PCI steps) between two units; two instances of one GPU are as near as can be.
struct Bond {
  int64_t links = 0;
  int64_t steps = 0;
};

Bond BondOf(const v1::NodeTopology& topology, const Unit& a, const Unit& b) {
  if (a.gpu == b.gpu) return {};
  const v1::GpuPlace& first = GpuOf(topology, a);
  const v1::GpuPlace& second = GpuOf(topology, b);
  // Two packages are farther than two NUMA nodes of one.
  const int64_t crossing = CrossesPackages(first.locality(), second.locality()) ? 1 : 0;
  return {NvLinks(topology, a.gpu, b.gpu), PathBetween(first, second) + crossing};
}

// Smaller is better.
using Score = std::tuple<int64_t, int64_t, int64_t, int64_t>;

class Chooser {
 public:
  Chooser(const v1::NodeTopology& topology, const std::vector<Unit>& units, std::vector<size_t> free)
      : free_(std::move(free)), bonds_(free_.size(), std::vector<Bond>(free_.size())) {
    for (size_t i = 0; i < free_.size(); ++i) {
      for (size_t j = 0; j < free_.size(); ++j)
        bonds_[i][j] = BondOf(topology, units[free_[i]], units[free_[j]]);
    }
  }

  std::vector<size_t> Best(size_t count) {
    if (Subsets(free_.size(), count) <= kMaxSubsets) {
      Walk(0, count);
    } else {
      for (size_t seed = 0; seed < free_.size(); ++seed) Grow(seed, count);
    }
    std::vector<size_t> chosen;
    for (size_t i : best_) chosen.push_back(free_[i]);
    return chosen;
  }

 private:
  static uint64_t Subsets(uint64_t n, uint64_t k) {
    uint64_t subsets = 1;
    for (uint64_t i = 0; i < k && subsets <= kMaxSubsets; ++i) subsets = subsets * (n - i) / (i + 1);
    return subsets;
  }

  Score ScoreOf(const std::vector<size_t>& set) const {
    std::vector<char> in(free_.size(), 0);
    for (size_t i : set) in[i] = 1;
    Bond inside;
    Bond torn;
    for (size_t i : set) {
      for (size_t j = 0; j < free_.size(); ++j) {
        Bond* into = in[j] != 0 ? &inside : &torn;
        into->links += bonds_[i][j].links;
        into->steps += bonds_[i][j].steps;
      }
    }
    // Links that this set tears from what is left count against it; long paths to the others count for it.
    return {-inside.links, inside.steps, torn.links, -torn.steps};
  }

  void Consider(const std::vector<size_t>& set) {
    const Score score = ScoreOf(set);
    if (best_.empty() || score < best_score_) {
      best_score_ = score;
      best_ = set;
    }
  }

  void Walk(size_t from, size_t count) {
    if (set_.size() == count) return Consider(set_);
    for (size_t i = from; i + (count - set_.size()) <= free_.size(); ++i) {
      set_.push_back(i);
      Walk(i + 1, count);
      set_.pop_back();
    }
  }

  void Grow(size_t seed, size_t count) {
    std::vector<size_t> set = {seed};
    while (set.size() < count) {
      size_t next = free_.size();
      std::pair<int64_t, int64_t> nearest;
      for (size_t i = 0; i < free_.size(); ++i) {
        if (std::find(set.begin(), set.end(), i) != set.end()) continue;
        std::pair<int64_t, int64_t> sum{0, 0};
        for (size_t j : set) {
          sum.first -= bonds_[i][j].links;
          sum.second += bonds_[i][j].steps;
        }
        if (next == free_.size() || sum < nearest) {
          next = i;
          nearest = sum;
        }
      }
      set.push_back(next);
    }
    std::sort(set.begin(), set.end());
    Consider(set);
  }

  const std::vector<size_t> free_;
  std::vector<std::vector<Bond>> bonds_;
  std::vector<size_t> set_, best_;
  Score best_score_;
};

}  // namespace

std::vector<Unit> UnitsOf(const v1::NodeTopology& topology) {
  std::vector<Unit> units;
  for (int i = 0; i < topology.gpus_size(); ++i) {
    const int partitions = topology.gpus(i).partitions_size();
    if (partitions == 0) units.push_back({static_cast<size_t>(i), -1});
    for (int p = 0; p < partitions; ++p) units.push_back({static_cast<size_t>(i), p});
  }
  return units;
}

absl::StatusOr<std::vector<size_t>> ChooseUnits(const v1::NodeTopology& topology,
                                                const std::vector<Unit>& units, const GpuRequest& request) {
  if (request.visible.has_value() || !request.indices.empty()) return Named(topology, units, request);
  std::vector<size_t> free;
  for (size_t i = 0; i < units.size(); ++i) {
    if (request.occupied.count(GpuOf(topology, units[i]).index()) == 0) free.push_back(i);
  }
  if (free.size() < request.count) {
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", request.count, " GPUs; ", free.size(), " of ", units.size(), " are free"));
  }
  if (request.count == 0) return std::vector<size_t>();
  return Chooser(topology, units, std::move(free)).Best(request.count);
}

std::string DeviceName(const v1::NodeTopology& topology, const Unit& unit) {
  const v1::GpuPlace& gpu = GpuOf(topology, unit);
  if (unit.partition >= 0) {
    const v1::GpuPartition& partition = gpu.partitions(unit.partition);
    return !partition.uuid().empty() ? partition.uuid() : partition.profile();
  }
  return !gpu.uuid().empty() ? gpu.uuid() : absl::StrCat(gpu.index());
}

}  // namespace dgxrun
