#include "agent/ckpt/tracker.h"

#include <algorithm>

#include "agent/ckpt/format.h"
#include "agent/ckpt/text.h"
#include "agent/utf8.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr TrackerKind kKinds[] = {TrackerKind::kMegatron, TrackerKind::kDeepSpeed,
                                  TrackerKind::kDeepSpeedUniversal, TrackerKind::kDlrover};
// Megatron pads iterations to this: iter_0000300.
constexpr size_t kMegatronDigits = 7;

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string IterName(int64_t iteration) {
  std::string digits = std::to_string(iteration);
  if (digits.size() < kMegatronDigits) digits.insert(0, kMegatronDigits - digits.size(), '0');
  return "iter_" + digits;
}

std::string_view NameOf(const v1::Checkpoint& checkpoint) {
  const std::string_view path = checkpoint.path();
  return path.substr(path.rfind('/') + 1);
}

bool IsMegatron(std::string_view format) {
  return format == kMegatron || format == kMegatronDist || format == kMegatronDcp;
}

// What would load a folder of this format by a pointer beside it.
bool Follows(TrackerKind kind, std::string_view format) {
  switch (kind) {
    case TrackerKind::kMegatron:
    case TrackerKind::kDlrover:
      return IsMegatron(format);
    case TrackerKind::kDeepSpeed:
      return format == kDeepSpeed;
    case TrackerKind::kDeepSpeedUniversal:
      return format == kDeepSpeedUniversal;
  }
  return false;
}

const char* WhatHappens(TrackerKind kind, TrackerState state) {
  switch (kind) {
    case TrackerKind::kMegatron:
      return state == TrackerState::kAbsent ? "Megatron would start from random weights"
                                            : "Megatron would stop, with exit status 0";
    case TrackerKind::kDeepSpeed:
    case TrackerKind::kDeepSpeedUniversal:
      return state == TrackerState::kAbsent ? "DeepSpeed would load nothing and start anew"
                                            : "DeepSpeed would fail to load";
    case TrackerKind::kDlrover:
      return "DLRover would not find the checkpoint";
  }
  return "";
}

}  // namespace

std::string_view TrackerFileName(TrackerKind kind) {
  switch (kind) {
    case TrackerKind::kMegatron:
      return "latest_checkpointed_iteration.txt";
    case TrackerKind::kDeepSpeed:
      return "latest";
    case TrackerKind::kDeepSpeedUniversal:
      return "latest_universal";
    case TrackerKind::kDlrover:
      return "dlrover_latest.txt";
  }
  return "";
}

Tracker ParseTracker(TrackerKind kind, std::optional<std::string_view> bytes) {
  Tracker tracker;
  tracker.kind = kind;
  tracker.file = std::string(TrackerFileName(kind));
  if (!bytes.has_value()) return tracker;
  const std::string_view text = Trim(*bytes);
  tracker.state = TrackerState::kUnreadable;
  if (text.empty()) tracker.state = TrackerState::kEmpty;
  tracker.text = ToPrintable(std::string(text.substr(0, kMaxTrackerBytes)));
  if (text.empty() || bytes->size() > kMaxTrackerBytes) return tracker;
  switch (kind) {
    case TrackerKind::kMegatron:
    case TrackerKind::kDlrover: {
      // Python's int() takes a sign and underscores as well; no Megatron writes them.
      const std::optional<int64_t> iteration = ParseDigits(text);
      if (iteration.has_value()) tracker.target = IterName(*iteration);
      if (text == "release" && kind == TrackerKind::kMegatron) tracker.target = "release";
      break;
    }
    case TrackerKind::kDeepSpeed:
    case TrackerKind::kDeepSpeedUniversal:
      if (text.size() <= 255 && IsUtf8(text) && StaysBeneath(text) &&
          text.find('/') == std::string_view::npos && std::none_of(text.begin(), text.end(), [](char c) {
            return static_cast<unsigned char>(c) < 0x20;
          })) {
        tracker.target = std::string(text);
      }
      break;
  }
  if (!tracker.target.empty()) tracker.state = TrackerState::kNames;
  return tracker;
}

absl::StatusOr<std::vector<Tracker>> FindTrackers(Source& source,
                                                  const std::vector<v1::CheckpointFinding>& findings) {
  std::vector<Tracker> trackers;
  for (const TrackerKind kind : kKinds) {
    absl::StatusOr<std::unique_ptr<File>> file = source.Open(TrackerFileName(kind));
    if (absl::IsNotFound(file.status())) {
      // An absent universal or DLRover pointer is normal beside the usual one.
      const bool usual = kind == TrackerKind::kMegatron || kind == TrackerKind::kDeepSpeed;
      const bool wanted = usual && std::any_of(findings.begin(), findings.end(), [kind](const auto& finding) {
                            return Follows(kind, finding.checkpoint().format());
                          });
      if (wanted) trackers.push_back(ParseTracker(kind, std::nullopt));
      continue;
    }
    if (absl::IsUnavailable(file.status()) || absl::IsCancelled(file.status())) return file.status();
    Tracker tracker = ParseTracker(kind, "");
    tracker.state = TrackerState::kUnreadable;
    if (file.ok()) {
      std::string bytes(std::min<uint64_t>((*file)->info().bytes, kMaxTrackerBytes + 1), '\0');
      const absl::Status read =
          bytes.empty() ? absl::OkStatus() : (*file)->ReadAt(0, bytes.data(), bytes.size());
      if (read.ok()) tracker = ParseTracker(kind, bytes);
    }
    // `latest` is a word that others use too: a folder, a link, a file without any DeepSpeed checkpoint
    // beside it.
    const bool deepspeed_here = std::any_of(findings.begin(), findings.end(), [kind](const auto& finding) {
      return Follows(kind, finding.checkpoint().format());
    });
    if (kind == TrackerKind::kDeepSpeed && !deepspeed_here) continue;
    trackers.push_back(std::move(tracker));
  }
  return trackers;
}

std::optional<std::string> TrackerText(TrackerKind kind, const v1::Checkpoint& checkpoint) {
  if (!Follows(kind, checkpoint.format())) return std::nullopt;
  const std::string_view name = NameOf(checkpoint);
  switch (kind) {
    case TrackerKind::kMegatron:
    case TrackerKind::kDlrover: {
      if (name == "release" && kind == TrackerKind::kMegatron) return std::string(name);
      const std::optional<int64_t> iteration = NumberBetween(name, "iter_", "");
      if (!iteration.has_value() || IterName(*iteration) != name) return std::nullopt;
      return std::to_string(*iteration);
    }
    case TrackerKind::kDeepSpeed:
    case TrackerKind::kDeepSpeedUniversal:
      return std::string(name);
  }
  return std::nullopt;
}

TrackerRepair RepairOf(const Tracker& tracker, const v1::Checkpoint* chosen) {
  TrackerRepair repair;
  const std::string what_happens = WhatHappens(tracker.kind, tracker.state);
  std::string says;
  switch (tracker.state) {
    case TrackerState::kAbsent:
      says = " is missing: ";
      break;
    case TrackerState::kEmpty:
      says = " is empty: ";
      break;
    case TrackerState::kUnreadable:
      says = " does not name a checkpoint: ";
      break;
    case TrackerState::kNames:
      says = Cat({" names ", tracker.target, ", which is not complete: "});
      break;
  }
  if (chosen == nullptr) {
    const bool ends_start =
        tracker.state == TrackerState::kEmpty || tracker.state == TrackerState::kUnreadable;
    if (!ends_start) return repair;
    repair.action = TrackerRepair::Action::kMoveAside;
    repair.reason =
        Cat({tracker.file, says, what_happens, "; no checkpoint is complete, so it is moved aside"});
    return repair;
  }
  const std::optional<std::string> text = TrackerText(tracker.kind, *chosen);
  if (!text.has_value()) return repair;
  const std::string_view name = NameOf(*chosen);
  if (tracker.state == TrackerState::kNames && tracker.target == name) return repair;
  repair.action = TrackerRepair::Action::kWrite;
  repair.text = *text;
  const bool lags = tracker.state == TrackerState::kNames;
  repair.reason =
      lags ? Cat({tracker.file, " names ", tracker.target, "; the newest complete checkpoint is ", name})
           : Cat({tracker.file, says, what_happens, "; it now names ", name});
  return repair;
}

}  // namespace dgxrun::agent::ckpt
