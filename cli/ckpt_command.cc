#include "cli/ckpt_command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt_keep.h"
#include "cli/exit_codes.h"
#include "cli/render.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

namespace ckpt = agent::ckpt;
using agent::NameOfPath;

// Something in it changed a moment ago and it is not complete: somebody is saving.
constexpr absl::Duration kQuiet = absl::Seconds(10);

absl::Status Named(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  // What a folder's opening says names it already.
  const bool names_it = absl::StartsWith(status.message(), path + ": ");
  return absl::FailedPreconditionError(
      absl::StrCat(names_it ? "" : absl::StrCat(path, ": "), status.message()));
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool IsFile(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && !S_ISDIR(st.st_mode);
}

struct Listed {
  std::vector<v1::Checkpoint> checkpoints;  // newest first
  std::set<std::string> pins;
};

ckpt::JudgeOptions Options(bool deep) {
  ckpt::JudgeOptions options;
  options.deep = deep;
  options.now = absl::Now();
  options.quiet_time = kQuiet;
  return options;
}

absl::StatusOr<Listed> List(const std::string& folder, bool deep) {
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(folder);
  if (!source.ok()) return Named(folder, source.status());
  absl::StatusOr<std::vector<v1::CheckpointFinding>> findings =
      ckpt::ListCheckpoints(**source, Options(deep));
  if (!findings.ok()) return Named(folder, findings.status());
  absl::StatusOr<std::set<std::string>> pins = agent::ReadPins(**source);
  if (!pins.ok()) return Named(folder, pins.status());
  Listed listed;
  listed.pins = *std::move(pins);
  for (v1::CheckpointFinding& finding : *findings) {
    listed.checkpoints.push_back(std::move(*finding.mutable_checkpoint()));
  }
  return listed;
}

// A folder of checkpoints, or one checkpoint.
absl::StatusOr<Listed> ListPath(const std::string& path, bool deep) {
  if (!IsFile(path)) return List(path, deep);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(folder);
  if (!source.ok()) return Named(folder, source.status());
  Listed listed;
  v1::CheckpointFinding finding = ckpt::Judge(**source, NameOfPath(path), Options(deep));
  listed.checkpoints.push_back(std::move(*finding.mutable_checkpoint()));
  return listed;
}

void Print(const Listed& listed, bool json) {
  const std::string text = json ? CheckpointsJson(listed.checkpoints, listed.pins, absl::Now())
                                : RenderCheckpoints(listed.checkpoints, listed.pins, absl::Now());
  fputs(text.c_str(), stdout);
}

absl::StatusOr<int> Ls(const CkptOptions& options) {
  auto listed = List(WithoutSlash(options.paths[0]), options.deep);
  if (!listed.ok()) return listed.status();
  Print(*listed, options.json);
  return kExitOk;
}

// Every path must hold a newest checkpoint that is complete.
absl::StatusOr<int> Verify(const CkptOptions& options) {
  Listed all;
  int code = kExitOk;
  for (const std::string& path : options.paths) {
    auto listed = ListPath(WithoutSlash(path), options.deep);
    if (!listed.ok()) return listed.status();
    const bool good =
        !listed->checkpoints.empty() && listed->checkpoints[0].verdict() == v1::VERDICT_COMPLETE;
    if (!good) code = kExitNotComplete;
    all.checkpoints.insert(all.checkpoints.end(), listed->checkpoints.begin(), listed->checkpoints.end());
    all.pins.insert(listed->pins.begin(), listed->pins.end());
  }
  Print(all, options.json);
  return code;
}

absl::StatusOr<int> Pin(const CkptOptions& options) {
  const std::string folder = WithoutSlash(options.paths[0]);
  absl::StatusOr<std::unique_ptr<ckpt::Source>> source = ckpt::OpenFolder(folder);
  if (!source.ok()) return Named(folder, source.status());
  absl::StatusOr<std::set<std::string>> pins = agent::ReadPins(**source);
  if (!pins.ok()) return Named(folder, pins.status());
  for (size_t i = 1; i < options.paths.size(); ++i) {
    const std::string name = NameOfPath(WithoutSlash(options.paths[i]));
    if (options.remove) {
      if (pins->erase(name) == 0)
        return absl::NotFoundError(absl::StrCat(name, " is not pinned in ", folder));
      continue;
    }
    if (!ckpt::MayBeCheckpoint(name) || !(*source)->Stat(name).ok()) {
      return absl::NotFoundError(absl::StrCat("no checkpoint ", name, " in ", folder));
    }
    pins->insert(name);
  }
  if (options.paths.size() > 1) {
    const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return absl::FailedPreconditionError(absl::StrCat(folder, ": ", strerror(errno)));
    if (absl::Status written = agent::WritePins(fd.get(), *pins); !written.ok())
      return Named(folder, written);
  }
  for (const std::string& pin : *pins) printf("%s\n", Printable(pin).c_str());
  return kExitOk;
}

absl::StatusOr<int> Prune(const CkptOptions& options) {
  const std::string folder = WithoutSlash(options.paths[0]);
  const auto removed = agent::Prune(folder, {options.keep_last, options.keep_every}, kQuiet, options.dry_run);
  if (!removed.ok()) return Named(folder, removed.status());
  if (options.json) {
    fputs(CheckpointsJson(*removed, {}, absl::Now()).c_str(), stdout);
    return kExitOk;
  }
  uint64_t bytes = 0;
  for (const v1::Checkpoint& checkpoint : *removed) {
    printf("%s %s\n", options.dry_run ? "would remove" : "removed", Printable(checkpoint.path()).c_str());
    bytes += checkpoint.bytes();
  }
  printf("%zu checkpoint%s, %s\n", removed->size(), removed->size() == 1 ? "" : "s",
         HumanBytes(bytes).c_str());
  return kExitOk;
}

}  // namespace

absl::StatusOr<int> CkptCommand(const CkptOptions& options) {
  switch (options.what) {
    case CkptOptions::What::kLs:
      return Ls(options);
    case CkptOptions::What::kVerify:
      return Verify(options);
    case CkptOptions::What::kPin:
      return Pin(options);
    case CkptOptions::What::kPrune:
      return Prune(options);
  }
  return absl::InternalError("a ckpt command without a handler");
}

std::string RenderCheckpoints(const std::vector<v1::Checkpoint>& checkpoints,
                              const std::set<std::string>& pins, absl::Time now) {
  if (checkpoints.empty()) return "no checkpoints\n";
  std::string text = absl::StrFormat("%10s  %-20s %10s %16s  %-13s %s\n", "STEP", "FORMAT", "SIZE", "AGE",
                                     "VERDICT", "NAME");
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    const std::string name = NameOfPath(checkpoint.path());
    absl::StrAppendFormat(
        &text, "%10s  %-20s %10s %16s  %-13s %s%s\n",
        checkpoint.step() >= 0 ? absl::StrCat(checkpoint.step()) : "-",
        checkpoint.format().empty() ? "-" : checkpoint.format(), HumanBytes(checkpoint.bytes()),
        HumanDuration(now - absl::FromUnixNanos(checkpoint.mtime_unix_ns())),
        ckpt::VerdictName(checkpoint.verdict()), Printable(name), pins.count(name) > 0 ? " (pinned)" : "");
    if (checkpoint.reason().empty()) continue;
    const std::string file = checkpoint.file().empty() ? "" : checkpoint.file() + ": ";
    absl::StrAppend(&text, "            ", Printable(file + checkpoint.reason()), "\n");
  }
  return text;
}

std::string CheckpointsJson(const std::vector<v1::Checkpoint>& checkpoints, const std::set<std::string>& pins,
                            absl::Time now) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    const auto text_or_null = [](const std::string& text) {
      return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
    };
    const absl::Duration age = now - absl::FromUnixNanos(checkpoint.mtime_unix_ns());
    list.push_back(
        {{"path", checkpoint.path()},
         {"step", checkpoint.step() >= 0 ? nlohmann::json(checkpoint.step()) : nlohmann::json(nullptr)},
         {"format", text_or_null(checkpoint.format())},
         {"bytes", checkpoint.bytes()},
         {"age_s", absl::ToDoubleSeconds(age)},
         {"verdict", ckpt::VerdictName(checkpoint.verdict())},
         {"file", text_or_null(checkpoint.file())},
         {"reason", text_or_null(checkpoint.reason())},
         {"pinned", pins.count(NameOfPath(checkpoint.path())) > 0}});
  }
  const nlohmann::json all = {{"checkpoints", list}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace dgxrun::cli
