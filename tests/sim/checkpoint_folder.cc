#include "tests/sim/checkpoint_folder.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace dgxrun::sim {
namespace {

constexpr int64_t kStepsOfASave = 10;

}  // namespace

std::string ResumesFrom(const v1::NodePlan& plan) {
  for (const v1::EnvVar& var : plan.common_env()) {
    if (var.name() == "DGXRUN_RESUME_FROM") return var.value();
  }
  return "";
}

v1::Prepared CheckpointFolders::Answer(const v1::Prepare& prepare) {
  v1::Prepared prepared;
  if (prepare.ckpt_dir().empty()) return prepared;
  Folder& folder = folders_[prepare.job_id()];
  if (prepare.resume().empty()) {
    std::vector<v1::Checkpoint> found;
    for (const auto& [path, saved] : folder.checkpoints) found.push_back(saved.checkpoint);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step() > b.step(); });
    for (const v1::Checkpoint& checkpoint : found)
      *prepared.add_findings()->mutable_checkpoint() = checkpoint;
    return prepared;
  }
  prepared.mutable_checkpoint()->set_path(prepare.resume());
  for (int i = 0; i < prepare.poisoned_size(); ++i) {
    auto it = folder.checkpoints.find(prepare.poisoned(i));
    if (it == folder.checkpoints.end()) continue;
    if (it->second.checkpoint.mtime_unix_ns() > prepare.poisoned_mtime_unix_ns(i)) continue;
    events_.moved_aside(prepare.job_id(), it->first);
    prepared.add_notes(absl::StrCat("moved aside: ", it->first));
    folder.checkpoints.erase(it);
  }
  return prepared;
}

bool CheckpointFolders::IsBad(const std::string& job, const v1::NodePlan& plan) const {
  auto folder = folders_.find(job);
  if (folder == folders_.end()) return false;
  auto saved = folder->second.checkpoints.find(ResumesFrom(plan));
  return saved != folder->second.checkpoints.end() && saved->second.bad;
}

void CheckpointFolders::Save(const std::string& job, const v1::NodePlan& plan) {
  Folder& folder = folders_[job];
  if (folder.format.empty()) folder.format = world_->Chance(50) ? "dcp" : "deepspeed";
  int64_t step = 0;
  if (auto loaded = folder.checkpoints.find(ResumesFrom(plan)); loaded != folder.checkpoints.end())
    step = loaded->second.checkpoint.step();
  for (const auto& [path, saved] : folder.checkpoints) step = std::max(step, saved.checkpoint.step());
  step += kStepsOfASave;
  Saved& saved = folder.checkpoints[absl::StrCat("/ckpt/step_", step)];
  saved.checkpoint.set_path(absl::StrCat("/ckpt/step_", step));
  saved.checkpoint.set_step(step);
  saved.checkpoint.set_mtime_unix_ns(absl::ToUnixNanos(world_->wall()));
  saved.checkpoint.set_format(folder.format);
  saved.checkpoint.set_bytes(1000);
  saved.checkpoint.set_verdict(world_->Chance(85) ? v1::VERDICT_COMPLETE : v1::VERDICT_PARTIAL);
  saved.bad = world_->Chance(25);
  events_.saved(job, saved.checkpoint);
}

}  // namespace dgxrun::sim
