#include "agent/ckpt/review.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "agent/ckpt/text.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

// JSON beyond this is read at its head, up to what is wanted, and at its very end: a Trainer's state grows
// with the log of its losses.
constexpr uint64_t kWholeJsonBytes = uint64_t{4} << 20;
constexpr uint64_t kJsonTailBytes = 256;

int Weight(v1::Verdict verdict) {
  switch (verdict) {
    case v1::VERDICT_WRITING:
      return 6;
    case v1::VERDICT_CORRUPT:
      return 5;
    case v1::VERDICT_PARTIAL:
      return 4;
    case v1::VERDICT_UNVERIFIED:
      return 3;
    case v1::VERDICT_UNCOMMITTED:
      return 2;
    case v1::VERDICT_WEIGHTS_ONLY:
      return 1;
    case v1::VERDICT_COMPLETE:
    case v1::VERDICT_UNSPECIFIED:
    case v1::Verdict_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Verdict_INT_MAX_SENTINEL_DO_NOT_USE_:
      return 0;
  }
  return 0;
}

}  // namespace

Review::Review(Source& source, std::string path, const Tree& tree, const JudgeOptions& options)
    : source_(source), path_(std::move(path)), tree_(tree), options_(options) {}

std::string_view Review::name() const {
  const std::string_view whole = path_.empty() ? std::string_view(source_.root()) : std::string_view(path_);
  return whole.substr(whole.rfind('/') + 1);
}

bool Review::ExistsBeside(std::string_view suffix) {
  return !path_.empty() && source_.Stat(Cat({path_, suffix})).ok();
}

void Review::Fault(v1::Verdict verdict, std::string_view file, std::string reason) {
  if (Weight(verdict) <= Weight(verdict_)) return;
  verdict_ = verdict;
  file_ = ToPrintable(std::string(file));
  reason_ = ToPrintable(std::move(reason));
}

void Review::Missing(std::string_view file, uint64_t least_bytes, std::string reason) {
  missing_.push_back({std::string(file), least_bytes, std::move(reason)});
}

void Review::Sound(std::string_view file) { sound_.emplace_back(file); }

void Review::FaultOf(const absl::Status& status, std::string_view file, std::string_view what) {
  const std::string reason = Cat({what, what.empty() ? "" : ": ", std::string(status.message())});
  switch (status.code()) {
    case absl::StatusCode::kOutOfRange:
      Fault(v1::VERDICT_PARTIAL, file, reason);
      return;
    case absl::StatusCode::kDataLoss:
      Fault(v1::VERDICT_CORRUPT, file, reason);
      return;
    case absl::StatusCode::kNotFound:
      Missing(file, 0, "removed while it was judged");
      return;
    default:
      Fault(v1::VERDICT_UNVERIFIED, file, Cat({"cannot be judged: ", reason}));
      return;
  }
}

std::unique_ptr<File> Review::Open(std::string_view file) {
  const FileInfo* info = tree_.Find(file);
  if (info == nullptr) {
    Missing(file, 0, "missing");
    return nullptr;
  }
  if (info->type == FileType::kLink) {
    Fault(v1::VERDICT_CORRUPT, file, "a symbolic link: what it points to is not part of the checkpoint");
    return nullptr;
  }
  // No save makes one, and a framework that opens a pipe waits for ever.
  if (info->type != FileType::kFile) {
    Fault(v1::VERDICT_CORRUPT, file, "neither a file nor a folder");
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<File>> opened = source_.Open(JoinPath(path_, file));
  if (!opened.ok()) {
    FaultOf(opened.status(), file);
    return nullptr;
  }
  return *std::move(opened);
}

std::optional<std::string> Review::ReadAll(std::string_view file, uint64_t max_bytes) {
  const std::unique_ptr<File> opened = Open(file);
  if (opened == nullptr) return std::nullopt;
  if (opened->info().bytes > max_bytes) {
    Fault(v1::VERDICT_UNVERIFIED, file, Cat({"larger than the ", Str(max_bytes), " bytes that are read"}));
    return std::nullopt;
  }
  std::string bytes(opened->info().bytes, '\0');
  if (bytes.empty()) return bytes;
  if (absl::Status read = opened->ReadAt(0, bytes.data(), bytes.size()); !read.ok()) {
    FaultOf(read, file);
    return std::nullopt;
  }
  return bytes;
}

bool Review::CheckJson(std::string_view file, JsonVisitor visit) {
  const std::unique_ptr<File> opened = Open(file);
  if (opened == nullptr) return false;
  const uint64_t size = opened->info().bytes;
  std::string bytes(std::min(size, options_.deep ? kMaxMetadataBytes : kWholeJsonBytes), '\0');
  if (bytes.empty()) {
    Fault(v1::VERDICT_PARTIAL, file, "empty");
    return false;
  }
  absl::Status status = opened->ReadAt(0, bytes.data(), bytes.size());
  if (status.ok()) {
    const bool whole = bytes.size() == size;
    JsonSummary summary;
    status = ScanJson(bytes, visit, &summary);
    if (!whole && !summary.ended_early && absl::IsDataLoss(status)) status = absl::OkStatus();
    if (status.ok() && !summary.object) status = absl::DataLossError("not a JSON object");
    if (status.ok() && !whole) {
      std::string tail(kJsonTailBytes, '\0');
      status = opened->ReadAt(size - tail.size(), tail.data(), tail.size());
      const size_t last = tail.find_last_not_of(" \n\r\t");
      if (status.ok() && (last == std::string::npos || tail[last] != '}')) {
        status = absl::DataLossError("JSON that breaks off");
      }
    }
  }
  if (status.ok()) return true;
  // JSON that breaks off was cut; JSON that is none, was never one.
  if (absl::IsDataLoss(status) && status.message() == "JSON that breaks off") {
    Fault(v1::VERDICT_PARTIAL, file, "cut off: JSON that breaks off");
  } else {
    FaultOf(status, file);
  }
  return false;
}

bool Review::CopiedInOneGo(const FileInfo& later) {
  if (mtimes_.empty()) {
    for (const auto& [path, info] : tree_.files()) mtimes_.push_back(info.mtime_ns);
    std::sort(mtimes_.begin(), mtimes_.end());
  }
  const auto after = std::upper_bound(mtimes_.begin(), mtimes_.end(), later.btime_ns);
  return after != mtimes_.begin() && later.btime_ns - *std::prev(after) <= kCopyGapNs;
}

bool Review::WrittenAfter(const FileInfo& first, const FileInfo& then) {
  if (first.mtime_ns <= then.mtime_ns) return false;
  // Times that were set later (cp -p, rsync, tar) lie before the file's own making, or in the future.
  const bool native = first.mtime_ns <= absl::ToUnixNanos(options_.now) && first.btime_ns != 0 &&
                      then.btime_ns != 0 && first.btime_ns <= first.mtime_ns &&
                      then.btime_ns <= then.mtime_ns;
  if (native && source_.one_clock()) {
    // Made before, and written to again after: no copy does that. (Equal: a copy begins the next file within
    // the tick of the clock in which the last one was finished.)
    if (first.btime_ns < then.mtime_ns) return true;
    if (CopiedInOneGo(first)) return false;
  }
  return first.mtime_ns - then.mtime_ns > kClockSlackNs;
}

bool Review::CheckOrder(std::string_view first, std::string_view then, int64_t lag_ns) {
  const FileInfo* a = tree_.Find(first);
  const FileInfo* b = tree_.Find(then);
  if (a == nullptr || b == nullptr || a->mtime_ns - b->mtime_ns <= lag_ns || !WrittenAfter(*a, *b))
    return true;
  Fault(v1::VERDICT_CORRUPT, first,
        Cat({"written after ", then,
             ", which comes after it in every save: files of two saves (or the folder was ",
             "copied without its times)"}));
  return false;
}

void Review::CheckPointerBeside(std::string_view pointer, std::string_view text, int64_t lag_ns) {
  if (path_.empty()) return;
  const size_t slash = path_.rfind('/');
  const std::string_view folder = std::string_view(path_).substr(0, slash == std::string::npos ? 0 : slash);
  absl::StatusOr<std::unique_ptr<File>> file = source_.Open(JoinPath(folder, pointer));
  // A line end more is allowed.
  if (!file.ok() || (*file)->info().bytes < text.size() || (*file)->info().bytes > text.size() + 2) return;
  std::string bytes((*file)->info().bytes, '\0');
  if (bytes.empty() || !(*file)->ReadAt(0, bytes.data(), bytes.size()).ok() || !bytes.starts_with(text))
    return;
  for (const auto& [path, info] : tree_.files()) {
    if (info.mtime_ns - (*file)->info().mtime_ns <= lag_ns || !WrittenAfter(info, (*file)->info())) continue;
    Fault(v1::VERDICT_CORRUPT, path,
          Cat({"written after ", pointer, " named this checkpoint: it was saved over, and not to the end"}));
    return;
  }
}

void Review::CheckJsonFiles(std::string_view folder) {
  for (const std::string& name : tree_.NamesIn(folder)) {
    if (!name.ends_with(".json")) continue;
    const std::string path = JoinPath(folder, name);
    // Lists are JSON too, but the files that checkpoints hold are all objects.
    CheckJson(path, [](const auto&, const auto&) { return true; });
  }
}

v1::CheckpointFinding Review::Finish() {
  if (!missing_.empty() && Weight(verdict_) < Weight(v1::VERDICT_PARTIAL)) {
    verdict_ = v1::VERDICT_PARTIAL;
    file_ = ToPrintable(missing_.front().file);
    reason_ = ToPrintable(missing_.front().reason);
  }
  v1::CheckpointFinding finding;
  v1::Checkpoint& checkpoint = *finding.mutable_checkpoint();
  checkpoint.set_path(JoinPath(source_.root(), path_));
  checkpoint.set_step(step_);
  checkpoint.set_mtime_unix_ns(tree_.newest_ns());
  checkpoint.set_format(format_);
  checkpoint.set_bytes(tree_.bytes());
  const int64_t quiet_ns = absl::ToInt64Nanoseconds(options_.quiet_time);
  // A time that lies further ahead than that is not of a save that goes on: a clock was wrong, or a copy set
  // it.
  const int64_t age_ns = absl::ToUnixNanos(options_.now) - tree_.newest_ns();
  const bool recent = age_ns < quiet_ns && age_ns > -quiet_ns;
  const bool good = verdict_ == v1::VERDICT_COMPLETE || verdict_ == v1::VERDICT_WEIGHTS_ONLY;
  if (recent && (!good || unmarked_)) {
    reason_ = good ? "changed just now, and nothing marks the end of a save in this format"
                   : Cat({"changed just now; so far: ", reason_});
    verdict_ = v1::VERDICT_WRITING;
  }
  checkpoint.set_verdict(verdict_);
  checkpoint.set_file(file_);
  checkpoint.set_reason(reason_);
  finding.set_save_id(ToPrintable(save_id_));
  if (verdict_ == v1::VERDICT_COMPLETE || verdict_ == v1::VERDICT_WEIGHTS_ONLY) return finding;
  for (const Lack& lack : missing_) {
    v1::FileFact& fact = *finding.add_missing();
    if (static_cast<size_t>(finding.missing_size()) > kMaxFactsOfFinding) {
      fact.set_name("...");  // more than are told: nothing covers it
      fact.set_bytes(std::numeric_limits<uint64_t>::max());
      break;
    }
    fact.set_name(ToPrintable(lack.file));
    fact.set_bytes(lack.bytes);
  }
  for (const std::string& file : sound_) {
    if (static_cast<size_t>(finding.present_size()) >= kMaxFactsOfFinding) break;
    const FileInfo* info = tree_.Find(file);
    if (info == nullptr) continue;
    v1::FileFact& fact = *finding.add_present();
    fact.set_name(ToPrintable(file));
    fact.set_bytes(info->bytes);
  }
  return finding;
}

}  // namespace dgxrun::agent::ckpt
