#include "cli/attach.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/attached.h"
#include "cli/console.h"
#include "cli/job_finder.h"
#include "cli/render.h"

namespace dgxrun::cli {

absl::StatusOr<int> AttachCommand(const AttachOptions& options, const EnvMap& env, const Paths& paths) {
  const UniqueFd signals = TakeSignals();
  auto finder = JobFinder::Make(options.cluster, env, paths);
  if (!finder.ok()) return finder.status();
  auto job = finder->Find(options.job, /*alive=*/true);
  if (!job.ok()) return job.status();
  const v1::JobStatus& status = job->status;
  if (job->local.has_value() && !HasEnded(status.state())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job ", status.job_id(), " is the dgxrun's that started it on this machine: follow it with ",
        "dgxrun logs -f ", status.job_id(), ", stop it with dgxrun stop ", status.job_id()));
  }
  Console console(STDOUT_FILENO, STDERR_FILENO);
  if (HasEnded(status.state())) {
    for (const std::string& line : RenderSummary(status)) console.Notice(line);
    console.Flush(/*wait=*/true);
    return status.exit_code();
  }
  auto client = finder->ClientOf(*job);
  if (!client.ok()) return client.status();
  AttachedJob::Options attached;
  attached.log_all = options.log_all;
  attached.where = status.cluster();
  return AttachedJob(*std::move(client), std::move(attached), &console, signals.get()).Attach(status);
}

}  // namespace dgxrun::cli
