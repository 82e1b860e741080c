#include "agent/ckpt_resume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/tracker.h"
#include "launcher/base/unique_fd.h"
#include "proto/resume_word.h"

namespace dgxrun::agent {
namespace {

// Names tried for one that is moved aside; more than this of one name are not left lying by accident.
constexpr int kMaxQuarantined = 100;
constexpr mode_t kPointerMode = 0644;

absl::Status OrderFailed(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", strerror(errno)));
}

// Of a path that the controller says lies in the folder; empty: it does not.
std::string NameIn(const std::string& folder, const std::string& path) {
  std::string begin = folder;
  while (begin.size() > 1 && begin.back() == '/') begin.pop_back();
  if (begin != "/") begin += '/';
  if (!absl::StartsWith(path, begin)) return "";
  const std::string name = path.substr(begin.size());
  return ckpt::StaysBeneath(name) && !absl::StrContains(name, '/') ? name : "";
}

// Renames, and never over something.
int RenameTo(int folder, const std::string& from, const std::string& to) {
  if (syscall(SYS_renameat2, folder, from.c_str(), folder, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != ENOSYS && errno != EINVAL) return errno;  // EINVAL: this file system has no such flag
  struct stat st;
  if (fstatat(folder, to.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return renameat(folder, from.c_str(), folder, to.c_str()) == 0 ? 0 : errno;
}

absl::Status WriteNew(int folder, const std::string& name, const std::string& text) {
  unlinkat(folder, name.c_str(), 0);  // of an attempt that was cut short
  const UniqueFd file(
      openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kPointerMode));
  if (!file.valid()) return OrderFailed(name);
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return OrderFailed(name);
  return fsync(file.get()) == 0 ? absl::OkStatus() : OrderFailed(name);
}

// Keeps what `file` says under <file>.bak. Not by a link: some file systems have none.
absl::Status KeepOld(int folder, const std::string& file, const std::string& scratch) {
  const std::string kept = absl::StrCat(file, ".bak");
  const UniqueFd old(openat(folder, file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat st;
  if (!old.valid() && errno == ENOENT) return absl::OkStatus();
  const bool small = old.valid() && fstat(old.get(), &st) == 0 && S_ISREG(st.st_mode) &&
                     st.st_size <= static_cast<off_t>(ckpt::kMaxTrackerBytes);
  if (!small) {
    return renameat(folder, file.c_str(), folder, kept.c_str()) == 0 ? absl::OkStatus() : OrderFailed(file);
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  if (pread(old.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return OrderFailed(file);
  if (absl::Status written = WriteNew(folder, scratch, text); !written.ok()) return written;
  return renameat(folder, scratch.c_str(), folder, kept.c_str()) == 0 ? absl::OkStatus() : OrderFailed(kept);
}

bool NamesOne(const std::vector<std::string>& paths, const std::string& path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

// Judges the newest complete one again, and thoroughly.
void LookDeeper(ckpt::Source& source, const v1::Prepare& prepare, const ckpt::JudgeOptions& options,
                std::vector<v1::CheckpointFinding>* findings) {
  if (prepare.attempt() == 0) return;
  const std::vector<std::string> poisoned(prepare.poisoned().begin(), prepare.poisoned().end());
  uint64_t left = kMaxDeepBytes;
  for (v1::CheckpointFinding& finding : *findings) {
    const v1::Checkpoint& found = finding.checkpoint();
    if (found.verdict() != v1::VERDICT_COMPLETE || NamesOne(poisoned, found.path())) continue;
    const std::string name = NameIn(prepare.ckpt_dir(), found.path());
    if (name.empty() || found.bytes() > left) return;
    left -= found.bytes();
    ckpt::JudgeOptions deep = options;
    deep.deep = true;
    const v1::CheckpointFinding again = ckpt::Judge(source, name, deep);
    if (again.checkpoint().verdict() != v1::VERDICT_CORRUPT) return;
    finding.mutable_checkpoint()->set_verdict(again.checkpoint().verdict());
    finding.mutable_checkpoint()->set_file(again.checkpoint().file());
    finding.mutable_checkpoint()->set_reason(again.checkpoint().reason());
  }
}

// A pointer without any checkpoint that would end the start: said, so that the second question is asked.
void NoteLonelyPointers(ckpt::Source& source, const v1::Prepare& prepare, v1::Prepared* prepared) {
  const absl::StatusOr<std::vector<ckpt::Tracker>> trackers = ckpt::FindTrackers(source, {});
  if (!trackers.ok()) return;
  for (const ckpt::Tracker& tracker : *trackers) {
    const ckpt::TrackerRepair repair = ckpt::RepairOf(tracker, nullptr);
    if (repair.action == ckpt::TrackerRepair::Action::kNone) continue;
    prepared->add_notes(absl::StrCat(prepare.ckpt_dir(), ": ", repair.reason));
  }
}

// A question that comes late: a later attempt has saved anew under this name.
bool IsNewerThanTold(ckpt::Source& source, const v1::Prepare& prepare, int index, const std::string& name) {
  if (index >= prepare.poisoned_mtime_unix_ns_size()) return false;  // a controller that does not say
  ckpt::JudgeOptions options;
  options.now = absl::Now();
  return ckpt::Judge(source, name, options).checkpoint().mtime_unix_ns() >
         prepare.poisoned_mtime_unix_ns(index);
}

void MoveAsideAll(int folder, ckpt::Source& source, const v1::Prepare& prepare, v1::Prepared* prepared) {
  for (int i = 0; i < prepare.poisoned_size(); ++i) {
    const std::string& path = prepare.poisoned(i);
    const std::string name = NameIn(prepare.ckpt_dir(), path);
    if (name.empty() || path == prepare.resume() || IsNewerThanTold(source, prepare, i, name)) continue;
    const absl::StatusOr<std::string> moved = MoveAside(folder, name);
    if (!moved.ok()) {
      prepared->add_notes(absl::StrCat("could not move aside ", path, ": ", moved.status().message()));
    } else if (!moved->empty()) {
      prepared->add_notes(absl::StrCat("moved aside: ", path, " is now ", *moved));
    }
  }
}

void MendPointers(int folder, ckpt::Source& source, const v1::Prepare& prepare, v1::Prepared* prepared) {
  std::vector<v1::CheckpointFinding> findings;
  if (prepare.resume() != kResumeNothing) {
    ckpt::JudgeOptions options;
    options.now = absl::Now();
    const std::string name = NameIn(prepare.ckpt_dir(), prepare.resume());
    if (name.empty()) return;  // the folder itself: no pointer stands beside it
    findings.push_back(ckpt::Judge(source, name, options));
    // It lies on other nodes only: so does what reads a pointer to it.
    if (findings[0].checkpoint().format().empty()) return;
  }
  const v1::Checkpoint* chosen = findings.empty() ? nullptr : &findings[0].checkpoint();
  const absl::StatusOr<std::vector<ckpt::Tracker>> trackers = ckpt::FindTrackers(source, findings);
  if (!trackers.ok()) {
    prepared->add_notes(absl::StrCat("pointers in ", prepare.ckpt_dir(),
                                     " could not be read: ", trackers.status().message()));
    return;
  }
  for (const ckpt::Tracker& tracker : *trackers) {
    const ckpt::TrackerRepair repair = ckpt::RepairOf(tracker, chosen);
    absl::Status done;
    std::string result;
    switch (repair.action) {
      case ckpt::TrackerRepair::Action::kNone:
        continue;
      case ckpt::TrackerRepair::Action::kWrite:
        done = ReplacePointer(folder, tracker.file, repair.text);
        result = absl::StrCat("it says ", repair.text, " now");
        break;
      case ckpt::TrackerRepair::Action::kMoveAside: {
        const absl::StatusOr<std::string> moved = MoveAside(folder, tracker.file);
        done = moved.status();
        if (moved.ok()) result = absl::StrCat("it was moved aside as ", *moved);
        break;
      }
    }
    prepared->add_notes(
        absl::StrCat(prepare.ckpt_dir(), ": ", repair.reason, "; ",
                     done.ok() ? result : absl::StrCat("it could not be mended: ", done.message())));
  }
}

}  // namespace

void JudgeStop::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  if (source_ != nullptr) source_->Stop();
}

void JudgeStop::Watch(ckpt::Source* source) {
  std::lock_guard<std::mutex> lock(mutex_);
  source_ = source;
  if (stopped_ && source_ != nullptr) source_->Stop();
}

void KeepUsefulFacts(v1::CheckpointFinding* finding, int* left) {
  const int facts = finding->missing_size() + finding->present_size();
  const bool useful =
      finding->checkpoint().verdict() == v1::VERDICT_PARTIAL && finding->missing_size() > 0 && facts <= *left;
  if (useful) {
    *left -= facts;
    return;
  }
  finding->clear_missing();
  finding->clear_present();
}

absl::StatusOr<std::string> MoveAside(int folder, const std::string& name) {
  for (int i = 0; i < kMaxQuarantined; ++i) {
    const std::string to =
        absl::StrCat(name, std::string(ckpt::kQuarantineSuffix), i == 0 ? "" : absl::StrCat(".", i));
    const int error = RenameTo(folder, name, to);
    if (error == 0) return to;
    if (error == ENOENT) return "";
    if (error != EEXIST && error != ENOTEMPTY) return absl::FailedPreconditionError(strerror(error));
  }
  return absl::FailedPreconditionError("too many of this name were moved aside already");
}

absl::Status ReplacePointer(int folder, const std::string& file, const std::string& text) {
  const std::string scratch = absl::StrCat(".", file, ".dgxrun-", getpid(), ".tmp");
  if (absl::Status kept = KeepOld(folder, file, scratch); !kept.ok()) return kept;
  if (absl::Status written = WriteNew(folder, scratch, text); !written.ok()) return written;
  if (renameat(folder, scratch.c_str(), folder, file.c_str()) != 0) return OrderFailed(file);
  fsync(folder);  // best effort: a file system that cannot has the rename, or the old pointer and its .bak
  return absl::OkStatus();
}

absl::Status FindCheckpoints(const v1::Prepare& prepare, JudgeStop* stop, v1::Prepared* prepared) {
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(prepare.ckpt_dir());
  if (absl::IsNotFound(source.status())) return absl::OkStatus();
  const auto named = [&](const absl::Status& status) {
    return absl::FailedPreconditionError(
        absl::StrCat("ckpt-dir ", prepare.ckpt_dir(), ": ", status.message()));
  };
  if (!source.ok())
    return absl::FailedPreconditionError(absl::StrCat("ckpt-dir ", source.status().message()));
  stop->Watch(source->get());
  ckpt::JudgeOptions options;
  options.now = absl::Now();
  const auto poisoned = static_cast<size_t>(prepare.poisoned_size());
  options.limit = kMaxFindings;
  options.stop_after_complete = kCompleteWanted + poisoned;
  options.world_sizes.assign(prepare.world_sizes().begin(), prepare.world_sizes().end());
  absl::StatusOr<std::vector<v1::CheckpointFinding>> findings = ckpt::ListCheckpoints(**source, options);
  if (findings.ok()) LookDeeper(**source, prepare, options, &*findings);
  if (findings.ok() && findings->empty()) NoteLonelyPointers(**source, prepare, prepared);
  stop->Watch(nullptr);
  if (!findings.ok()) return named(findings.status());
  int facts = kMaxFacts;
  const v1::Checkpoint* best = nullptr;
  for (v1::CheckpointFinding& finding : *findings) {
    const v1::Checkpoint& found = finding.checkpoint();
    const bool complete = found.verdict() == v1::VERDICT_COMPLETE;
    const bool second_best =
        found.verdict() == v1::VERDICT_UNVERIFIED || found.verdict() == v1::VERDICT_WEIGHTS_ONLY;
    const bool better = complete && (best == nullptr || best->verdict() != v1::VERDICT_COMPLETE);
    if (better || (second_best && best == nullptr)) best = &found;
    KeepUsefulFacts(&finding, &facts);
  }
  if (best != nullptr)
    *prepared->mutable_checkpoint() = *best;  // for a controller that does not know findings
  for (v1::CheckpointFinding& finding : *findings) *prepared->add_findings() = std::move(finding);
  return absl::OkStatus();
}

void PutInOrder(const v1::Prepare& prepare, JudgeStop* stop, v1::Prepared* prepared) {
  prepared->mutable_checkpoint()->set_path(prepare.resume());
  const UniqueFd folder(open(prepare.ckpt_dir().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    if (errno != ENOENT) prepared->add_notes(std::string(OrderFailed(prepare.ckpt_dir()).message()));
    return;
  }
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(prepare.ckpt_dir());
  if (!source.ok()) return;  // gone in this moment
  stop->Watch(source->get());
  MoveAsideAll(folder.get(), **source, prepare, prepared);
  MendPointers(folder.get(), **source, prepare, prepared);
  stop->Watch(nullptr);
}

}  // namespace dgxrun::agent
