#include "agent/ckpt_keep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/tracker.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::agent {
namespace {

constexpr char kPruned[] = ".dgxrun-pruned-";
constexpr mode_t kPinsMode = 0644;

absl::Status KeepFailed(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", strerror(errno)));
}

std::vector<std::string> NamesIn(int folder) {
  std::vector<std::string> names;
  const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = again >= 0 ? fdopendir(again) : nullptr;
  if (dir == nullptr) {
    if (again >= 0) close(again);
    return names;
  }
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(dir);
  return names;
}

absl::Status RemoveTree(int folder, const std::string& name, int depth) {
  if (unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  if (errno != EISDIR && errno != EPERM) return KeepFailed(name);  // EPERM: POSIX's word for a folder
  if (depth > ckpt::kMaxDepthOfCheckpoint) return absl::FailedPreconditionError(name + ": too deep");
  const UniqueFd inner(openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!inner.valid()) return KeepFailed(name);
  for (const std::string& below : NamesIn(inner.get())) {
    if (absl::Status removed = RemoveTree(inner.get(), below, depth + 1); !removed.ok()) return removed;
  }
  return unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT ? absl::OkStatus()
                                                                              : KeepFailed(name);
}

}  // namespace

absl::StatusOr<std::set<std::string>> ReadPins(ckpt::Source& source) {
  std::set<std::string> pins;
  absl::StatusOr<std::unique_ptr<ckpt::File>> file = source.Open(kPinsName);
  if (absl::IsNotFound(file.status())) return pins;
  if (!file.ok()) return file.status();
  if ((*file)->info().bytes > kMaxPinsBytes) {
    return absl::FailedPreconditionError(absl::StrCat(std::string(kPinsName), " is too long"));
  }
  std::string text((*file)->info().bytes, '\0');
  if (absl::Status read = text.empty() ? absl::OkStatus() : (*file)->ReadAt(0, text.data(), text.size());
      !read.ok()) {
    return read;
  }
  for (const auto line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) pins.emplace(line);
  return pins;
}

absl::Status WritePins(int folder, const std::set<std::string>& pins) {
  const std::string name(kPinsName);
  const std::string scratch = absl::StrCat(name, ".", getpid(), ".tmp");
  std::string text;
  for (const std::string& pin : pins) absl::StrAppend(&text, pin, "\n");
  unlinkat(folder, scratch.c_str(), 0);
  const UniqueFd file(
      openat(folder, scratch.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kPinsMode));
  if (!file.valid()) return KeepFailed(name);
  const bool written = write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       fsync(file.get()) == 0;
  if (!written) return KeepFailed(name);
  return renameat(folder, scratch.c_str(), folder, name.c_str()) == 0 ? absl::OkStatus() : KeepFailed(name);
}

absl::StatusOr<std::set<std::string>> HeldNames(ckpt::Source& source,
                                                const std::vector<v1::CheckpointFinding>& findings) {
  absl::StatusOr<std::set<std::string>> held = ReadPins(source);
  if (!held.ok()) return held;
  const absl::StatusOr<std::vector<ckpt::Tracker>> trackers = ckpt::FindTrackers(source, findings);
  if (!trackers.ok()) return trackers.status();
  for (const ckpt::Tracker& tracker : *trackers) {
    if (tracker.state == ckpt::TrackerState::kNames) held->insert(tracker.target);
  }
  const absl::StatusOr<std::vector<ckpt::Entry>> entries = source.List("");
  if (!entries.ok()) return entries.status();
  for (const ckpt::Entry& entry : *entries) {
    if (entry.type != ckpt::FileType::kLink) continue;
    const absl::StatusOr<std::string> target = source.ReadLink(entry.name);
    if (!target.ok()) return target.status();
    held->insert(NameOfPath(*target));
  }
  return held;
}

absl::Status RemoveCheckpoint(int folder, const v1::Checkpoint& checkpoint) {
  const std::string name = NameOfPath(checkpoint.path());
  struct stat st;
  if (fstatat(folder, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? absl::OkStatus() : KeepFailed(name);
  }
  if (!S_ISDIR(st.st_mode) && static_cast<uint64_t>(st.st_size) != checkpoint.bytes()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is one of several files that belong together; they are not removed"));
  }
  const std::string hidden = absl::StrCat(kPruned, name);
  RemoveTree(folder, hidden, 0).IgnoreError();
  if (renameat(folder, name.c_str(), folder, hidden.c_str()) != 0) return KeepFailed(name);
  return RemoveTree(folder, hidden, 0);
}

void RemoveLeftovers(int folder) {
  for (const std::string& name : NamesIn(folder)) {
    if (absl::StartsWith(name, kPruned)) RemoveTree(folder, name, 0).IgnoreError();
  }
}

absl::StatusOr<std::vector<v1::Checkpoint>> Prune(const std::string& folder, const KeepRule& rule,
                                                  absl::Duration quiet_time, bool dry_run) {
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(folder);
  if (!source.ok()) return source.status();
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return KeepFailed(folder);
  ckpt::JudgeOptions options;
  options.now = absl::Now();
  options.quiet_time = quiet_time;
  const absl::StatusOr<std::vector<v1::CheckpointFinding>> findings =
      ckpt::ListCheckpoints(**source, options);
  if (!findings.ok()) return findings.status();
  const absl::StatusOr<std::set<std::string>> held = HeldNames(**source, *findings);
  if (!held.ok()) return held.status();
  std::vector<v1::Checkpoint> chosen = SelectForRemoval(*findings, *held, rule);
  if (dry_run) return chosen;
  RemoveLeftovers(fd.get());
  std::vector<v1::Checkpoint> removed;
  for (v1::Checkpoint& checkpoint : chosen) {
    // The folder itself was the one checkpoint: nothing lies beside it.
    if (checkpoint.path().size() <= (*source)->root().size()) continue;
    if (absl::Status done = RemoveCheckpoint(fd.get(), checkpoint); !done.ok()) return done;
    removed.push_back(std::move(checkpoint));
  }
  return removed;
}

namespace {

// Complete, or complete but for what other nodes hold; and not written again since.
bool IsAsTold(const v1::CheckpointFinding& here, const v1::Checkpoint& told) {
  const v1::Checkpoint& found = here.checkpoint();
  const bool only_misses = found.verdict() == v1::VERDICT_PARTIAL && here.missing_size() > 0 &&
                           found.file() == here.missing(0).name();
  return (found.verdict() == v1::VERDICT_COMPLETE || only_misses) &&
         found.mtime_unix_ns() <= told.mtime_unix_ns();
}

}  // namespace

absl::StatusOr<std::vector<v1::Checkpoint>> RemoveListed(const std::string& folder,
                                                         const std::vector<v1::Checkpoint>& checkpoints,
                                                         absl::Duration quiet_time, absl::Time now) {
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(folder);
  if (!source.ok()) return source.status();
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return KeepFailed(folder);
  std::vector<v1::CheckpointFinding> findings;
  for (const v1::Checkpoint& checkpoint : checkpoints)
    *findings.emplace_back().mutable_checkpoint() = checkpoint;
  const absl::StatusOr<std::set<std::string>> held = HeldNames(**source, findings);
  if (!held.ok()) return held.status();
  ckpt::JudgeOptions options;
  options.now = now;
  options.quiet_time = quiet_time;
  RemoveLeftovers(fd.get());
  std::vector<v1::Checkpoint> removed;
  for (const v1::Checkpoint& told : checkpoints) {
    const std::string name = NameOfPath(told.path());
    const bool in_folder =
        ckpt::MayBeCheckpoint(name) && told.path() == ckpt::JoinPath((*source)->root(), name);
    if (!in_folder || held->count(name) > 0) continue;
    if (absl::IsNotFound((*source)->Stat(name).status())) {
      removed.push_back(told);
      continue;
    }
    if (!IsAsTold(ckpt::Judge(**source, name, options), told)) continue;
    if (absl::Status done = RemoveCheckpoint(fd.get(), told); !done.ok()) return done;
    removed.push_back(told);
  }
  return removed;
}

}  // namespace dgxrun::agent
