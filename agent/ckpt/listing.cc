// ListCheckpoints: what in a folder is a checkpoint, and in which order they are judged.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "agent/ckpt/data_file.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/formats.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/judge_tree.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/names.h"
#include "agent/ckpt/siblings.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

// What a look into a folder may cost whose name holds no number: it may as well be a data set.
constexpr uint64_t kMaxCallsOfUnnumbered = 20000;
// Checkpoints without a number ("last.ckpt", "best.pt") that are judged. They come first, since only their
// content holds their step.
constexpr size_t kMaxUnnumbered = 64;
// Folders that lie beside checkpoints and hold none.
constexpr std::string_view kOtherFolders[] = {"runs", "logs",           "wandb",  "tensorboard",
                                              "tb",   "lightning_logs", "mlruns", "code",
                                              "src",  "__pycache__",    "tmp",    "lost+found"};

struct Candidate {
  std::string path;
  int64_t step = -1;
  FileType type = FileType::kFile;
  std::vector<std::string> parts;  // of a group of files; else empty
};

bool IsOtherFolder(std::string_view name) {
  return std::find(std::begin(kOtherFolders), std::end(kOtherFolders), name) != std::end(kOtherFolders);
}

// Folders that are parts of one checkpoint.
bool IsInnerFolder(std::string_view name) {
  return name.starts_with("mp_rank_") || name.starts_with("global_step") ||
         NumberBetween(name, "optimizer_", "").has_value() ||
         NumberBetween(name, "pytorch_model_fsdp_", "").has_value() ||
         NumberBetween(name, "pytorch_model_", "").has_value();
}

class Lister {
 public:
  Lister(Source& source, const JudgeOptions& options) : source_(source), options_(options) {}

  absl::StatusOr<std::vector<v1::CheckpointFinding>> Run() {
    if (absl::Status read = ReadRoot(); !read.ok()) return read;
    if (RootIsCheckpoint()) {
      return std::vector<v1::CheckpointFinding>{Judge(source_, "", options_)};
    }
    Collect();
    JudgeInOrder();
    std::sort(listed_.begin(), listed_.end(), [](const Listed& a, const Listed& b) {
      return NewerCheckpoint(a.finding.checkpoint(), b.finding.checkpoint());
    });
    CompareSiblings(listed_);
    std::vector<v1::CheckpointFinding> findings;
    for (Listed& listed : listed_) {
      if (options_.limit != 0 && findings.size() >= options_.limit) break;
      findings.push_back(std::move(listed.finding));
    }
    return findings;
  }

 private:
  absl::Status ReadRoot() {
    source_.SetBudget({.calls = kMaxListedEntries + 1});
    absl::StatusOr<std::vector<Entry>> entries = source_.List("");
    source_.SetBudget({});
    if (absl::IsResourceExhausted(entries.status())) {
      return absl::ResourceExhaustedError(
          Cat({source_.root(), ": more than ", Str(kMaxListedEntries), " entries"}));
    }
    if (!entries.ok()) {
      return absl::Status(entries.status().code(),
                          Cat({source_.root(), ": ", std::string(entries.status().message())}));
    }
    for (const Entry& entry : *entries) names_.emplace(entry.name, entry.type);
    return absl::OkStatus();
  }
  bool HasFile(std::string_view name) const {
    const auto found = names_.find(name);
    return found != names_.end() && found->second == FileType::kFile;
  }
  bool HasFolder(std::string_view name) const {
    const auto found = names_.find(name);
    return found != names_.end() && found->second == FileType::kFolder;
  }

  bool RootIsCheckpoint() const;
  void Collect();
  void CollectFile(const std::string& name);
  bool LinkToSibling(const std::string& name);
  void JudgeInOrder();
  void JudgeOne(const Candidate& candidate);
  void JudgeParts(const Candidate& candidate);
  bool Enough(const Candidate& next) const;
  void Keep(const Tree& tree, v1::CheckpointFinding finding);

  Source& source_;
  const JudgeOptions& options_;
  std::map<std::string, FileType, std::less<>> names_;
  std::map<std::string, Candidate> groups_;
  std::vector<Candidate> candidates_;
  std::vector<Listed> listed_;
  size_t numbered_ = 0;
  size_t complete_ = 0;
  int64_t last_step_ = -1;
};

bool Lister::RootIsCheckpoint() const {
  bool mark = HasFolder("weights") && HasFolder("context");
  for (const auto& [name, type] : names_) {
    if (type == FileType::kFolder) {
      mark = mark || name.starts_with("mp_rank_");
      if (MayBeCheckpoint(name) && !IsInnerFolder(name) && StepOfName(name) >= 0) return false;
    } else if (type == FileType::kFile) {
      mark = mark || name == ".metadata" || name == ".metadata.tmp" || name == "trainer_state.json" ||
             name == "meta.pt" || name.ends_with(".distcp") || name.ends_with("_model_states.pt") ||
             NumberBetween(name, "random_states_", ".pkl").has_value();
    }
  }
  return mark;
}

// A link to a name in the same folder is a pointer: its target is listed by itself.
bool Lister::LinkToSibling(const std::string& name) {
  absl::StatusOr<std::string> target = source_.ReadLink(name);
  if (!target.ok()) return true;  // gone
  std::string_view to = *target;
  while (to.starts_with("./")) to.remove_prefix(2);
  const std::string inside = Cat({source_.root(), "/"});
  if (to.starts_with(inside)) to.remove_prefix(inside.size());
  while (to.ends_with('/')) to.remove_suffix(1);
  return names_.find(to) != names_.end();
}

void Lister::CollectFile(const std::string& name) {
  const bool extension = HasDataExtension(name);
  if (!extension && (name.find('.') != std::string::npos || StepOfName(name) < 0)) return;
  if (name == "training_args.bin") return;
  // The model that is saved when training is done, beside its checkpoints.
  if (IsWeightsName(name) && (HasFile("config.json") || HasFile("adapter_config.json"))) return;
  const std::optional<PartName> part = ParsePartName(name);
  if (!part.has_value()) {
    candidates_.push_back({name, StepOfName(name), FileType::kFile, {}});
    return;
  }
  Candidate& group = groups_[part->group];
  group.step = StepOfName(name);
  group.parts.push_back(name);
}

void Lister::Collect() {
  for (const auto& [name, type] : names_) {
    if (!MayBeCheckpoint(name)) continue;
    switch (type) {
      case FileType::kFile:
        CollectFile(name);
        break;
      case FileType::kFolder:
        if (!IsOtherFolder(name)) candidates_.push_back({name, StepOfName(name), type, {}});
        break;
      case FileType::kLink:
        if ((StepOfName(name) >= 0 || HasDataExtension(name)) && !LinkToSibling(name)) {
          candidates_.push_back({name, StepOfName(name), type, {}});
        }
        break;
      case FileType::kOther:
        break;
    }
  }
  for (auto& [name, group] : groups_) {
    const int64_t first = ParsePartName(group.parts.front())->of > 0 ? 1 : 0;
    group.path = PartNameOf(group.parts.front(), first);
    candidates_.push_back(std::move(group));
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    const bool a_numbered = a.step >= 0, b_numbered = b.step >= 0;
    return a_numbered != b_numbered ? b_numbered : a.step > b.step;
  });
}

bool Lister::Enough(const Candidate& next) const {
  if (next.step < 0) return false;
  if (next.step == last_step_) return false;  // of one step the latest is wanted
  if (options_.limit != 0 && numbered_ >= options_.limit) return true;
  return options_.stop_after_complete != 0 && complete_ >= options_.stop_after_complete;
}

void Lister::JudgeInOrder() {
  size_t unnumbered = 0;
  for (const Candidate& candidate : candidates_) {
    if (candidate.step < 0 && ++unnumbered > kMaxUnnumbered) continue;
    if (Enough(candidate)) return;
    if (candidate.parts.empty()) {
      JudgeOne(candidate);
    } else {
      JudgeParts(candidate);
    }
    if (candidate.step >= 0) last_step_ = candidate.step;
  }
}

// Two files of different steps: a folder of checkpoints, not a checkpoint.
bool HoldsSeveralSteps(const Tree& tree) {
  std::set<int64_t> steps;
  for (const auto& [path, info] : tree.files()) {
    if (HasDataExtension(path)) steps.insert(StepOfName(std::string_view(path).substr(path.rfind('/') + 1)));
  }
  steps.erase(-1);
  return steps.size() > 1;
}

void Lister::JudgeOne(const Candidate& candidate) {
  const bool numbered = candidate.step >= 0;
  SetBudgetOf(options_, source_);
  if (!numbered && candidate.type == FileType::kFolder) source_.SetBudget({.calls = kMaxCallsOfUnnumbered});
  absl::StatusOr<Tree> tree = Tree::Read(source_, candidate.path);
  SetBudgetOf(options_, source_);
  if (absl::IsNotFound(tree.status())) return;  // removed meanwhile
  if (!tree.ok()) {
    if (numbered) Keep(Tree(), UnreadableFinding(source_, candidate.path, tree.status()));
    return;
  }
  v1::CheckpointFinding finding = JudgeTree(source_, candidate.path, *tree, options_);
  const std::string& format = finding.checkpoint().format();
  const bool loose = format.empty() || format == kTorch || format == kTorchLegacy || format == kSafetensors;
  if (!numbered && candidate.type == FileType::kFolder) {
    if (format.empty() || (loose && HoldsSeveralSteps(*tree))) return;
  }
  Keep(*tree, std::move(finding));
}

// Loose files that belong together, judged as if they were a folder.
void Lister::JudgeParts(const Candidate& candidate) {
  SetBudgetOf(options_, source_);
  Tree::Files files;
  for (const std::string& name : candidate.parts) {
    absl::StatusOr<FileInfo> info = source_.Stat(name);
    if (info.ok()) files.emplace(name, *info);
  }
  if (files.empty()) return;
  const Tree tree = Tree::OfFiles(std::move(files));
  Review review(source_, "", tree, options_);
  review.SetStep(candidate.step);
  JudgeTorchFolder(review);
  std::set<int64_t> have;
  int64_t of = 0;
  for (const std::string& name : candidate.parts) {
    const std::optional<PartName> part = ParsePartName(name);
    have.insert(part->number);
    of = std::max(of, part->of);
  }
  // Numbers "i of n" count from 1, unless one is 0.
  const int64_t first = of > 0 && have.count(0) == 0 ? 1 : 0;
  const int64_t end = of > 0 ? of + first : *have.rbegin() + 1;
  for (int64_t number = first; number < std::min<int64_t>(end, kMaxListedEntries); ++number) {
    if (have.count(number) == 0) {
      review.Missing(PartNameOf(candidate.parts.front(), number), 0,
                     "missing: the others of this step are there");
    }
  }
  v1::CheckpointFinding finding = review.Finish();
  finding.mutable_checkpoint()->set_path(JoinPath(source_.root(), candidate.path));
  Keep(tree, std::move(finding));
}

void Lister::Keep(const Tree& tree, v1::CheckpointFinding finding) {
  source_.SetBudget({});
  const v1::Checkpoint& checkpoint = finding.checkpoint();
  if (StepOfName(std::string_view(checkpoint.path()).substr(checkpoint.path().rfind('/') + 1)) >= 0)
    ++numbered_;
  if (checkpoint.verdict() == v1::VERDICT_COMPLETE) ++complete_;
  listed_.push_back(ToCompare(tree, std::move(finding), options_.world_sizes));
}

}  // namespace

absl::StatusOr<std::vector<v1::CheckpointFinding>> ListCheckpoints(Source& source,
                                                                   const JudgeOptions& options) {
  return Lister(source, options).Run();
}

}  // namespace dgxrun::agent::ckpt
