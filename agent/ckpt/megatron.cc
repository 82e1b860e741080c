// Megatron-LM: iter_NNNNNNN in its three formats, and NeMo 2, which wraps one.
//   torch_dist   .distcp shards, .metadata, then metadata.json, which marks the end
//   torch_dcp    the same without metadata.json
//   legacy       mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, also distrib_optim.pt
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr std::string_view kBackend = "metadata.json";
constexpr std::string_view kModel = "model_optim_rng.pt";
// Files whose iteration is compared when only structure is judged.
constexpr size_t kPeekedFiles = 64;
// A grid of ranks is named in full up to this; larger numbers in names are no ranks'.
constexpr size_t kMaxGrid = 65536;

std::optional<int64_t> IterationOf(std::string_view name) { return NumberBetween(name, "iter_", ""); }

std::string_view LastName(const Review& review, std::string_view folder) {
  return folder.empty() ? review.name() : folder.substr(folder.rfind('/') + 1);
}

void JudgeDist(Review& review, std::string_view folder) {
  review.SetFormat(kMegatronDist);
  const std::string backend = JoinPath(folder, kBackend);
  std::optional<std::string> name;
  const bool sound =
      review.CheckJson(backend, [&](const std::vector<std::string>& keys, const JsonScalar& scalar) {
        if (keys.size() == 1 && keys[0] == "sharded_backend" && scalar.text.has_value())
          name = std::string(*scalar.text);
        return true;
      });
  if (sound && !name.has_value()) review.Fault(v1::VERDICT_CORRUPT, backend, "names no sharded_backend");
  if (sound) review.Sound(backend);
  JudgeDcp(review, folder);
  const std::string common = JoinPath(folder, "common.pt");  // older versions
  if (review.tree().Has(common)) {
    DataFile data = CheckDataFile(review, common);
    if (data.kind != DataKind::kBad) review.Sound(common);
    review.CheckOrder(common, backend);
    std::optional<LoadedPickle> loaded = ReadDataPickle(data);
    const std::optional<int64_t> named = IterationOf(LastName(review, folder));
    const std::optional<int64_t> said =
        loaded.has_value() ? NumberOf(data, loaded->root().Get("iteration")) : std::nullopt;
    if (named.has_value() && said.has_value() && *said != *named) {
      review.Fault(v1::VERDICT_CORRUPT, common,
                   Cat({"is of iteration ", std::to_string(*said), ": files of two saves"}));
    }
  }
  review.CheckOrder(JoinPath(folder, ".metadata"), backend);
  CheckIntegrity(review, folder);
}

void JudgeDcpOnly(Review& review, std::string_view folder) {
  review.SetFormat(kMegatronDcp);
  const DcpAnswer answer = JudgeDcp(review, folder);
  const bool dist = answer.megatron || review.tree().Has(JoinPath(folder, "common.pt"));
  if (!dist) return;
  review.SetFormat(kMegatronDist);
  review.Missing(JoinPath(folder, kBackend), 0,
                 "missing: Megatron writes it when all shards are there, so the save did not reach its end");
}

// mp_rank_TT, mp_rank_TT_PPP, mp_rank_TT_PPP_EEE
std::optional<std::vector<int64_t>> RankOf(std::string_view name) {
  constexpr std::string_view kPrefix = "mp_rank_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::vector<int64_t> numbers;
  while (true) {
    const size_t end = name.find('_');
    const std::optional<int64_t> number = ParseDigits(name.substr(0, end));
    if (!number.has_value() || *number >= static_cast<int64_t>(kMaxGrid) || numbers.size() == 3)
      return std::nullopt;
    numbers.push_back(*number);
    if (end == std::string_view::npos) return numbers;
    name.remove_prefix(end + 1);
  }
}

std::string RankName(const std::vector<int64_t>& rank) {
  std::string name = "mp_rank";
  for (size_t i = 0; i < rank.size(); ++i) {
    std::string digits = std::to_string(rank[i]);
    while (digits.size() < (i == 0 ? 2U : 3U)) digits.insert(digits.begin(), '0');
    name += "_" + digits;
  }
  return name;
}

class Legacy {
 public:
  Legacy(Review& review, std::string_view folder) : review_(review), folder_(folder) {}

  void Judge() {
    review_.SetFormat(kMegatron);
    review_.SetUnmarked();
    for (const std::string& name : review_.tree().FoldersIn(folder_)) {
      std::optional<std::vector<int64_t>> rank = RankOf(name);
      if (!rank.has_value()) continue;
      ranks_.insert(*rank);
      extents_.resize(std::max(extents_.size(), rank->size()), 0);
      for (size_t i = 0; i < rank->size(); ++i) extents_[i] = std::max(extents_[i], (*rank)[i] + 1);
      for (const std::string& file : review_.tree().NamesIn(JoinPath(folder_, name))) {
        if (file.ends_with(".pt")) kinds_.insert(file);
      }
    }
    kinds_.insert(std::string(kModel));
    size_t size = 1;
    for (int64_t extent : extents_) size *= std::min(static_cast<size_t>(extent), kMaxGrid + 1);
    if (size > kMaxGrid) {
      review_.Fault(v1::VERDICT_CORRUPT, "", "folders of more ranks than there can be");
      return;
    }
    for (size_t i = 0; i < size; ++i) CheckRank(RankAt(i));
    const std::optional<int64_t> iteration = IterationOf(LastName(review_, folder_));
    if (folder_.empty() && iteration.has_value()) {  // all ranks meet at a barrier before it is written
      review_.CheckPointerBeside("latest_checkpointed_iteration.txt", std::to_string(*iteration), 0);
    }
  }

 private:
  std::vector<int64_t> RankAt(size_t index) const {
    std::vector<int64_t> rank(extents_.size());
    for (size_t i = extents_.size(); i > 0; --i) {
      rank[i - 1] = static_cast<int64_t>(index % static_cast<size_t>(extents_[i - 1]));
      index /= static_cast<size_t>(extents_[i - 1]);
    }
    return rank;
  }

  // Each kind of file is in all ranks or in none.
  void CheckRank(const std::vector<int64_t>& rank) {
    for (const std::string& kind : kinds_) {
      const std::string path = JoinPath(folder_, JoinPath(RankName(rank), kind));
      if (!review_.tree().Has(path)) {
        review_.Missing(path, 0, "missing: the shard of this rank");
        continue;
      }
      DataFile data = CheckDataFile(review_, path);
      if (data.kind == DataKind::kBad) continue;
      review_.Sound(path);
      if (kind == kModel) Peek(data, path);
    }
  }

  void Peek(DataFile& data, const std::string& path) {
    if (!review_.options().deep && peeked_++ >= kPeekedFiles) return;
    std::optional<LoadedPickle> loaded = ReadDataPickle(data);
    if (!loaded.has_value()) return;
    const std::optional<int64_t> iteration = NumberOf(data, loaded->root().Get("iteration"));
    const std::optional<int64_t> named = IterationOf(LastName(review_, folder_));
    if (!iteration.has_value()) return;
    if (review_.step() < 0) review_.SetStep(*iteration);
    const std::optional<int64_t> wanted = named.has_value() ? named : seen_;
    if (wanted.has_value() && *iteration != *wanted) {
      review_.Fault(v1::VERDICT_CORRUPT, path,
                    Cat({"is of iteration ", std::to_string(*iteration), " instead of ",
                         std::to_string(*wanted), ": files of two saves"}));
    }
    seen_ = iteration;
  }

  Review& review_;
  const std::string folder_;
  std::set<std::vector<int64_t>> ranks_;
  std::vector<int64_t> extents_;
  std::set<std::string> kinds_;
  std::optional<int64_t> seen_;
  size_t peeked_ = 0;
};

}  // namespace

void JudgeMegatron(Review& review, std::string_view folder) {
  const std::optional<int64_t> iteration = IterationOf(LastName(review, folder));
  if (iteration.has_value()) review.SetStep(*iteration);
  if (review.tree().Has(JoinPath(folder, kBackend))) {
    JudgeDist(review, folder);
    return;
  }
  for (const std::string& name : review.tree().FoldersIn(folder)) {
    if (!RankOf(name).has_value()) continue;
    Legacy(review, folder).Judge();
    return;
  }
  JudgeDcpOnly(review, folder);
}

void JudgeNemo(Review& review) {
  const std::string marker(Cat({review.name(), "-unfinished"}));
  if (review.ExistsBeside("-unfinished")) {
    review.Fault(v1::VERDICT_PARTIAL, "", Cat({marker, " lies beside it: the save is not finished"}));
  }
  if (LooksLikeDcp(review.tree(), "weights") || review.tree().Has("weights/metadata.json")) {
    JudgeMegatron(review, "weights");
  } else {
    review.Missing("weights/.metadata", 0, "no weights");
  }
  if (!review.tree().HasFolder("context")) review.Missing("context", 0, "missing: the folder context");
  review.SetFormat(kNemo);
}

}  // namespace dgxrun::agent::ckpt
