// One line in a file for each message that passes: "<method> request|reply <kind> <bytes>". The kind is the
// field that is set in the message's oneof `body`, and in that one's, if it has any ("report.started"); else
// "-". Any thread.
#ifndef DGXRUN_TESTS_CONTRACT_WIRE_LOG_H_
#define DGXRUN_TESTS_CONTRACT_WIRE_LOG_H_

#include <stdio.h>

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"

namespace dgxrun {

class WireLog {
 public:
  static absl::StatusOr<std::unique_ptr<WireLog>> Open(const std::string& path);
  ~WireLog() { fclose(file_); }

  // `method`: "/dgxrun.v1.AgentLink/Connect".
  void Note(const std::string& method, bool request, const std::string& bytes);

 private:
  explicit WireLog(FILE* file) : file_(file) {}

  std::mutex mutex_;
  FILE* const file_;
};

}  // namespace dgxrun

#endif  // DGXRUN_TESTS_CONTRACT_WIRE_LOG_H_
