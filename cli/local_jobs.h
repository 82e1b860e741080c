// Local jobs of this user, running and ended: the folder <state>/local.
//
//   <job>/status.pb    the last JobStatus; written by the dgxrun process of the job at each change
//                      (status_file.h: on a full disk too)
//   <job>/control      path of that process's control socket, one line
//   <job>/attempt_<k>/ output of the ranks
//
// Of a job in peers mode each process on this machine (and on others, where the home is shared) writes its
// own <job>/status.<node>.pb and control.<node>; the latter has a second line where the controller is
// elsewhere: its address.
//
// A status that has not ended, while nobody listens on the socket, means that the dgxrun process was
// killed: such a job is told as failed, cause client_lost.
#ifndef DGXRUN_CLI_LOCAL_JOBS_H_
#define DGXRUN_CLI_LOCAL_JOBS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::cli {

// Enough to look back on a week of trying; logs of more fill a home folder.
inline constexpr size_t kKeptLocalJobs = 100;

struct LocalJob {
  v1::JobStatus status;
  std::string folder;          // <state>/local/<job>
  std::string control_socket;  // empty: it has ended
  std::string endpoint;  // "host:port" of the controller where nobody answers on the socket (peers mode)
};

class LocalJobs {
 public:
  explicit LocalJobs(std::string folder) : folder_(std::move(folder)) {}

  // Makes the job's folder if it is missing. Called by the job's own process.
  absl::Status Write(const v1::JobStatus& status, const std::string& control_socket) const;

  // As Write, for the process of this node of a job in peers mode. `endpoint`: empty where the controller
  // answers on the socket.
  absl::Status WritePeer(const v1::JobStatus& status, const std::string& node, const std::string& socket,
                         const std::string& endpoint) const;

  // Newest first. What cannot be read is left out: another process may be removing it.
  std::vector<LocalJob> List() const;
  // By id, else by name (the newest of that name); empty: the newest. NotFound names it.
  absl::StatusOr<LocalJob> Find(const std::string& job) const;

  // Removes the oldest ended jobs above `keep`, once there are a fifth more.
  void Prune(size_t keep) const;

 private:
  std::string folder_;
};

// Whether somebody listens on this unix socket.
bool SomebodyListens(const std::string& socket_path);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LOCAL_JOBS_H_
