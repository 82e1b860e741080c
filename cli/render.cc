#include "cli/render.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/launch_command.h"

namespace dgxrun::cli {
namespace {

constexpr size_t kRanksInFull = 32;     // of a node in `status`; more are counted by state
constexpr size_t kLogFoldersShown = 4;  // in a summary
constexpr size_t kCommandWidth = 200;   // of the command line in `status`

// "JOB_STATE_RUNNING" -> "running". A value of a newer peer has no name here.
std::string Lower(const std::string& name, const std::string& prefix) {
  if (!absl::StartsWith(name, prefix)) return "unknown";
  std::string text = name.substr(prefix.size());
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string Plural(uint64_t n, const std::string& word) {
  return absl::StrCat(n, " ", word, n == 1 ? "" : "s");
}

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrFormat("%-11s%s\n", name, value);
}

std::string RankText(const v1::RankStatus& rank) {
  std::string text = absl::StrCat("rank ", rank.rank(), " ", StateName(rank.state()));
  if (rank.state() == v1::RANK_STATE_EXITED) {
    text = rank.exit().signal() != 0
               ? absl::StrCat("rank ", rank.rank(), " killed by signal ", rank.exit().signal())
               : absl::StrCat("rank ", rank.rank(), " exited ", rank.exit().code());
  }
  if (rank.pid() > 0) absl::StrAppend(&text, " (pid ", rank.pid(), ")");
  return text;
}

std::string NodeText(const v1::JobNodeStatus& node) {
  std::string text = absl::StrFormat("  %-10s %-7s ", node.name(), StateName(node.state()));
  if (static_cast<size_t>(node.ranks_size()) <= kRanksInFull) {
    std::vector<std::string> ranks;
    for (const v1::RankStatus& rank : node.ranks()) ranks.push_back(RankText(rank));
    absl::StrAppend(&text, absl::StrJoin(ranks, ", "));
  } else {
    std::map<std::string, int> counts;
    for (const v1::RankStatus& rank : node.ranks()) ++counts[StateName(rank.state())];
    std::vector<std::string> parts;
    for (const auto& [state, count] : counts) parts.push_back(absl::StrCat(count, " ", state));
    absl::StrAppend(&text, absl::StrJoin(parts, ", "));
  }
  return text + "\n";
}

std::string CommandText(const v1::JobStatus& status) {
  const std::vector<std::string> words(status.argv().begin(), status.argv().end());
  std::string text = Printable(absl::StrJoin(RedactWords(words), " "));
  if (text.size() > kCommandWidth) text = text.substr(0, kCommandWidth) + "...";
  return text;
}

std::string CheckpointText(const v1::Checkpoint& checkpoint) {
  if (checkpoint.step() < 0) return checkpoint.path();
  return absl::StrCat(checkpoint.path(), " (step ", checkpoint.step(), ")");
}

std::string Times(const v1::JobStatus& status, absl::Time now) {
  const absl::Time submitted = absl::FromUnixNanos(status.submitted_unix_ns());
  if (status.ended_unix_ns() != 0) {
    const absl::Time ended = absl::FromUnixNanos(status.ended_unix_ns());
    return absl::StrCat("ended ", HumanDuration(now - ended), " ago, after ",
                        HumanDuration(ended - submitted));
  }
  return absl::StrCat("submitted ", HumanDuration(now - submitted), " ago");
}

uint64_t RanksOf(const v1::JobStatus& status) {
  return static_cast<uint64_t>(status.nodes_wanted()) * status.ranks_per_node();
}

// Of the current (or last) attempt, one line per node.
std::vector<std::string> LostLines(const v1::JobStatus& status) {
  std::vector<std::string> lines;
  for (const v1::JobNodeStatus& node : status.nodes()) {
    if (node.lost_output_bytes() > 0) lines.push_back(RenderLost(node, HasEnded(status.state())));
  }
  return lines;
}

// Of all attempts: what was odd once may explain what came later.
std::string AlarmRows(const v1::JobStatus& status) {
  std::string text;
  for (const v1::Alarm& alarm : status.alarms()) {
    absl::StrAppend(&text, Row("alarm", absl::StrCat("attempt ", alarm.attempt(), ": ", RenderAlarm(alarm))));
  }
  return text;
}

std::string Where(const v1::JobStatus& status) {
  return status.cluster() == "local" || status.cluster().empty() ? "this machine" : status.cluster();
}

}  // namespace

std::string StateName(v1::JobState state) { return Lower(v1::JobState_Name(state), "JOB_STATE_"); }
std::string StateName(v1::NodeState state) { return Lower(v1::NodeState_Name(state), "NODE_STATE_"); }
std::string StateName(v1::RankState state) { return Lower(v1::RankState_Name(state), "RANK_STATE_"); }
std::string AlarmName(v1::AlarmKind kind) { return Lower(v1::AlarmKind_Name(kind), "ALARM_KIND_"); }
std::string CauseName(v1::Cause cause) { return Lower(v1::Cause_Name(cause), "CAUSE_"); }

bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_STOPPED;
}

std::string Layout(uint32_t nodes, uint32_t ranks_per_node, const std::string& where) {
  if (ranks_per_node == 0) return absl::StrCat(Plural(nodes, "node"), " × all GPUs on ", where);
  const uint64_t ranks = static_cast<uint64_t>(nodes) * ranks_per_node;
  return absl::StrCat(Plural(nodes, "node"), " × ", ranks_per_node, " = ", Plural(ranks, "rank"), " on ",
                      where);
}

std::string Printable(const std::string& line) {
  std::string text;
  for (const char c : line) {
    const unsigned char u = static_cast<unsigned char>(c);
    text += (u < 0x20 && c != '\t') || u == 0x7f ? '?' : c;
  }
  return text;
}

std::string HumanDuration(absl::Duration duration) {
  if (duration < absl::ZeroDuration()) duration = absl::ZeroDuration();
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds < 60) return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
  if (seconds < 3600) return absl::StrFormat("%d min %d s", seconds / 60, seconds % 60);
  if (seconds < 48 * 3600) return absl::StrFormat("%d h %d min", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%d days", seconds / 86400);
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return Plural(bytes, "byte");
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string RenderAlarm(const v1::Alarm& alarm) {
  return Printable(alarm.node().empty() ? alarm.text() : absl::StrCat(alarm.node(), ": ", alarm.text()));
}

namespace {

// What would be done a second time after a failure now, and what the restart itself takes.
std::string CostText(const v1::JobStatus& status, absl::Time now) {
  const LostWork lost = LostIfFailedNow(status, now);
  std::string text = "a failure now costs ";
  if (lost.steps) {
    absl::StrAppend(&text, *lost.steps, *lost.steps == 1 ? " step (" : " steps (", HumanDuration(lost.time),
                    " of work)");
  } else {
    absl::StrAppend(&text, HumanDuration(lost.time), " of work");
  }
  const double restart = status.progress().restart_s();
  return absl::StrCat(text, restart > 0 ? absl::StrCat(" and a restart of ",
                                                       HumanDuration(absl::Seconds(restart)), ", as usual")
                                        : " and a restart (none yet shows how long one takes)");
}

}  // namespace

LostWork LostIfFailedNow(const v1::JobStatus& status, absl::Time now) {
  const v1::Progress& progress = status.progress();
  LostWork lost;
  lost.time = status.started_unix_ns() != 0 ? now - absl::FromUnixNanos(status.started_unix_ns())
                                            : absl::ZeroDuration();
  if (!progress.has_newest()) return lost;
  const absl::Duration age = now - absl::FromUnixNanos(progress.newest().mtime_unix_ns());
  // An attempt that began after that save has lost no more than it has run.
  lost.time = status.started_unix_ns() != 0 ? std::min(lost.time, age) : age;
  const bool counted = progress.has_step() && progress.from_script() && progress.newest().step() >= 0 &&
                       progress.step() >= progress.newest().step();
  if (!counted) return lost;
  lost.steps = progress.step() - progress.newest().step();
  if (progress.steps_per_second() > 0) {
    lost.time = absl::Seconds(static_cast<double>(*lost.steps) / progress.steps_per_second());
  }
  return lost;
}

std::string RenderProgress(const v1::JobStatus& status, absl::Time now) {
  const v1::Progress& progress = status.progress();
  std::vector<std::string> parts;
  if (progress.has_step() && progress.from_script()) {
    parts.push_back(absl::StrCat("step ", progress.step()));
    if (progress.steps_per_second() > 0) {
      parts.back() += absl::StrFormat(" (%.3g steps/s)", progress.steps_per_second());
    }
  }
  if (progress.has_newest()) {
    const v1::Checkpoint& newest = progress.newest();
    const std::string age = HumanDuration(now - absl::FromUnixNanos(newest.mtime_unix_ns()));
    std::string text = absl::StrCat("newest complete checkpoint ", CheckpointText(newest), ", ", age, " old");
    if (progress.has_step() && progress.from_script() && newest.step() >= 0 &&
        progress.step() >= newest.step()) {
      absl::StrAppend(&text, ", ", progress.step() - newest.step(), " steps ago");
    }
    parts.push_back(std::move(text));
    if (!HasEnded(status.state())) parts.push_back(CostText(status, now));
  } else if (status.state() == v1::JOB_STATE_RUNNING && status.started_unix_ns() != 0 &&
             status.has_progress()) {
    parts.push_back(absl::StrCat("no complete checkpoint: ", CostText(status, now)));
  }
  return Printable(absl::StrJoin(parts, "; "));
}

std::string RenderAttached(const v1::JobStatus& status, const std::string& where, absl::Time now) {
  std::string text =
      absl::StrCat(Layout(status.nodes_wanted(), status.ranks_per_node(), where), " (job ", status.job_id(),
                   "), ", StateName(status.state()), ", attempt ", status.attempt());
  if (status.started_unix_ns() != 0) {
    absl::StrAppend(&text, " for ", HumanDuration(now - absl::FromUnixNanos(status.started_unix_ns())));
  }
  if (!status.waiting_for().empty()) absl::StrAppend(&text, ", waits for ", status.waiting_for());
  return text + "; its last lines:";
}

std::string RenderLost(const v1::JobNodeStatus& node, bool job_ended) {
  if (node.lost_output_bytes() == 0) return "";
  // While the job runs the number is of the last report; it has grown since.
  return Printable(absl::StrCat(
      node.name(), ": ", job_ended ? "" : "more than ", HumanBytes(node.lost_output_bytes()),
      " of output could not be written: ", node.lost_output_reason(),
      job_ended ? "" : "; the ranks run on, and what follows is written once there is room there again"));
}

std::string WhySentence(const v1::Why& why) {
  std::string detail = why.detail();
  if (detail.empty()) detail = CauseName(why.cause());
  if (why.rank() >= 0) {
    const char* verb = absl::StartsWith(detail, "killed by") ? " was " : " ";
    const bool predicate = absl::StartsWith(detail, "killed by") || absl::StartsWith(detail, "exited") ||
                           absl::StartsWith(detail, "was ");
    return Printable(absl::StrCat("rank ", why.rank(), " on ", why.node(), predicate ? verb : ": ", detail));
  }
  if (!why.node().empty() && !absl::StrContains(detail, why.node())) {
    return Printable(absl::StrCat(why.node(), ": ", detail));
  }
  return Printable(detail);
}

std::string RenderStatus(const v1::JobStatus& status, absl::Time now) {
  std::string state = StateName(status.state());
  absl::StrAppend(&state, ", attempt ", status.attempt());
  if (status.restarts() > 0) {
    absl::StrAppend(&state, " (restart ", status.restarts(), " of ", status.max_restarts(), ")");
  }
  std::string text = Row("job", status.name().empty() || status.name() == status.job_id()
                                    ? status.job_id()
                                    : absl::StrCat(status.job_id(), " (", status.name(), ")"));
  absl::StrAppend(&text, Row("state", state),
                  Row("where", Layout(status.nodes_wanted(), status.ranks_per_node(), Where(status)) +
                                   (status.on_cpu() ? ", CPU" : "")));
  if (status.argv_size() > 0) absl::StrAppend(&text, Row("command", CommandText(status)));
  if (!status.cwd().empty()) absl::StrAppend(&text, Row("folder", status.cwd()));
  if (status.submitted_unix_ns() != 0) absl::StrAppend(&text, Row("time", Times(status, now)));
  if (status.has_checkpoint()) {
    absl::StrAppend(&text, Row("checkpoint", CheckpointText(status.checkpoint())));
  }
  if (const std::string progress = RenderProgress(status, now); !progress.empty()) {
    absl::StrAppend(&text, Row("progress", progress));
  }
  if (!status.waiting_for().empty()) absl::StrAppend(&text, Row("waits for", status.waiting_for()));
  if (status.has_why()) {
    // Only a job that failed or was stopped has its own end as the reason; else it is an earlier attempt's.
    const bool of_job = HasEnded(status.state()) && status.state() != v1::JOB_STATE_SUCCEEDED;
    const std::string attempt = of_job ? "" : absl::StrCat("attempt ", status.why().attempt(), ": ");
    absl::StrAppend(&text, Row("why", attempt + WhySentence(status.why())));
  }
  if (HasEnded(status.state())) absl::StrAppend(&text, Row("exit code", absl::StrCat(status.exit_code())));
  if (status.nodes_size() > 0) absl::StrAppend(&text, "nodes\n");
  for (const v1::JobNodeStatus& node : status.nodes()) absl::StrAppend(&text, NodeText(node));
  for (const v1::JobNodeStatus& node : status.nodes()) {
    if (!node.log_dir().empty()) absl::StrAppend(&text, Row("logs", node.name() + ":" + node.log_dir()));
  }
  for (const std::string& line : LostLines(status)) absl::StrAppend(&text, Row("lost", line));
  return text + AlarmRows(status);
}

std::string RenderJobList(const std::vector<v1::JobStatus>& jobs, absl::Time now) {
  if (jobs.empty()) return "no jobs\n";
  std::string text = absl::StrFormat("%-14s %-16s %-10s %6s %8s  %-16s %s\n", "JOB", "NAME", "STATE", "RANKS",
                                     "RESTARTS", "SUBMITTED", "WHERE");
  for (const v1::JobStatus& job : jobs) {
    absl::StrAppendFormat(
        &text, "%-14s %-16s %-10s %6d %8d  %-16s %s\n", job.job_id(), job.name().empty() ? "-" : job.name(),
        StateName(job.state()), RanksOf(job), job.restarts(),
        HumanDuration(now - absl::FromUnixNanos(job.submitted_unix_ns())) + " ago", Where(job));
  }
  return text;
}

std::string RenderNodes(const std::vector<v1::NodeInfo>& nodes) {
  if (nodes.empty()) return "no nodes\n";
  std::string text =
      absl::StrFormat("%-12s %-8s %-9s %5s  %-16s %s\n", "NODE", "STATE", "GPUS", "CORES", "JOBS", "ADDRESS");
  for (const v1::NodeInfo& node : nodes) {
    const std::string gpus = absl::StrCat(node.gpus_in_use_size(), "/", node.inventory().gpus_size());
    absl::StrAppendFormat(&text, "%-12s %-8s %-9s %5d  %-16s %s\n", node.name(), StateName(node.state()),
                          gpus, node.inventory().allowed_cores(),
                          node.jobs().empty() ? "-" : absl::StrJoin(node.jobs(), ","),
                          node.address().empty() ? "-" : node.address());
    for (const std::string& detail : {node.detail(), node.inventory().gpu_error()}) {
      if (!detail.empty()) absl::StrAppend(&text, "  ", node.name(), ": ", Printable(detail), "\n");
    }
  }
  return text;
}

std::string RenderWhy(const v1::JobStatus& status, absl::Time now) {
  std::string text = absl::StrCat("job ", status.job_id(), " ", StateName(status.state()));
  std::string lost;
  for (const std::string& line : LostLines(status)) absl::StrAppend(&lost, Row("lost", line));
  const std::string progress = RenderProgress(status, now);
  if (!progress.empty()) absl::StrAppend(&lost, Row("progress", progress));
  lost += AlarmRows(status);
  if (!status.has_why()) {
    return absl::StrCat(
        text, HasEnded(status.state()) ? "; nothing failed\n" : "; nothing has failed so far\n", lost);
  }
  const bool of_job = HasEnded(status.state()) && status.state() != v1::JOB_STATE_SUCCEEDED;
  absl::StrAppend(&text, of_job ? ", attempt " : "; attempt ", status.why().attempt(),
                  of_job ? ": " : " failed: ", WhySentence(status.why()), "\n");
  absl::StrAppend(&text, Row("cause", CauseName(status.why().cause())));
  if (status.why().rank() >= 0) absl::StrAppend(&text, Row("rank", absl::StrCat(status.why().rank())));
  if (!status.why().node().empty()) absl::StrAppend(&text, Row("node", status.why().node()));
  if (status.why().stderr_tail_size() > 0) absl::StrAppend(&text, "last lines of its stderr:\n");
  for (const std::string& line : status.why().stderr_tail())
    absl::StrAppend(&text, "  ", Printable(line), "\n");
  return text + lost;
}

std::string RenderRestart(const v1::Why& why, const v1::JobStatus& status) {
  std::string text = absl::StrCat("attempt ", why.attempt(), " failed: ", WhySentence(why), "; restart ",
                                  status.restarts(), " of ", status.max_restarts());
  if (status.has_checkpoint()) {
    absl::StrAppend(&text, " from ", status.checkpoint().path());
  } else {
    absl::StrAppend(&text, " from the start");
  }
  return text;
}

std::vector<std::string> RenderSummary(const v1::JobStatus& status) {
  std::vector<std::string> lines;
  std::string first = absl::StrCat("job ", status.job_id(), " ", StateName(status.state()));
  if (status.submitted_unix_ns() != 0 && status.ended_unix_ns() != 0) {
    absl::StrAppend(&first, " after ",
                    HumanDuration(absl::Nanoseconds(status.ended_unix_ns() - status.submitted_unix_ns())));
  }
  const uint32_t attempts = status.attempt() + 1;
  absl::StrAppend(&first, ", ", Plural(attempts, "attempt"));
  const bool failed = status.state() != v1::JOB_STATE_SUCCEEDED && status.has_why();
  if (failed) absl::StrAppend(&first, ": ", WhySentence(status.why()));
  lines.push_back(std::move(first));
  if (failed && status.why().cause() != v1::CAUSE_STOPPED) {
    for (const std::string& line : status.why().stderr_tail()) lines.push_back("  | " + Printable(line));
  }
  std::map<std::string, std::string> folders;  // folder -> node
  for (const v1::JobNodeStatus& node : status.nodes()) {
    if (!node.log_dir().empty()) folders.emplace(node.log_dir(), node.name());
  }
  if (folders.size() == 1) {
    lines.push_back("logs: " + folders.begin()->first);
  } else if (folders.size() > kLogFoldersShown) {
    lines.push_back(absl::StrCat("logs: dgxrun logs ", status.job_id(), "; on ", folders.begin()->second,
                                 ": ", folders.begin()->first));
  } else {
    for (const auto& [folder, node] : folders) lines.push_back(absl::StrCat("logs: ", node, ":", folder));
  }
  for (std::string& line : LostLines(status)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace dgxrun::cli
