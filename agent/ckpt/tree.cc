#include "agent/ckpt/tree.h"

#include <algorithm>
#include <utility>

#include "agent/ckpt/judge.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

struct Open {
  std::string path;  // relative to the checkpoint
  int depth;
};

}  // namespace

absl::StatusOr<Tree> Tree::Read(Source& source, std::string_view path) {
  absl::StatusOr<FileInfo> top = source.Stat(path);
  if (!top.ok()) return top.status();
  Tree tree;
  tree.own_mtime_ns_ = top->mtime_ns;
  tree.is_folder_ = top->type == FileType::kFolder;
  if (!tree.is_folder_) {
    tree.files_.emplace("", *top);
    return tree;
  }
  std::vector<Open> open = {{"", 0}};
  while (!open.empty()) {
    const Open folder = std::move(open.back());
    open.pop_back();
    const std::string beneath = JoinPath(path, folder.path);
    absl::StatusOr<std::vector<Entry>> entries = source.List(beneath);
    if (absl::IsNotFound(entries.status())) continue;
    if (!entries.ok()) return entries.status();
    for (const Entry& entry : *entries) {
      std::string name = JoinPath(folder.path, entry.name);
      if (entry.type == FileType::kFolder) {
        if (folder.depth + 1 >= kMaxDepthOfCheckpoint) {
          return absl::ResourceExhaustedError("folders are nested deeper than is read");
        }
        open.push_back({name, folder.depth + 1});
        tree.folders_.push_back(std::move(name));
      } else {
        absl::StatusOr<FileInfo> info = source.Stat(JoinPath(beneath, entry.name));
        if (absl::IsNotFound(info.status())) continue;
        if (!info.ok()) return info.status();
        tree.files_.emplace(std::move(name), *info);
      }
      if (tree.files_.size() + tree.folders_.size() > kMaxFilesOfCheckpoint) {
        return absl::ResourceExhaustedError(Cat({"more than ", Str(kMaxFilesOfCheckpoint), " files"}));
      }
    }
  }
  std::sort(tree.folders_.begin(), tree.folders_.end());
  return tree;
}

Tree Tree::OfFiles(Files files) {
  Tree tree;
  tree.is_folder_ = true;
  tree.files_ = std::move(files);
  return tree;
}

const FileInfo* Tree::Find(std::string_view path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? nullptr : &found->second;
}

bool Tree::HasFolder(std::string_view path) const {
  return path.empty() ? is_folder_ : std::binary_search(folders_.begin(), folders_.end(), path);
}

void Tree::ForEachIn(std::string_view folder,
                     absl::FunctionRef<void(std::string_view name, const FileInfo& info)> visit) const {
  const std::string prefix = folder.empty() ? "" : Cat({folder, "/"});
  for (auto at = files_.lower_bound(prefix); at != files_.end() && at->first.starts_with(prefix);) {
    const std::string_view name = std::string_view(at->first).substr(prefix.size());
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos) {
      visit(name, at->second);
      ++at;
    } else {  // on to what follows this folder: '0' is the character after '/'
      at = files_.lower_bound(Cat({prefix, name.substr(0, slash), "0"}));
    }
  }
}

std::vector<std::string> Tree::NamesIn(std::string_view folder) const {
  std::vector<std::string> names;
  ForEachIn(folder, [&names](std::string_view name, const FileInfo&) { names.emplace_back(name); });
  return names;
}

std::vector<std::string> Tree::FoldersIn(std::string_view folder) const {
  const std::string prefix = folder.empty() ? "" : Cat({folder, "/"});
  std::vector<std::string> names;
  for (auto at = std::lower_bound(folders_.begin(), folders_.end(), prefix);
       at != folders_.end() && at->starts_with(prefix); ++at) {
    const std::string name = at->substr(prefix.size());
    if (name.find('/') == std::string::npos) names.push_back(name);
  }
  return names;
}

uint64_t Tree::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [path, info] : files_) bytes += info.bytes;
  return bytes;
}

int64_t Tree::newest_ns() const {
  if (files_.empty()) return own_mtime_ns_;
  int64_t newest = INT64_MIN;
  for (const auto& [path, info] : files_) newest = std::max(newest, info.mtime_ns);
  return newest;
}

}  // namespace dgxrun::agent::ckpt
