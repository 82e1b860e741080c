#include "launcher/plan.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun {
namespace {

// What execvp takes where the job has no PATH.
constexpr char kPathOfNone[] = "/usr/local/bin:/usr/bin:/bin";
constexpr uint32_t kMaxCpu = 8192;  // NR_CPUS of the largest distribution kernels
constexpr size_t kBitsPerWord = 8 * sizeof(unsigned long);

using Variables = std::map<std::string, std::string>;

template <class List>
void Set(const List& list, Variables* variables) {
  for (const v1::EnvVar& var : list) (*variables)[var.name()] = var.value();
}

bool HasZero(const std::string& text) { return text.find('\0') != std::string::npos; }

absl::Status CheckStrings(const v1::ShimStart& start) {
  for (const std::string& word : start.plan().argv()) {
    if (HasZero(word)) return absl::InvalidArgumentError("an argument holds a zero byte");
  }
  if (HasZero(start.plan().cwd())) return absl::InvalidArgumentError("the working folder holds a zero byte");
  return absl::OkStatus();
}

std::vector<std::string> Candidates(const std::string& name, const Variables& variables) {
  if (name.find('/') != std::string::npos) return {name};
  auto it = variables.find("PATH");
  const std::string path = it == variables.end() ? kPathOfNone : it->second;
  std::vector<std::string> programs;
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    programs.push_back(folder.empty() ? absl::StrCat("./", name) : absl::StrCat(folder, "/", name));
  }
  return programs;
}

absl::StatusOr<std::vector<unsigned long>> Mask(const v1::RankPlan& rank) {
  std::vector<unsigned long> mask;
  for (uint32_t cpu : rank.cpus()) {
    if (cpu >= kMaxCpu) return absl::InvalidArgumentError(absl::StrCat("no CPU has number ", cpu));
    if (mask.size() <= cpu / kBitsPerWord) mask.resize(cpu / kBitsPerWord + 1, 0);
    mask[cpu / kBitsPerWord] |= 1ul << (cpu % kBitsPerWord);
  }
  return mask;
}

}  // namespace

std::string RankFile(const std::string& log_dir, uint32_t rank, const std::string& suffix) {
  return absl::StrCat(log_dir, "/rank_", rank, ".", suffix);
}

absl::StatusOr<NodeSpawn> PlanSpawn(const v1::ShimStart& start) {
  const v1::NodePlan& plan = start.plan();
  if (plan.ranks_size() == 0) return absl::InvalidArgumentError("the plan has no ranks");
  if (plan.argv_size() == 0) return absl::InvalidArgumentError("the plan has no command");
  if (plan.inherit_terminal() && plan.ranks_size() > 1) {
    return absl::InvalidArgumentError("only a single rank can have the terminal");
  }
  if (absl::Status status = CheckStrings(start); !status.ok()) return status;

  NodeSpawn node;
  node.cwd = plan.cwd();
  node.set_owner = start.set_owner();
  node.user = plan.owner().user();
  node.uid = plan.owner().uid();
  node.gid = plan.owner().gid();
  node.inherit_terminal = plan.inherit_terminal();

  Variables common;
  Set(start.environment().vars(), &common);
  Set(plan.common_env(), &common);
  for (const v1::RankPlan& rank_plan : plan.ranks()) {
    RankSpawn& rank = node.ranks.emplace_back();
    rank.rank = rank_plan.rank();
    rank.argv.assign(plan.argv().begin(), plan.argv().end());
    Variables variables = common;
    Set(rank_plan.env(), &variables);
    variables["DGXRUN_MARK"] = start.mark();
    if (!start.node_name().empty()) variables["DGXRUN_NODE"] = start.node_name();
    if (!start.log_dir().empty()) {
      variables["TORCHELASTIC_ERROR_FILE"] = RankFile(start.log_dir(), rank.rank, "error.json");
      if (!node.inherit_terminal) rank.stdout_path = RankFile(start.log_dir(), rank.rank, "out");
      rank.stderr_path = RankFile(start.log_dir(), rank.rank, "err");
    }
    rank.programs = Candidates(rank.argv[0], variables);
    for (const auto& [name, value] : variables) {
      if (HasZero(name) || HasZero(value)) {
        return absl::InvalidArgumentError(absl::StrCat("variable ", name, " holds a zero byte"));
      }
      rank.env.push_back(absl::StrCat(name, "=", value));
    }
    absl::StatusOr<std::vector<unsigned long>> mask = Mask(rank_plan);
    if (!mask.ok()) return mask.status();
    rank.cpu_mask = *std::move(mask);
  }
  return node;
}

}  // namespace dgxrun
