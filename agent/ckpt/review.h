// One checkpoint under judgement: its tree, its files, and what the format's rules have found so far. The
// rules (formats.h) call Fault, Missing and Sound; Finish() makes the finding.
//
// The worst fault decides: CORRUPT, PARTIAL, UNVERIFIED, UNCOMMITTED, WEIGHTS_ONLY; of equal ones the first.
// Files that are missing come after faults of the same weight, so that a finding whose `file` is missing(0)
// has no other fault (merge.h relies on it).
#ifndef DGXRUN_AGENT_CKPT_REVIEW_H_
#define DGXRUN_AGENT_CKPT_REVIEW_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/ckpt/json_scan.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/pickle.h"
#include "agent/ckpt/source.h"
#include "agent/ckpt/tree.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent::ckpt {

// Clocks of the nodes that write one checkpoint to a network folder differ by less.
inline constexpr int64_t kClockSlackNs = int64_t{2'000'000'000};
// A copying program begins the next file within this of the end of the last.
inline constexpr int64_t kCopyGapNs = int64_t{1'000'000'000};
// A pickle or JSON file that is read whole. The largest known, a .metadata of DCP for a million shards, has
// 200 MB.
inline constexpr uint64_t kMaxMetadataBytes = uint64_t{256} << 20;

class Review {
 public:
  // `path`: of the checkpoint in the source. All outlive the review.
  Review(Source& source, std::string path, const Tree& tree, const JudgeOptions& options);

  const Tree& tree() const { return tree_; }
  const JudgeOptions& options() const { return options_; }
  const std::string& path() const { return path_; }
  std::string_view name() const;  // the last part of the path
  // Something beside the checkpoint in the source, not in it: NeMo's marker.
  bool ExistsBeside(std::string_view suffix);

  void SetFormat(std::string_view format) { format_ = std::string(format); }
  void SetStep(int64_t step) { step_ = step; }
  int64_t step() const { return step_; }
  void SetSaveId(std::string_view id) { save_id_ = std::string(id); }
  // No mark says when a save is done: complete only after the quiet time.
  void SetUnmarked() { unmarked_ = true; }

  void Fault(v1::Verdict verdict, std::string_view file, std::string reason);
  void Missing(std::string_view file, uint64_t least_bytes, std::string reason);
  // A file that is sound as far as it goes, and that another node's metadata may name.
  void Sound(std::string_view file);
  bool ok() const { return verdict_ == v1::VERDICT_COMPLETE && missing_.empty(); }

  // What a status of reading or parsing `file` means: cut off is PARTIAL, contradiction CORRUPT, else
  // UNVERIFIED.
  void FaultOf(const absl::Status& status, std::string_view file, std::string_view what = "");

  // The file opened, or nullptr with the fault noted: missing, a link, not readable.
  std::unique_ptr<File> Open(std::string_view file);
  // A small file whole, or nullopt with the fault noted.
  std::optional<std::string> ReadAll(std::string_view file, uint64_t max_bytes = kMaxMetadataBytes);
  // A JSON file whole; false with the fault noted. Not read further once `visit` says so.
  bool CheckJson(std::string_view file, JsonVisitor visit);

  // `then` is written after `first` is finished, in every save. If times say the contrary, the files come
  // from two saves: notes CORRUPT and returns false. Absent files: true.
  // `lag_ns`: `first` may be as much later.
  bool CheckOrder(std::string_view first, std::string_view then, int64_t lag_ns = 0);
  // A pointer beside the checkpoint that says `text` was written after all of the checkpoint's files; CORRUPT
  // if times say the contrary. A pointer that is absent or says something else: nothing.
  void CheckPointerBeside(std::string_view pointer, std::string_view text, int64_t lag_ns);
  // Every JSON file right in a folder is JSON.
  void CheckJsonFiles(std::string_view folder);

  v1::CheckpointFinding Finish();

 private:
  // Whether `first` was written after `then`, as far as times can tell. A folder that was copied without its
  // times has new times in any order: files that are younger than their last change elsewhere are recognised
  // by when they were made.
  bool WrittenAfter(const FileInfo& first, const FileInfo& then);
  bool CopiedInOneGo(const FileInfo& later);

  Source& source_;
  const std::string path_;
  const Tree& tree_;
  const JudgeOptions& options_;
  std::string format_;
  int64_t step_ = -1;
  std::string save_id_;
  bool unmarked_ = false;
  v1::Verdict verdict_ = v1::VERDICT_COMPLETE;
  std::string file_;
  std::string reason_;
  struct Lack {
    std::string file;
    uint64_t bytes;
    std::string reason;
  };
  std::vector<Lack> missing_;
  std::vector<std::string> sound_;
  std::vector<int64_t> mtimes_;  // sorted; made when first wanted
};

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_REVIEW_H_
