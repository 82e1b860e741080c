// Facts as text for people and as JSON for programs. Pure; golden-tested. The names are stable and
// documented in docs/states.md.
#ifndef DGXRUN_CLI_RENDER_H_
#define DGXRUN_CLI_RENDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "dgxrun/v1/job.pb.h"
#include "dgxrun/v1/node.pb.h"

namespace dgxrun::cli {

// Enum values as documented: lower case, without their prefix ("running", "exit_code").
std::string StateName(v1::JobState state);
std::string StateName(v1::NodeState state);
std::string StateName(v1::RankState state);
std::string CauseName(v1::Cause cause);
std::string AlarmName(v1::AlarmKind kind);
bool HasEnded(v1::JobState state);

// "2 nodes × 8 = 16 ranks on dev"
std::string Layout(uint32_t nodes, uint32_t ranks_per_node, const std::string& where);
// "rank 1 on node1 was killed by SIGKILL"; one line.
std::string WhySentence(const v1::Why& why);
// "4.2 s", "3 min 5 s", "2 h 10 min"
std::string HumanDuration(absl::Duration duration);
// One line without control characters, so that what a rank wrote cannot steer the terminal.
std::string Printable(const std::string& line);

std::string RenderStatus(const v1::JobStatus& status, absl::Time now);
std::string RenderJobList(const std::vector<v1::JobStatus>& jobs, absl::Time now);
std::string RenderNodes(const std::vector<v1::NodeInfo>& nodes);
std::string RenderWhy(const v1::JobStatus& status, absl::Time now);
// "attempt 0 failed: rank 1 on node1 was killed by SIGKILL; restart 1 of 3 from ckpt/step_20.pt"
std::string RenderRestart(const v1::Why& why, const v1::JobStatus& status);
// What a failure now would lose: since the newest complete checkpoint, or since the attempt began. `time` is
// that of the steps at the rate seen, where the script tells them, else what has passed.
struct LostWork {
  std::optional<int64_t> steps;
  absl::Duration time;
};
LostWork LostIfFailedNow(const v1::JobStatus& status, absl::Time now);
// How far the attempt has come, and what a failure now would cost; "" when nothing is known.
std::string RenderProgress(const v1::JobStatus& status, absl::Time now);
// "node1: no new complete checkpoint for 12 min; ..."; one line.
std::string RenderAlarm(const v1::Alarm& alarm);
// What a client that attaches to a job says first.
std::string RenderAttached(const v1::JobStatus& status, const std::string& where, absl::Time now);
// "node2: 12.3 MB of output could not be written: /logs/...: No space left on device; ..."; empty: all is in
// the files. What is to be done is added while it can still help.
std::string RenderLost(const v1::JobNodeStatus& node, bool job_ended);
// "512 bytes", "12.3 kB", "4.0 GB"
std::string HumanBytes(uint64_t bytes);
// What a launch prints at its end; each without the "dgxrun: " prefix.
std::vector<std::string> RenderSummary(const v1::JobStatus& status);

// JSON texts end with a newline.
std::string StatusJson(const v1::JobStatus& status);
std::string JobListJson(const std::vector<v1::JobStatus>& jobs);
std::string NodesJson(const std::vector<v1::NodeInfo>& nodes);
std::string WhyJson(const v1::JobStatus& status);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_RENDER_H_
