// What a rank left to explain its end: the last lines of its stderr, and its error file.
// Both are files of the owner below the log folder; they are opened without following links.
#ifndef DGXRUN_AGENT_RANK_OUTPUT_H_
#define DGXRUN_AGENT_RANK_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

inline constexpr size_t kTailLines = 20;  // as RankReport.stderr_tail says
inline constexpr size_t kTailBytes = 8 * 1024;
inline constexpr size_t kMaxErrorFile = 1 << 20;  // a traceback is some KiB; more is not an error file

// The last lines of `bytes`, oldest first, printable, without line ends; empty lines at the end are dropped.
// A carriage return ends a line too (progress bars). `cut`: `bytes` begins within a line, whose rest is
// dropped unless it is the only one.
std::vector<std::string> LastLines(std::string_view bytes, bool cut);

// Both formats (reference: torch/distributed/elastic/multiprocessing/errors):
//   {"message": {"message": "Type: text", "extraInfo": {...}}}   and   {"message": "text", "timestamp": 1}
// Empty when it is neither.
std::string ErrorMessage(const std::string& json);

// Fills stderr_tail and error_message of a rank that failed, from the files in <log_root>/<folder>. What
// cannot be read leaves the fields as they are. `folder`: "<job>/attempt_<k>". May block as long as the disk
// does.
void ExplainExit(const std::string& log_root, const std::string& folder, v1::RankReport* rank);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_RANK_OUTPUT_H_
