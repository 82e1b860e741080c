// What an attempt loads, judged by what really lies in the folder and by how attempts ended:
//   - never one of which two attempts in a row have failed in the way of a bad one, while there is another
//   - never one below the newest complete one of which that is not so
//   - the last complete one is never moved aside
//   - an attempt has as many nodes as the job asks for, or fewer down to its least; never fewer of a format
//     that only a world of the same size can load
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checkpoint_folder.h"
#include "tests/sim/oracle.h"

namespace dgxrun::sim {
namespace {

class Checkpoints : public Oracle {
 public:
  const char* name() const override { return "checkpoints"; }

  void OnSaved(const std::string& job, const v1::Checkpoint& checkpoint) override {
    jobs_[job].there[checkpoint.path()] = checkpoint;
  }

  void OnMovedAside(const std::string& job, const std::string& path) override {
    std::map<std::string, v1::Checkpoint>& there = jobs_[job].there;
    const bool was_complete = there[path].verdict() == v1::VERDICT_COMPLETE;
    there.erase(path);
    bool another = false;
    for (const auto& [other, checkpoint] : there) another |= checkpoint.verdict() == v1::VERDICT_COMPLETE;
    if (was_complete && !another)
      Complain(absl::StrCat(job, ": ", path, ", the last complete one, was moved aside"));
  }

  void OnMessage(const std::string&, const v1::ControllerMsg& message, const Disk& disk) override {
    if (!message.has_launch()) return;
    Read(disk);
    const v1::Launch& launch = message.launch();
    Job& job = jobs_[launch.job_id()];
    if (job.spec.ckpt_dir().empty() || !job.judged.insert(launch.attempt()).second) return;
    const std::string path = ResumesFrom(launch.plan());
    job.loaded[launch.attempt()] = IdentityOf(job, path);
    CheckLoaded(launch, job, path);
    CheckNodes(launch, job, path);
  }

 private:
  struct Job {
    v1::JobSpec spec;
    std::map<std::string, v1::Checkpoint> there;  // by path
    std::map<uint32_t, std::string> loaded;       // by attempt: identity of what it was given
    std::map<uint32_t, int> nodes;                // by attempt
    std::set<uint32_t> failed;                    // attempts with a verdict
    std::set<uint32_t> of_bad;                    // of these, those whose verdict is that of a bad one
    std::set<uint32_t> judged;
  };

  // Facts are kept for good: in peers mode the disk may be lost, and begins anew with what a capsule tells.
  void Read(const Disk& disk) {
    if (disk.size() < read_) read_ = 0;
    for (; read_ < disk.size(); ++read_) {
      const v1::Record& record = disk[read_];
      if (record.has_job_submitted()) {
        jobs_[record.job_submitted().job_id()].spec = record.job_submitted().spec();
      } else if (record.has_job_adopted()) {
        jobs_[record.job_adopted().job_id()].spec = record.job_adopted().spec();
      } else if (record.has_attempt_placed()) {
        const v1::AttemptPlaced& placed = record.attempt_placed();
        jobs_[placed.job_id()].nodes[placed.attempt()] = placed.nodes_size();
      } else if (record.has_attempt_ended()) {
        const v1::Why& why = record.attempt_ended().why();
        const bool bad = why.cause() == v1::CAUSE_EXIT_CODE && why.stderr_tail_size() > 0 &&
                         why.stderr_tail(why.stderr_tail_size() - 1) == kBadTensor;
        Job& job = jobs_[record.attempt_ended().job_id()];
        const uint32_t attempt = record.attempt_ended().attempt();
        if (why.cause() != v1::CAUSE_UNSPECIFIED) job.failed.insert(attempt);
        job.of_bad.erase(attempt);  // what a lost disk said of it is nobody's knowledge any more
        if (bad) job.of_bad.insert(attempt);
      }
    }
  }

  // A save under the name of one that was moved aside is another one.
  static std::string IdentityOf(const Job& job, const std::string& path) {
    auto there = job.there.find(path);
    return there == job.there.end() ? "" : absl::StrCat(path, "@", there->second.mtime_unix_ns());
  }

  // Two failures in a row are those of attempts that have loaded it.
  static bool IsPoison(const Job& job, uint32_t before, const std::string& path) {
    const std::string identity = IdentityOf(job, path);
    bool last = false;
    for (const uint32_t attempt : job.failed) {
      if (attempt >= before) break;
      auto loaded = job.loaded.find(attempt);
      const bool of_it =
          loaded != job.loaded.end() && loaded->second == identity && job.of_bad.count(attempt) > 0;
      if (of_it && last) return true;
      last = of_it;
    }
    return false;
  }

  void CheckLoaded(const v1::Launch& launch, const Job& job, const std::string& path) {
    const std::string where = absl::StrCat(launch.job_id(), ".", launch.attempt());
    const v1::Checkpoint* best = nullptr;
    for (const auto& [other, checkpoint] : job.there) {
      if (checkpoint.verdict() != v1::VERDICT_COMPLETE) continue;
      if (IsPoison(job, launch.attempt(), other)) continue;
      if (best == nullptr || checkpoint.step() > best->step()) best = &checkpoint;
    }
    if (path.empty()) {
      if (best != nullptr)
        Complain(absl::StrCat(where, " begins anew although ", best->path(), " is complete"));
      return;
    }
    auto loaded = job.there.find(path);
    if (loaded == job.there.end())
      return Complain(absl::StrCat(where, " loads ", path, ", which is not there"));
    if (loaded->second.verdict() != v1::VERDICT_COMPLETE)
      Complain(absl::StrCat(where, " loads ", path, ", which is not complete"));
    if (IsPoison(job, launch.attempt(), path) && best != nullptr) {
      Complain(absl::StrCat(where, " loads ", path, " again, of which two attempts have failed"));
    }
    if (best != nullptr && loaded->second.step() < best->step()) {
      Complain(absl::StrCat(where, " loads ", path, " although ", best->path(), " is complete"));
    }
  }

  void CheckNodes(const v1::Launch& launch, const Job& job, const std::string& path) {
    auto placed = job.nodes.find(launch.attempt());
    if (placed == job.nodes.end()) return;  // adopted: launched before
    const int most = static_cast<int>(job.spec.nodes());
    const int least = job.spec.min_nodes() > 0 ? static_cast<int>(job.spec.min_nodes()) : most;
    const std::string what = absl::StrCat(launch.job_id(), ".", launch.attempt(), " has ", placed->second,
                                          " nodes of ", least, " to ", most);
    if (placed->second < least || placed->second > most) return Complain(what);
    auto loaded = job.there.find(path);
    const bool fixed = loaded != job.there.end() && loaded->second.format() == "deepspeed";
    if (placed->second < most && fixed) Complain(absl::StrCat(what, " and loads what only all can load"));
  }

  std::map<std::string, Job> jobs_;
  size_t read_ = 0;
};

}  // namespace

std::unique_ptr<Oracle> MakeCheckpointsOracle() { return std::make_unique<Checkpoints>(); }

}  // namespace dgxrun::sim
