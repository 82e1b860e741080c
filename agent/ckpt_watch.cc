#include "agent/ckpt_watch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt_keep.h"
#include "agent/ckpt_resume.h"

namespace dgxrun::agent {
namespace {

uint64_t FreeBytes(const std::string& folder) {
  struct statvfs fs;
  if (statvfs(folder.c_str(), &fs) != 0) return 0;
  return static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
}

}  // namespace

v1::AttemptProgress CkptWatch::Look(absl::Time now) {
  v1::AttemptProgress news;
  const OwnerScope scope(options_.owner);
  if (!scope.ok()) return news;
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(options_.folder);
  if (!source.ok()) {
    looked_ = true;  // what comes from now on is new
    return news;
  }
  const absl::StatusOr<ckpt::FileInfo> folder = (*source)->Stat("");
  if (!folder.ok()) return news;
  const bool first = !looked_;
  if (first || folder->mtime_ns != folder_mtime_ns_) {
    LearnNames(**source, first);
    // A change within the clock tick of this look would not show in the time: such a folder is listed again.
    const bool old = absl::ToUnixNanos(now) - folder->mtime_ns > absl::ToInt64Nanoseconds(absl::Seconds(2));
    folder_mtime_ns_ = old ? folder->mtime_ns : 0;
  }
  looked_ = true;
  Restat(**source);
  JudgeNew(**source, now, &news);
  if (news.checkpoints_size() > 0) {
    news.set_has_checkpoints(true);
    NoteTmpdir(**source, &news);
    NoteHeld(**source, &news);
    news.set_free_bytes(FreeBytes(options_.folder));
  }
  return news;
}

void CkptWatch::LearnNames(ckpt::Source& source, bool first) {
  const absl::StatusOr<std::vector<ckpt::Entry>> entries = source.List("");
  if (!entries.ok()) return;
  std::map<std::string, Known> names;
  for (const ckpt::Entry& entry : *entries) {
    const bool usable = entry.type == ckpt::FileType::kFile || entry.type == ckpt::FileType::kFolder;
    if (!usable || !ckpt::MayBeCheckpoint(entry.name) || names.size() >= kMaxNames) continue;
    auto known = names_.find(entry.name);
    Known& now = names[entry.name];
    if (known != names_.end()) {
      now = known->second;
      continue;
    }
    now.settled = first;
    if (!first) continue;
    if (const absl::StatusOr<ckpt::FileInfo> info = source.Stat(entry.name); info.ok())
      now.mtime_ns = info->mtime_ns;
  }
  names_ = std::move(names);
}

void CkptWatch::Restat(ckpt::Source& source) {
  std::vector<std::pair<int64_t, Known*>> settled;
  std::map<Known*, std::string> name_of;
  for (auto& [name, known] : names_) {
    if (!known.settled) continue;
    settled.emplace_back(known.mtime_ns, &known);
    name_of[&known] = name;
  }
  const size_t count = std::min(settled.size(), kMaxRestat);
  std::partial_sort(settled.begin(), settled.begin() + static_cast<std::ptrdiff_t>(count), settled.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < count; ++i) {
    Known& known = *settled[i].second;
    const absl::StatusOr<ckpt::FileInfo> info = source.Stat(name_of[&known]);
    if (info.ok() && info->mtime_ns != known.mtime_ns) known.settled = false;
  }
}

void CkptWatch::JudgeNew(ckpt::Source& source, absl::Time now, v1::AttemptProgress* news) {
  ckpt::JudgeOptions options;
  options.now = now;
  options.quiet_time = kQuietTime;
  int facts = kMaxFacts;
  for (auto& [name, known] : names_) {
    if (known.settled) continue;
    if (news->checkpoints_size() >= kMaxFindings) return;
    const absl::StatusOr<ckpt::FileInfo> info = source.Stat(name);
    if (!info.ok()) {
      known.settled = true;  // gone; if it comes back, the folder has changed
      continue;
    }
    v1::CheckpointFinding finding = ckpt::Judge(source, name, options);
    const v1::Checkpoint& found = finding.checkpoint();
    known.mtime_ns = info->mtime_ns;
    const absl::Duration age = now - absl::FromUnixNanos(found.mtime_unix_ns());
    if (found.verdict() == v1::VERDICT_WRITING) continue;
    const bool good = found.verdict() == v1::VERDICT_COMPLETE || found.verdict() == v1::VERDICT_WEIGHTS_ONLY;
    known.settled = good || age > kGivenUp;
    // An incomplete one is of interest once it is quiet: other nodes may hold the rest.
    if (found.verdict() == known.told && !good) continue;
    if (!good && age <= kQuietTime) continue;
    known.told = found.verdict();
    KeepUsefulFacts(&finding, &facts);
    *news->add_checkpoints() = std::move(finding);
  }
}

void CkptWatch::NoteTmpdir(ckpt::Source& source, v1::AttemptProgress* news) {
  if (said_tmpdir_ || options_.tmpdir.empty()) return;
  const bool lightning = std::any_of(
      news->checkpoints().begin(), news->checkpoints().end(),
      [](const auto& finding) { return absl::StartsWith(finding.checkpoint().format(), "lightning"); });
  struct stat folder, temporary;
  if (!lightning || stat(source.root().c_str(), &folder) != 0 ||
      stat(options_.tmpdir.c_str(), &temporary) != 0) {
    return;
  }
  said_tmpdir_ = true;
  if (folder.st_dev == temporary.st_dev) return;
  // Not its value: that is the environment's.
  news->add_notes(
      absl::StrCat("TMPDIR is on another file system than ", options_.folder,
                   ": Lightning copies each checkpoint over the old one instead of renaming it, and a "
                   "crash meanwhile leaves neither; set TMPDIR to a folder beside it"));
}

void CkptWatch::NoteHeld(ckpt::Source& source, v1::AttemptProgress* news) {
  if (options_.keep_last == 0) return;
  const std::vector<v1::CheckpointFinding> findings(news->checkpoints().begin(), news->checkpoints().end());
  const absl::StatusOr<std::set<std::string>> held = HeldNames(source, findings);
  if (!held.ok()) return;  // then this node removes nothing either, and says why
  for (const std::string& name : *held) news->add_held(name);
}

v1::AttemptProgress CkptWatch::Tidy(const v1::RemoveCheckpoints& remove, absl::Time now) {
  v1::AttemptProgress news;
  const OwnerScope scope(options_.owner);
  if (!scope.ok() || options_.keep_last == 0) return news;
  const std::vector<v1::Checkpoint> listed(remove.checkpoints().begin(), remove.checkpoints().end());
  const absl::StatusOr<std::vector<v1::Checkpoint>> removed =
      remove.by_rule() ? Prune(options_.folder, {options_.keep_last, options_.keep_every}, kQuietTime,
                               /*dry_run=*/false)
                       : RemoveListed(options_.folder, listed, kQuietTime, now);
  if (!removed.ok()) {
    news.add_notes(absl::StrCat("--ckpt-keep: ", removed.status().message()));
    return news;
  }
  for (const v1::Checkpoint& checkpoint : *removed) news.add_removed(checkpoint.path());
  if (absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(options_.folder); source.ok()) {
    NoteHeld(**source, &news);
  }
  news.set_has_checkpoints(true);
  news.set_free_bytes(FreeBytes(options_.folder));
  return news;
}

}  // namespace dgxrun::agent
