// The last status of a local job, as a file that can also be written when its disk is full: the disk of the
// logs is the one that fills up, and just then the status has something to tell.
//
//   <job>/status.pb        the status, replaced whole at each change
//   <job>/status.reserve   room that was taken at the first write; holds a length and the status while
//                          status.pb cannot be replaced, else the length 0
#ifndef DGXRUN_CLI_STATUS_FILE_H_
#define DGXRUN_CLI_STATUS_FILE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::cli {

inline constexpr char kStatusName[] = "/status.pb";

// `replace` writes a whole file in place of another.
using ReplaceFile = std::function<absl::Status(const std::string& path, const std::string& bytes)>;

absl::Status WriteStatus(const std::string& folder, const v1::JobStatus& status, const ReplaceFile& replace);
// False: there is none.
bool ReadStatus(const std::string& folder, v1::JobStatus* status);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_STATUS_FILE_H_
