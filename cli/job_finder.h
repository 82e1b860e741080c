// Finds a job by id or name wherever it may be: see queries.h.
#ifndef DGXRUN_CLI_JOB_FINDER_H_
#define DGXRUN_CLI_JOB_FINDER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/local_jobs.h"
#include "cli/paths.h"

namespace dgxrun::cli {

struct FoundJob {
  v1::JobStatus status;
  std::optional<LocalJob> local;  // else it is the cluster's
};

class JobFinder {
 public:
  // Reads no more than which cluster is set. Errors: a wrong cluster file, or --cluster names none.
  static absl::StatusOr<JobFinder> Make(const std::string& asked_cluster, const EnvMap& env,
                                        const Paths& paths);

  // NotFound names the job. `alive`: where no job is named, the newest that has not ended goes first.
  absl::StatusOr<FoundJob> Find(const std::string& job, bool alive);
  // All, newest first.
  absl::StatusOr<std::vector<v1::JobStatus>> List();
  // To the controller of this job; an error for a local job that has ended.
  absl::StatusOr<Client> ClientOf(const FoundJob& job);
  // Of the cluster that is set, if there is one.
  std::optional<absl::StatusOr<Client>> Cluster();

 private:
  JobFinder(const EnvMap& env, const Paths& paths) : env_(env), paths_(paths), local_(paths.local_dir()) {}

  // Jobs of the cluster that match; an unreachable cluster that was not asked for is a remark only.
  absl::StatusOr<std::vector<v1::JobStatus>> ClusterJobs(const std::string& job, bool all);

  EnvMap env_;  // with paths_: where the peers' key is
  Paths paths_;
  LocalJobs local_;
  bool look_local_ = true;
  std::optional<ClusterFile> cluster_;
  bool asked_for_ = false;
  absl::Status unreachable_;  // of a cluster that was not asked for
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_JOB_FINDER_H_
