#include "controller/core/progress.h"

#include <algorithm>

#include "agent/ckpt/merge.h"
#include "controller/core/model.h"

namespace dgxrun::core {
namespace {

// Two intervals, so that one odd one does not count as usual.
constexpr size_t kMinIntervals = 2;

void Remember(NodeProgress* node, const v1::CheckpointFinding& finding) {
  const std::string& path = finding.checkpoint().path();
  if (node->seen.count(path) == 0 && node->seen.size() >= AttemptProgress::kMaxSeen) {
    auto oldest = std::min_element(node->seen.begin(), node->seen.end(), [](const auto& a, const auto& b) {
      return a.second.checkpoint().mtime_unix_ns() < b.second.checkpoint().mtime_unix_ns();
    });
    node->seen.erase(oldest);
  }
  node->seen[path] = finding;
}

void NoteRemoved(const AttemptNode& share, const std::string& path, NodeProgress* node) {
  node->seen.erase(path);
  const bool told = std::any_of(share.findings.begin(), share.findings.end(),
                                [&](const auto& finding) { return finding.checkpoint().path() == path; });
  if (told) node->removed.insert(path);
}

// Those that the attempt wrote and that are complete over all nodes, newest first.
std::vector<v1::Checkpoint> Complete(const AttemptProgress& progress) {
  std::vector<std::vector<v1::CheckpointFinding>> per_node;
  for (const auto& [id, node] : progress.nodes) {
    std::vector<v1::CheckpointFinding>& findings = per_node.emplace_back();
    for (const auto& [path, finding] : node.seen) findings.push_back(finding);
  }
  std::vector<v1::Checkpoint> complete;
  for (const v1::CheckpointFinding& finding : agent::ckpt::MergeFindings(per_node)) {
    if (finding.checkpoint().verdict() == v1::VERDICT_COMPLETE) complete.push_back(finding.checkpoint());
  }
  return complete;
}

// The median time between the saves; 0: too few.
double UsualInterval(const std::vector<v1::Checkpoint>& complete) {
  std::vector<int64_t> times;
  for (const v1::Checkpoint& checkpoint : complete) times.push_back(checkpoint.mtime_unix_ns());
  std::sort(times.begin(), times.end());
  std::vector<int64_t> intervals;
  for (size_t i = 1; i < times.size(); ++i) {
    if (times[i] > times[i - 1]) intervals.push_back(times[i] - times[i - 1]);
  }
  if (intervals.size() < kMinIntervals) return 0;
  auto middle = intervals.begin() + static_cast<std::ptrdiff_t>(intervals.size() / 2);
  std::nth_element(intervals.begin(), middle, intervals.end());
  return static_cast<double>(*middle) / 1e9;
}

void SummarizeCheckpoints(AttemptProgress* progress, absl::Time now) {
  const std::vector<v1::Checkpoint> complete = Complete(*progress);
  v1::Progress& summary = progress->summary;
  summary.set_complete(static_cast<uint32_t>(complete.size()));
  summary.set_save_interval_s(UsualInterval(complete));
  uint64_t free = 0;
  for (const auto& [id, node] : progress->nodes) {
    if (node.free_bytes != 0) free = free == 0 ? node.free_bytes : std::min(free, node.free_bytes);
  }
  summary.set_free_bytes(free);
  if (complete.empty()) return;
  const auto latest = std::max_element(complete.begin(), complete.end(), [](const auto& a, const auto& b) {
    return a.mtime_unix_ns() < b.mtime_unix_ns();
  });
  const bool fresh = !summary.has_newest() || summary.newest().path() != latest->path() ||
                     summary.newest().mtime_unix_ns() != latest->mtime_unix_ns();
  if (fresh) progress->newest_at = now;
  progress->first_at = std::min(progress->first_at, now);
  *summary.mutable_newest() = *latest;
  const bool fits = free == 0 || free >= latest->bytes();
  progress->short_since = fits ? absl::InfiniteFuture() : std::min(progress->short_since, now);
  if (!progress->first_new) {
    progress->first_new =
        *std::min_element(complete.begin(), complete.end(),
                          [](const auto& a, const auto& b) { return a.mtime_unix_ns() < b.mtime_unix_ns(); });
  }
}

void SummarizeSteps(AttemptProgress* progress, absl::Time now) {
  v1::Progress& summary = progress->summary;
  bool first = true;
  for (const auto& [id, node] : progress->nodes) {
    if (!node.has_step) continue;
    summary.set_first_step(first ? node.first_step : std::min(summary.first_step(), node.first_step));
    if (first || node.step < summary.step()) {
      summary.set_step(node.step);
      summary.set_step_unix_ns(node.step_unix_ns);
    }
    first = false;
  }
  summary.set_from_script(!first);
  if (first && summary.has_newest() && summary.newest().step() >= 0) {
    const bool told = progress->first_new && progress->first_new->step() >= 0;
    summary.set_first_step(told ? progress->first_new->step() : summary.newest().step());
    summary.set_step(summary.newest().step());
    summary.set_step_unix_ns(summary.newest().mtime_unix_ns());
    first = false;
  }
  summary.set_has_step(!first);
  if (!summary.from_script()) return;
  auto& samples = progress->samples;
  if (samples.empty() || now - samples.back().first >= AttemptProgress::kSampleEvery) {
    samples.emplace_back(now, summary.step());
    if (samples.size() > AttemptProgress::kMaxSamples) samples.pop_front();
  }
  const double seconds = absl::ToDoubleSeconds(now - samples.front().first);
  if (seconds > 0) {
    summary.set_steps_per_second(static_cast<double>(summary.step() - samples.front().second) / seconds);
  }
}

}  // namespace

void ObserveProgress(Contacts* contacts, const State& state, const NodeId& node,
                     const v1::Heartbeat& heartbeat, absl::Time now) {
  for (const v1::AttemptProgress& news : heartbeat.progress()) {
    const JobId id(news.job_id());
    const Job* job = FindJobById(state, id);
    const Attempt* attempt = job != nullptr ? LiveAttempt(*job) : nullptr;
    if (attempt == nullptr || attempt->number.value() != news.attempt() ||
        FindShare(*attempt, node) == nullptr) {
      continue;
    }
    AttemptProgress& progress = contacts->progress[id];
    if (progress.nodes.empty() || progress.attempt != attempt->number) {
      progress = AttemptProgress();
      progress.attempt = attempt->number;
    }
    NodeProgress& of_node = progress.nodes[node];
    if (news.has_step()) {
      of_node.has_step = true;
      of_node.first_step = news.first_step();
      of_node.step = news.step();
      of_node.step_unix_ns = news.step_unix_ns();
    }
    for (const std::string& path : news.removed()) NoteRemoved(*FindShare(*attempt, node), path, &of_node);
    if (news.has_checkpoints()) {
      for (const v1::CheckpointFinding& finding : news.checkpoints()) Remember(&of_node, finding);
      of_node.held = std::set<std::string>(news.held().begin(), news.held().end());
      of_node.free_bytes = news.free_bytes();
      SummarizeCheckpoints(&progress, now);
    }
    SummarizeSteps(&progress, now);
    for (const std::string& note : news.notes()) {
      const std::pair<NodeId, std::string> entry(node, note);
      const bool known =
          std::find(progress.notes.begin(), progress.notes.end(), entry) != progress.notes.end();
      if (!known && progress.notes.size() < AttemptProgress::kMaxNotes) progress.notes.push_back(entry);
    }
  }
}

const AttemptProgress* ProgressOf(const Contacts& contacts, const Job& job) {
  auto it = contacts.progress.find(job.id);
  if (it == contacts.progress.end() || !job.attempt || it->second.attempt != job.attempt->number)
    return nullptr;
  return &it->second;
}

v1::Progress DescribeProgress(const Contacts& contacts, const Job& job) {
  v1::Progress progress;
  if (const AttemptProgress* of_attempt = ProgressOf(contacts, job)) progress = of_attempt->summary;
  if (!progress.has_newest() && job.attempt && job.attempt->checkpoint) {
    *progress.mutable_newest() = *job.attempt->checkpoint;
  }
  if (std::vector<absl::Duration> took = job.restarts_took; !took.empty()) {
    auto middle = took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2);
    std::nth_element(took.begin(), middle, took.end());
    progress.set_restart_s(absl::ToDoubleSeconds(*middle));
  }
  return progress;
}

}  // namespace dgxrun::core
