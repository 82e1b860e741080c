#include "controller/core/checkpoints.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/reshard.h"
#include "controller/core/progress.h"

namespace dgxrun::core {
namespace {

namespace ckpt = agent::ckpt;

// Lines about single checkpoints; a person reads some.
constexpr size_t kMaxLines = 4;

bool Same(const v1::Checkpoint& a, const v1::Checkpoint& b) {
  // Training may have written a new one of the same name since.
  return a.path() == b.path() && a.mtime_unix_ns() == b.mtime_unix_ns();
}

bool IsPoisoned(const Job& job, const v1::Checkpoint& checkpoint) {
  return std::any_of(job.poisoned.begin(), job.poisoned.end(),
                     [&](const v1::Checkpoint& poisoned) { return Same(poisoned, checkpoint); });
}

// Frameworks that take the newest folder by its name and look no further.
bool IsPickedByName(const v1::Checkpoint& checkpoint) {
  static const std::set<std::string_view> kFormats = {
      ckpt::kTrainer,           ckpt::kTrainerDeepSpeed, ckpt::kTrainerFsdp,
      ckpt::kAccelerate,        ckpt::kAccelerateFsdp,   ckpt::kAccelerateDeepSpeed,
      ckpt::kLightning,         ckpt::kLightningSharded, ckpt::kDcp,
      ckpt::kLightningDeepSpeed};
  return kFormats.count(checkpoint.format()) > 0;
}

std::vector<v1::CheckpointFinding> FindingsOf(const AttemptNode& share) {
  std::vector<v1::CheckpointFinding> findings = share.findings;
  if (findings.empty() && share.checkpoint) {  // an agent of wire 1.0, which looks at names only
    v1::CheckpointFinding& finding = findings.emplace_back();
    *finding.mutable_checkpoint() = *share.checkpoint;
    finding.mutable_checkpoint()->set_verdict(v1::VERDICT_UNVERIFIED);
  }
  return findings;
}

std::vector<v1::Checkpoint> Merged(const Attempt& attempt) {
  std::vector<std::vector<v1::CheckpointFinding>> per_node;
  for (const auto& share : attempt.nodes) per_node.push_back(FindingsOf(*share));
  std::vector<v1::Checkpoint> all;
  for (const v1::CheckpointFinding& finding : ckpt::MergeFindings(per_node)) {
    all.push_back(finding.checkpoint());
  }
  return all;
}

// What is missing may lie on a node that is not of this attempt: only what every node sees alike is bad
// beyond doubt. A node that found nothing at all shares no folder with the others.
bool SeenByAll(const Attempt& attempt, const v1::Checkpoint& checkpoint) {
  return std::all_of(attempt.nodes.begin(), attempt.nodes.end(), [&](const auto& share) {
    return std::any_of(share->findings.begin(), share->findings.end(),
                       [&](const auto& finding) { return Same(finding.checkpoint(), checkpoint); });
  });
}

std::string Described(const v1::Checkpoint& checkpoint) {
  std::string text = absl::StrCat(ckpt::VerdictName(checkpoint.verdict()));
  if (!checkpoint.file().empty()) absl::StrAppend(&text, ", ", checkpoint.file());
  if (!checkpoint.reason().empty()) absl::StrAppend(&text, ": ", checkpoint.reason());
  return text;
}

bool IsSecondBest(v1::Verdict verdict) {
  return verdict == v1::VERDICT_UNVERIFIED || verdict == v1::VERDICT_WEIGHTS_ONLY;
}

template <class Accept>
const v1::Checkpoint* First(const Job& job, const std::vector<v1::Checkpoint>& all, Accept accept) {
  for (const v1::Checkpoint& checkpoint : all) {
    if (accept(checkpoint.verdict()) && !IsPoisoned(job, checkpoint)) return &checkpoint;
  }
  return nullptr;
}

const v1::Checkpoint* Chosen(const Job& job, const std::vector<v1::Checkpoint>& all) {
  if (const auto* best = First(job, all, [](v1::Verdict v) { return v == v1::VERDICT_COMPLETE; }))
    return best;
  // The last complete one is given again, whatever became of those that loaded it.
  for (const v1::Checkpoint& checkpoint : all) {
    if (checkpoint.verdict() == v1::VERDICT_COMPLETE) return &checkpoint;
  }
  return First(job, all, IsSecondBest);
}

void NotePassedOver(const v1::Checkpoint& checkpoint, bool poisoned, std::vector<std::string>* lines) {
  if (lines->size() > kMaxLines) return;
  if (lines->size() == kMaxLines) {
    lines->push_back("and more; dgxrun ckpt ls tells all");
    return;
  }
  lines->push_back(absl::StrCat("checkpoint ", checkpoint.path(), " is passed over: ",
                                poisoned ? "attempts failed soon after loading it" : Described(checkpoint)));
}

}  // namespace

CheckpointChoice ChooseCheckpoint(const Job& job, const Attempt& attempt) {
  CheckpointChoice choice;
  const std::vector<v1::Checkpoint> all = Merged(attempt);
  const v1::Checkpoint* chosen = Chosen(job, all);
  if (chosen != nullptr) {
    choice.checkpoint = *chosen;
    if (IsPoisoned(job, *chosen)) {
      choice.lines.push_back(absl::StrCat("attempts failed soon after loading ", chosen->path(),
                                          "; it is the last complete one, so it is loaded again"));
    }
    // Of a wire 1.0 agent nothing is known, and its user was never told otherwise.
    if (chosen->verdict() != v1::VERDICT_COMPLETE && !chosen->reason().empty()) {
      choice.lines.push_back(absl::StrCat("no complete checkpoint: resuming from ", chosen->path(), " (",
                                          Described(*chosen), ")"));
    }
  }
  for (const v1::Checkpoint& checkpoint : all) {
    if (&checkpoint == chosen) break;  // what is older is nobody's concern
    const bool poisoned = IsPoisoned(job, checkpoint);
    const bool bad =
        checkpoint.verdict() == v1::VERDICT_PARTIAL || checkpoint.verdict() == v1::VERDICT_CORRUPT;
    NotePassedOver(checkpoint, poisoned, &choice.lines);
    // With nothing to load in its place, a framework that fails loudly is better than one that begins anew.
    if (chosen == nullptr) continue;
    if (poisoned || (bad && IsPickedByName(checkpoint) && SeenByAll(attempt, checkpoint))) {
      choice.aside.push_back(checkpoint);
    }
  }
  return choice;
}

std::optional<std::string> WhyNotSmaller(const Job& job, const Attempt& attempt) {
  if (attempt.nodes.size() >= job.spec.nodes()) return std::nullopt;
  const std::optional<v1::Checkpoint> choice = ChooseCheckpoint(job, attempt).checkpoint;
  if (!choice) return std::nullopt;
  const ckpt::ReshardAnswer answer = ckpt::CanLoadAtOtherWorldSize(choice->format());
  if (answer.answer != ckpt::Reshard::kNo) return std::nullopt;
  return absl::StrCat("fewer cannot load ", choice->path(), ": ", answer.reason);
}

bool LiesWholeOnOneNode(const Attempt& attempt, const AttemptProgress* progress,
                        const v1::Checkpoint& checkpoint) {
  const auto whole = [&](const v1::CheckpointFinding& finding) {
    return finding.checkpoint().path() == checkpoint.path() &&
           finding.checkpoint().verdict() != v1::VERDICT_PARTIAL;
  };
  for (const auto& share : attempt.nodes) {
    if (share->findings.empty() && share->checkpoint) return true;  // an agent of wire 1.0 does not say
    if (std::any_of(share->findings.begin(), share->findings.end(), whole)) return true;
  }
  if (progress == nullptr) return false;
  return std::any_of(progress->nodes.begin(), progress->nodes.end(), [&](const auto& node) {
    auto seen = node.second.seen.find(checkpoint.path());
    return seen != node.second.seen.end() && whole(seen->second);
  });
}

bool HasSecondRound(const AttemptNode& share) { return !share.findings.empty() || !share.notes.empty(); }

bool AllFound(const Attempt& attempt) {
  return std::none_of(attempt.nodes.begin(), attempt.nodes.end(),
                      [](const auto& share) { return share->phase == AttemptNode::Phase::kPlaced; });
}

bool IsPrepared(const Attempt& attempt) {
  return std::all_of(attempt.nodes.begin(), attempt.nodes.end(), [](const auto& share) {
    return share->phase ==
           (HasSecondRound(*share) ? AttemptNode::Phase::kReady : AttemptNode::Phase::kPrepared);
  });
}

bool AnswersSecondRound(const v1::Prepared& prepared, const CheckpointChoice& choice) {
  const std::string wanted = choice.checkpoint ? choice.checkpoint->path() : kResumeNothing;
  return prepared.findings_size() == 0 && prepared.checkpoint().path() == wanted;
}

namespace {

// What a checkpoint can do to a program that loads it.
bool MayComeOfLoading(v1::Cause cause) {
  return cause == v1::CAUSE_EXIT_CODE || cause == v1::CAUSE_SIGNAL || cause == v1::CAUSE_HANG;
}

// "RuntimeError: step 120 at 0x7f33" and "RuntimeError: step 140 at 0x7fa1" are of one class.
std::string LineClass(const v1::Why& why) {
  std::string text;
  if (why.stderr_tail_size() == 0) return text;
  const std::string& line = why.stderr_tail(why.stderr_tail_size() - 1);
  for (size_t i = 0; i < line.size(); ++i) {
    if (!absl::ascii_isdigit(line[i])) {
      text += line[i];
      continue;
    }
    while (i + 1 < line.size() && absl::ascii_isxdigit(line[i + 1])) ++i;
    if (i + 1 < line.size() && line[i + 1] == 'x') {
      ++i;
      while (i + 1 < line.size() && absl::ascii_isxdigit(line[i + 1])) ++i;
    }
    text += '#';
  }
  return text;
}

}  // namespace

bool SameRoot(const v1::Why& a, const v1::Why& b) {
  return MayComeOfLoading(a.cause()) && a.cause() == b.cause() && a.exit().code() == b.exit().code() &&
         a.exit().signal() == b.exit().signal() && LineClass(a) == LineClass(b);
}

std::optional<Poison> PoisonAfter(const Job& job, const Attempt& attempt, const v1::Why& why, absl::Time now,
                                  const std::optional<v1::Checkpoint>& newest) {
  if (!attempt.launched || !attempt.checkpoint || !job.loaded_before) return std::nullopt;
  const v1::Checkpoint& loaded = *attempt.checkpoint;
  if (!Same(loaded, job.loaded_before->checkpoint) || !SameRoot(job.why, why)) return std::nullopt;
  if (job.loaded_before->lived > kSoonAfterLoad || now - attempt.launched_at > kSoonAfterLoad)
    return std::nullopt;
  if (newest && ckpt::NewerCheckpoint(*newest, loaded)) return std::nullopt;
  if (IsPoisoned(job, loaded)) return std::nullopt;
  Poison poison;
  poison.checkpoint = loaded;
  poison.reason = "two attempts failed in the same way soon after loading it";
  Job without = job;
  without.poisoned.push_back(loaded);
  const std::vector<v1::Checkpoint> all = Merged(attempt);
  const v1::Checkpoint* next = Chosen(without, all);
  // Of an attempt that was adopted it is not known what else was found; the next one's nodes will tell.
  poison.last = !all.empty() && (next == nullptr || Same(*next, loaded));
  return poison;
}

}  // namespace dgxrun::core
