// The judge: is this checkpoint complete, and if not, why not?
//
// It reads what lies on the disk and nothing else: no framework, no Python, no unpickling. The format is
// found by signature, in the order of the list in judge.cc. By default only structure is read: the folder's
// names and sizes, the ends of zip files, the headers of safetensors, the metadata that names the shards;
// never tensor data. `deep` reads every byte and checks the CRC-32 of every member of a zip file (where the
// writer stored one).
//
// Verdicts (docs/checkpoints.md):
//   COMPLETE      everything that the format or its metadata names is there, at its full length, and was
//   written
//                 before the mark that commits it.
//   WEIGHTS_ONLY  the same, but no optimizer state: a Trainer's save_only_model.
//   UNCOMMITTED   all data is there, but the last step of the save (a rename, a marker's removal) was not
//   done.
//                 For DCP: rename .metadata.tmp to .metadata.
//   PARTIAL       a file is missing or cut off; or its save says that it is not finished.
//   CORRUPT       a file contradicts itself or another one: two saves in one folder, zeros instead of data, a
//   name
//                 that leads out of the folder.
//   UNVERIFIED    cannot be told: the old torch.save format has no end mark, the format is not known, a file
//   may not
//                 be read, or reading it took more than the budget.
//   WRITING       incomplete as far as can be seen, and something changed within `quiet_time`: a save is
//   going on.
//                 With quiet_time zero (no rank lives) never said.
// Finding.checkpoint.file and reason say which file decided, and why, in one line for a person.
//
// What one node alone cannot tell: where a folder is not shared, Finding.missing and present are what
// MergeFindings (merge.h) joins.
//
// Names that never are checkpoints: hidden ones, *.tmp, *.partial, *.dgxrun-quarantine[.N], tmp-checkpoint-N.
//
// Bounded: see the constants here and in the parsers. A judge never throws, never recurses on what it reads,
// and needs memory for the names of one checkpoint and one metadata file.
#ifndef DGXRUN_AGENT_CKPT_JUDGE_H_
#define DGXRUN_AGENT_CKPT_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/ckpt/source.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::agent::ckpt {

// Names of one folder that a listing reads: 1,000 ranks that save 200 times, a file each. A network folder
// lists some 10,000 entries a second, and a start waits for it.
inline constexpr size_t kMaxListedEntries = 200000;
// Files of one checkpoint: 16,384 ranks with four files each, and some. More: UNVERIFIED.
inline constexpr size_t kMaxFilesOfCheckpoint = 100000;
// Folders within folders of one checkpoint; the deepest known layout has four.
inline constexpr int kMaxDepthOfCheckpoint = 8;
// FileFacts in one finding. More missing ones are cut to this number and one that nothing can cover.
inline constexpr size_t kMaxFactsOfFinding = 20000;
// Added to the name of what was moved aside.
inline constexpr std::string_view kQuarantineSuffix = ".dgxrun-quarantine";

struct JudgeOptions {
  bool deep = false;
  absl::Time now;
  // Zero: no rank lives, nothing is being written.
  absl::Duration quiet_time = absl::ZeroDuration();
  // Of a listing: world sizes that the job may have; empty: not known. Where a format has one file per rank
  // and does not say how many (Trainer's and accelerate's random states), a checkpoint with as many of them
  // as one of these lacks none, although another checkpoint has more: a larger world wrote that one.
  std::vector<uint32_t> world_sizes;
  // Of a listing: findings wanted, newest first; 0: all. What is beyond is not read.
  size_t limit = 0;
  // Of a listing: stop after this many COMPLETE ones (and the rest of the same step); 0: do not.
  size_t stop_after_complete = 0;
  // Ends a judgement of one checkpoint that is not deep (UNVERIFIED).
  uint64_t max_calls = 2'000'000;
  uint64_t max_bytes = uint64_t{4} << 30;
};

// Whether a name in a checkpoint folder may be a checkpoint at all.
bool MayBeCheckpoint(std::string_view name);
// The step that a name holds: "step=400" of Lightning's names, else the last run of digits before the
// extension and before "rank N" and "-0000i-of-0000n" ("step_200.pt" -> 200, "checkpoint-500" -> 500). -1:
// none, or one that does not fit.
int64_t StepOfName(std::string_view name);

// Judges one checkpoint: a file or folder beneath the source's root; "" is the root itself. A path that is
// not there: UNVERIFIED with the reason. The step is taken from the content where the format holds one.
v1::CheckpointFinding Judge(Source& source, std::string_view path, const JudgeOptions& options);

// All checkpoints of the root, judged, newest first: by step, then mtime. Knows folders of checkpoints of
// every format above, files that belong together (one per rank, or -0000i-of-0000n: one finding, whose path
// is the first file's) and a root that is itself the one checkpoint. Symbolic links to a sibling are left
// out, since the sibling is listed; other links are UNVERIFIED. Folders without a signature count only if
// their name holds a number (UNVERIFIED); files without one also if their extension is one that checkpoints
// have. Where a format does not say how many files it should have, checkpoints of the same listing are
// compared: files that an older complete one has, while no other one is without them, are missing. Errors:
// those of listing the root; more than kMaxListedEntries names.
absl::StatusOr<std::vector<v1::CheckpointFinding>> ListCheckpoints(Source& source,
                                                                   const JudgeOptions& options);

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_JUDGE_H_
