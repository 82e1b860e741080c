#include "agent/progress_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "launcher/run_dir.h"

namespace dgxrun::agent {
namespace {

constexpr char kPlanName[] = "plan.pb";
// Two decimal numbers of 64 bits and what stands between them.
constexpr size_t kMaxStepBytes = 64;
// Owners of ranks may pass through, and see nothing.
constexpr mode_t kPassThrough = 0711;

// A folder of ours that nobody else can write into.
bool MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), kPassThrough) != 0 && errno != EEXIST) return false;
  struct stat st;
  if (lstat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return false;
  if ((st.st_mode & 022) != 0) return false;
  return (st.st_mode & 0111) == 0111 || chmod(path.c_str(), kPassThrough) == 0;  // the umask took some
}

struct Steps {
  int64_t step = 0, first = 0;
};

std::optional<Steps> ReadStepFile(int fd) {
  char buffer[kMaxStepBytes];
  const ssize_t n = pread(fd, buffer, sizeof buffer, 0);
  if (n <= 0) return std::nullopt;
  const std::string text(buffer, static_cast<size_t>(n));
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(0, std::min(text.find('\n'), text.find('\0'))), ' ', absl::SkipWhitespace());
  Steps steps;
  if (words.empty() || !absl::SimpleAtoi(words[0], &steps.step)) return std::nullopt;
  steps.first = steps.step;
  if (words.size() > 1 && !absl::SimpleAtoi(words[1], &steps.first)) return std::nullopt;
  return steps;
}

UniqueFd OpenStepFile(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600));
  struct stat st;
  if (fd.valid() && (fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode))) fd.Reset();
  return fd;
}

// What is needed to go on watching: no environment, no command.
v1::NodePlan Essence(const v1::NodePlan& plan) {
  v1::NodePlan kept;
  *kept.mutable_owner() = plan.owner();
  kept.set_ckpt_dir(plan.ckpt_dir());
  if (plan.has_ckpt()) *kept.mutable_ckpt() = plan.ckpt();
  for (const v1::RankPlan& rank : plan.ranks()) kept.add_ranks()->set_rank(rank.rank());
  return kept;
}

std::shared_ptr<CkptWatch> FolderWatch(const v1::NodePlan& plan, const OwnerIds& owner, std::string tmpdir) {
  if (plan.ckpt_dir().empty()) return nullptr;
  CkptWatchOptions options;
  options.folder = plan.ckpt_dir();
  options.owner = owner;
  options.tmpdir = std::move(tmpdir);
  options.keep_last = plan.ckpt().keep_last();
  options.keep_every = plan.ckpt().keep_every();
  return std::make_shared<CkptWatch>(std::move(options));
}

std::string TmpdirOf(const v1::ShimStart& start) {
  std::string tmpdir = "/tmp";
  for (const v1::EnvVar& var : start.environment().vars()) {
    if (var.name() == "TMPDIR" && !var.value().empty()) tmpdir = var.value();
  }
  return tmpdir;
}

}  // namespace

ProgressWatch::ProgressWatch(EventLoop* loop, FileTasks* tasks, const std::string& run_dir,
                             OwnerPolicy policy, Tell tell)
    : loop_(loop), tasks_(tasks), base_(run_dir + ".steps"), policy_(policy), tell_(std::move(tell)) {}

std::string ProgressWatch::FolderOf(const AttemptKey& key) const {
  return absl::StrCat(base_, "/", key.job.str(), ".", key.attempt.value());
}

bool ProgressWatch::MakeFiles(const AttemptKey& key, const OwnerIds& owner, const v1::NodePlan& plan,
                              Attempt* attempt) {
  const std::string folder = FolderOf(key);
  if (!MakeFolder(base_) || !MakeFolder(folder)) return false;
  for (const v1::RankPlan& rank : plan.ranks()) {
    const std::string path = absl::StrCat(folder, "/rank_", rank.rank());
    RankFile file;
    file.rank = rank.rank();
    file.fd = OpenStepFile(path, O_CREAT | O_EXCL);
    if (!file.fd.valid()) return false;
    if (owner.uid != geteuid() && fchown(file.fd.get(), owner.uid, owner.gid) != 0) return false;
    attempt->ranks.push_back(std::move(file));
  }
  return WriteFileAtomically(absl::StrCat(folder, "/", kPlanName), Essence(plan).SerializeAsString()).ok();
}

void ProgressWatch::Begin(const AttemptKey& key, const OwnerIds& owner, v1::ShimStart* start) {
  v1::NodePlan* plan = start->mutable_plan();
  Attempt attempt;
  RemoveFolder(FolderOf(key));  // attempts never run twice: of a lost state folder
  if (MakeFiles(key, owner, *plan, &attempt)) {
    for (v1::RankPlan& rank : *plan->mutable_ranks()) {
      v1::EnvVar* var = rank.add_env();
      var->set_name(kProgressVariable);
      var->set_value(absl::StrCat(FolderOf(key), "/rank_", rank.rank()));
    }
  } else {
    attempt.ranks.clear();
  }
  attempt.folder = FolderWatch(*plan, owner, TmpdirOf(*start));
  Watch(key, std::move(attempt));
}

void ProgressWatch::Restore(const std::vector<AttemptKey>& living) {
  std::set<std::string> names;
  for (const AttemptKey& key : living) {
    const std::string folder = FolderOf(key);
    names.insert(folder.substr(base_.size() + 1));
    const absl::StatusOr<std::string> bytes = ReadWholeFile(absl::StrCat(folder, "/", kPlanName));
    v1::NodePlan plan;
    if (!bytes.ok() || !plan.ParseFromString(*bytes)) continue;
    Attempt attempt;
    for (const v1::RankPlan& rank : plan.ranks()) {
      RankFile file;
      file.rank = rank.rank();
      file.fd = OpenStepFile(absl::StrCat(folder, "/rank_", rank.rank()), 0);
      if (file.fd.valid()) attempt.ranks.push_back(std::move(file));
    }
    Watch(key, std::move(attempt));
    if (plan.ckpt_dir().empty()) continue;
    // Who the owner is may have to be asked of a directory service.
    tasks_->Run([this, key, plan, policy = policy_]() -> std::function<void()> {
      const absl::StatusOr<OwnerIds> owner = ResolveOwner(plan.owner(), policy);
      if (!owner.ok()) return nullptr;
      return [this, key, watch = FolderWatch(plan, *owner, "")] {
        auto it = attempts_.find(key);
        if (it == attempts_.end()) return;
        it->second.folder = watch;
        FolderDue(key);
      };
    });
  }
  std::error_code error;
  std::filesystem::directory_iterator entries(base_, error);
  std::vector<std::string> stale;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (names.count(name) == 0) stale.push_back(entries->path().string());
  }
  for (const std::string& path : stale) RemoveFolder(path);
}

void ProgressWatch::Watch(const AttemptKey& key, Attempt attempt) {
  const bool steps = !attempt.ranks.empty();
  const bool folder = attempt.folder != nullptr;
  attempts_[key] = std::move(attempt);
  if (steps) attempts_[key].step_timer = loop_->After(kStepPeriod, [this, key] { StepsDue(key); });
  if (folder) FolderDue(key);  // what lies there now is known
}

void ProgressWatch::StepsDue(const AttemptKey& key) {
  ReadSteps(key);
  auto it = attempts_.find(key);
  if (it == attempts_.end()) return;
  it->second.step_timer = loop_->After(kStepPeriod, [this, key] { StepsDue(key); });
}

void ProgressWatch::ReadSteps(const AttemptKey& key) {
  auto it = attempts_.find(key);
  if (it == attempts_.end()) return;
  bool changed = false;
  v1::AttemptProgress news;
  for (RankFile& file : it->second.ranks) {
    const std::optional<Steps> steps = ReadStepFile(file.fd.get());
    if (steps && (!file.known || steps->step != file.step)) {
      file.known = true;
      file.first = steps->first;
      file.step = steps->step;
      file.changed_ns = absl::GetCurrentTimeNanos();
      changed = true;
    }
    if (!file.known) continue;
    const bool lowest = !news.has_step() || file.step < news.step();
    news.set_first_step(news.has_step() ? std::min(news.first_step(), file.first) : file.first);
    if (lowest) {
      news.set_step(file.step);
      news.set_step_unix_ns(file.changed_ns);
    }
    news.set_has_step(true);
  }
  if (!changed) return;
  news.set_job_id(key.job.str());
  news.set_attempt(key.attempt.value());
  tell_(std::move(news));
}

void ProgressWatch::FolderDue(const AttemptKey& key) {
  auto it = attempts_.find(key);
  if (it == attempts_.end()) return;
  Attempt& attempt = it->second;
  attempt.folder_timer = loop_->After(kFolderPeriod, [this, key] { FolderDue(key); });
  if (attempt.looking) return;  // the file system takes its time
  attempt.looking = tasks_->Run([this, key, watch = attempt.folder]() -> std::function<void()> {
    v1::AttemptProgress news = watch->Look(absl::Now());
    return [this, key, news] { Looked(key, news); };
  });
}

void ProgressWatch::Tidy(const AttemptKey& key, v1::RemoveCheckpoints remove) {
  auto it = attempts_.find(key);
  if (it == attempts_.end() || it->second.folder == nullptr) return;
  it->second.tidy = std::move(remove);
  TidyDue(key);
}

void ProgressWatch::TidyDue(const AttemptKey& key) {
  Attempt& attempt = attempts_.at(key);
  if (attempt.looking || !attempt.tidy) return;
  attempt.looking =
      tasks_->Run([this, key, watch = attempt.folder, remove = *attempt.tidy]() -> std::function<void()> {
        v1::AttemptProgress news = watch->Tidy(remove, absl::Now());
        return [this, key, news] { Looked(key, news); };
      });
  if (attempt.looking) attempt.tidy.reset();  // else with the next look
}

void ProgressWatch::Looked(const AttemptKey& key, v1::AttemptProgress news) {
  auto it = attempts_.find(key);
  if (it == attempts_.end()) return;
  it->second.looking = false;
  TidyDue(key);
  if (!news.has_checkpoints() && news.notes_size() == 0) return;
  news.set_job_id(key.job.str());
  news.set_attempt(key.attempt.value());
  tell_(std::move(news));
}

void ProgressWatch::End(const AttemptKey& key) {
  auto it = attempts_.find(key);
  if (it != attempts_.end()) {
    loop_->Cancel(it->second.step_timer);
    loop_->Cancel(it->second.folder_timer);
    attempts_.erase(it);
  }
  RemoveFolder(FolderOf(key));
  rmdir(base_.c_str());  // if it was the last
}

// On a tmpfs, of our own making: does not block.
void ProgressWatch::RemoveFolder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace dgxrun::agent
