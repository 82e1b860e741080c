// The names, sizes and times of one checkpoint, read once: a folder with all that is in it, or one file.
//
// Paths are relative to the checkpoint; a checkpoint that is one file has the one path "". Symbolic links are
// kept as what they are and not followed.
#ifndef DGXRUN_AGENT_CKPT_TREE_H_
#define DGXRUN_AGENT_CKPT_TREE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "agent/ckpt/source.h"

namespace dgxrun::agent::ckpt {

class Tree {
 public:
  using Files = std::map<std::string, FileInfo, std::less<>>;

  // Files that vanish meanwhile are left out. kResourceExhausted: more files, or deeper folders, than judge.h
  // allows.
  static absl::StatusOr<Tree> Read(Source& source, std::string_view path);
  // The files that belong together although they lie loose beside others.
  static Tree OfFiles(Files files);

  bool is_folder() const { return is_folder_; }
  // Everything but folders, sorted by path.
  const Files& files() const { return files_; }
  const FileInfo* Find(std::string_view path) const;  // nullptr: no such file (or it is a folder)
  bool Has(std::string_view path) const { return Find(path) != nullptr; }
  // Whether this is a folder, be it empty.
  bool HasFolder(std::string_view path) const;
  const std::vector<std::string>& folders() const { return folders_; }  // sorted
  // The files right in a folder ("" is the checkpoint itself), by name.
  void ForEachIn(std::string_view folder,
                 absl::FunctionRef<void(std::string_view name, const FileInfo& info)> visit) const;
  // The names of folders right in a folder.
  std::vector<std::string> FoldersIn(std::string_view folder) const;
  std::vector<std::string> NamesIn(std::string_view folder) const;

  uint64_t bytes() const;
  int64_t newest_ns() const;  // of all files, or of the folder if it has none

 private:
  bool is_folder_ = false;
  int64_t own_mtime_ns_ = 0;
  Files files_;
  std::vector<std::string> folders_;
};

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_TREE_H_
