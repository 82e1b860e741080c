// Environments of jobs, one file each: <folder>/<job id>, mode 0600, in a folder of mode 0700. The only place
// where the controller keeps values of environment variables. A file exists from before its job is in the
// log until the job has ended; files of no living job are removed at the start.
#ifndef DGXRUN_CONTROLLER_ENVIRONMENT_STORE_H_
#define DGXRUN_CONTROLLER_ENVIRONMENT_STORE_H_

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/ids.h"

namespace dgxrun {

class EnvironmentStore {
 public:
  EnvironmentStore(std::string folder, bool durable) : folder_(std::move(folder)), durable_(durable) {}

  absl::Status MakeFolder() const;
  // By write-then-rename; flushed when durable. Replaces what is there.
  absl::Status Write(const JobId& job, const std::string& bytes) const;
  absl::StatusOr<std::string> Read(const JobId& job) const;
  void Delete(const JobId& job) const;  // a missing file is fine
  void DeleteAllBut(const std::set<JobId>& living) const;

 private:
  std::string Path(const JobId& job) const { return folder_ + "/" + job.str(); }

  std::string folder_;
  bool durable_;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_ENVIRONMENT_STORE_H_
