#include "agent/ckpt_scan.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/utf8.h"

namespace dgxrun::agent {
namespace {

struct Candidate {
  std::string name;
  int64_t step;
  int64_t mtime_ns = 0;
};

int64_t MtimeNs(const struct stat& st) {
  return st.st_mtim.tv_sec * int64_t{1000000000} + st.st_mtim.tv_nsec;
}

}  // namespace

bool CountsAsCheckpoint(std::string_view name) {
  if (name.empty() || name[0] == '.') return false;
  if (name.ends_with(".tmp") || name.ends_with(".partial")) return false;
  return IsUtf8(name);  // else it could not be told to anybody
}

int64_t CheckpointStep(std::string_view name) {
  // What follows the last dot is an extension if it holds a letter: "ckpt.500" has none.
  const size_t dot = name.rfind('.');
  if (dot != std::string_view::npos && dot > 0) {
    const std::string_view extension = name.substr(dot + 1);
    if (std::any_of(extension.begin(), extension.end(), [](char c) { return absl::ascii_isalpha(c); })) {
      name = name.substr(0, dot);
    }
  }
  while (!name.empty() && !absl::ascii_isdigit(name.back())) name.remove_suffix(1);
  size_t begin = name.size();
  while (begin > 0 && absl::ascii_isdigit(name[begin - 1])) --begin;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data() + begin, end, step);
  return error == std::errc() && stopped == end ? step : -1;
}

absl::StatusOr<std::optional<v1::Checkpoint>> NewestCheckpoint(const std::string& folder,
                                                               size_t max_entries) {
  const std::unique_ptr<DIR, void (*)(DIR*)> dir(opendir(folder.c_str()), [](DIR* d) {
    if (d != nullptr) closedir(d);
  });
  if (dir == nullptr) {
    if (errno == ENOENT) return std::optional<v1::Checkpoint>();
    return absl::FailedPreconditionError(absl::StrCat("ckpt-dir ", folder, ": ", strerror(errno)));
  }
  std::vector<Candidate> candidates;
  size_t entries = 0;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    if (++entries > max_entries) {
      return absl::FailedPreconditionError(
          absl::StrCat("ckpt-dir ", folder, ": more than ", max_entries, " entries"));
    }
    if (CountsAsCheckpoint(entry->d_name))
      candidates.push_back({entry->d_name, CheckpointStep(entry->d_name)});
  }
  if (errno != 0)
    return absl::FailedPreconditionError(absl::StrCat("ckpt-dir ", folder, ": ", strerror(errno)));
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.step > b.step; });
  // Only the entries that share the highest number are looked at, as long as one of them is usable.
  const Candidate* best = nullptr;
  for (Candidate& candidate : candidates) {
    if (best != nullptr && candidate.step != best->step) break;
    struct stat st;
    if (fstatat(dirfd(dir.get()), candidate.name.c_str(), &st, 0) != 0) continue;  // gone, or a broken link
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) continue;
    candidate.mtime_ns = MtimeNs(st);
    if (best == nullptr || candidate.mtime_ns > best->mtime_ns) best = &candidate;
  }
  if (best == nullptr) return std::optional<v1::Checkpoint>();
  v1::Checkpoint found;
  found.set_path(absl::StrCat(folder, folder.ends_with('/') ? "" : "/", best->name));
  found.set_step(best->step);
  found.set_mtime_unix_ns(best->mtime_ns);
  return std::optional<v1::Checkpoint>(std::move(found));
}

}  // namespace dgxrun::agent
