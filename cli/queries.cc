#include "cli/queries.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/console.h"
#include "cli/exit_codes.h"
#include "cli/job_finder.h"
#include "cli/local_mode.h"
#include "cli/log_follower.h"
#include "cli/render.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

// Over the job's own grace: for kills, and for a node that is being fenced.
constexpr absl::Duration kStopMargin = absl::Minutes(2);
constexpr absl::Duration kLongestGrace = absl::Hours(24);  // what --grace takes at most

int Print(const std::string& text) {
  fputs(text.c_str(), stdout);  // main sees to it that it was written
  return kExitOk;
}

// A file of a local job, in chunks as a tail would send it.
absl::Status ShowFile(const std::string& path, v1::OutputChunk chunk, Console* console) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) {
    if (errno == ENOENT) return absl::OkStatus();  // the rank was never started
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", path, ": ", strerror(errno)));
  }
  std::string buffer(LineAssembler::kMaxLine, '\0');
  uint64_t offset = 0;
  for (;;) {
    const ssize_t n = read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::FailedPreconditionError(absl::StrCat("cannot read ", path, ": ", strerror(errno)));
    chunk.set_offset(offset);
    chunk.set_data(buffer.data(), static_cast<size_t>(n));
    chunk.set_end(n == 0);
    console->OnChunk(chunk);
    console->Flush(/*wait=*/true);
    if (n == 0) return absl::OkStatus();
    offset += static_cast<uint64_t>(n);
  }
}

// Ranks that have a file in this folder.
std::set<uint32_t> RanksIn(const std::string& folder) {
  std::set<uint32_t> ranks;
  for (const std::string& name : ListFolder(folder)) {
    uint32_t rank = 0;
    const size_t dot = name.find('.');
    if (absl::StartsWith(name, "rank_") && dot != std::string::npos &&
        absl::SimpleAtoi(name.substr(5, dot - 5), &rank)) {
      ranks.insert(rank);
    }
  }
  return ranks;
}

std::string NodeOfRank(const v1::JobStatus& status, uint32_t rank) {
  for (const v1::JobNodeStatus& node : status.nodes()) {
    for (const v1::RankStatus& r : node.ranks()) {
      if (r.rank() == rank) return node.name();
    }
  }
  return LocalNodeName();
}

absl::Status ShowLocalAttempt(const LocalJob& job, uint32_t attempt, const LogsOptions& options,
                              Console* console) {
  const std::string folder = absl::StrCat(job.folder, "/attempt_", attempt);
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("job ", job.status.job_id(), " has no output of attempt ", attempt));
  }
  const std::set<uint32_t> there = RanksIn(folder);
  for (const uint32_t rank : options.ranks) {
    if (there.count(rank) == 0) {
      return absl::NotFoundError(absl::StrCat("job ", job.status.job_id(), " has no output of rank ", rank));
    }
  }
  for (const uint32_t rank : there) {
    const bool wanted = options.ranks.empty() ||
                        std::find(options.ranks.begin(), options.ranks.end(), rank) != options.ranks.end();
    if (!wanted) continue;
    v1::OutputChunk chunk;
    chunk.set_attempt(attempt);
    chunk.set_rank(rank);
    chunk.set_node(NodeOfRank(job.status, rank));
    for (const auto& [stream, suffix] : {std::pair{v1::STREAM_STDOUT, "out"}, {v1::STREAM_STDERR, "err"}}) {
      chunk.set_stream(stream);
      absl::Status shown = ShowFile(absl::StrCat(folder, "/rank_", rank, ".", suffix), chunk, console);
      if (!shown.ok()) return shown;
    }
  }
  return absl::OkStatus();
}

// What the status knows of it is of the current attempt only.
void SayLost(const v1::JobStatus& status, const LogsOptions& options, Console* console) {
  if (options.attempt.value_or(status.attempt()) != status.attempt()) return;
  for (const v1::JobNodeStatus& node : status.nodes()) {
    if (const std::string line = RenderLost(node, HasEnded(status.state())); !line.empty())
      console->Notice(line);
  }
}

int ExitOf(const Console& console) { return console.out_error() == 0 ? kExitOk : kExitInternal; }

// As the controller would: one attempt, or with -f all from that one on.
absl::StatusOr<int> ShowLocalFiles(const LocalJob& job, const LogsOptions& options, Console* console) {
  const uint32_t first = options.attempt.value_or(job.status.attempt());
  absl::Status shown = ShowLocalAttempt(job, first, options, console);
  for (uint32_t next = first + 1; options.follow && shown.ok() && next <= job.status.attempt(); ++next) {
    shown = ShowLocalAttempt(job, next, options, console);
  }
  if (!shown.ok()) return shown;
  SayLost(job.status, options, console);
  console->Flush(/*wait=*/true);
  return ExitOf(*console);
}

// Without --attempt the current one: named, so that a lost connection does not make it a later one.
LogsOptions FromHere(const LogsOptions& options, const v1::JobStatus& status) {
  LogsOptions from = options;
  if (!from.attempt.has_value()) from.attempt = status.attempt();
  return from;
}

absl::Status ShowStream(Client client, const v1::JobStatus& status, const LogsOptions& options,
                        Console* console) {
  LogFollower::Options what;
  what.job = status.job_id();
  what.ranks = options.ranks;
  what.attempt = FromHere(options, status).attempt;
  what.follow = options.follow;
  what.give_up = options.follow && status.cluster() != "local" ? kReconnectLimit : absl::ZeroDuration();
  what.say_lost = true;
  EventLoop loop;
  std::optional<absl::Status> end;
  LogFollower follower(&loop, &client, console, std::move(what), [&](const absl::Status& s) { end = s; });
  follower.Start();
  while (!end.has_value()) {
    loop.RunOnce(absl::InfiniteDuration());
    console->Flush(/*wait=*/true);
  }
  return *end;
}

}  // namespace

absl::StatusOr<int> ShowStatus(const StatusOptions& options, const EnvMap& env, const Paths& paths) {
  auto finder = JobFinder::Make(options.cluster, env, paths);
  if (!finder.ok()) return finder.status();
  if (options.all) {
    auto jobs = finder->List();
    if (!jobs.ok()) return jobs.status();
    return Print(options.json ? JobListJson(*jobs) : RenderJobList(*jobs, absl::Now()));
  }
  auto job = finder->Find(options.job, /*alive=*/false);
  if (!job.ok()) return job.status();
  return Print(options.json ? StatusJson(job->status) : RenderStatus(job->status, absl::Now()));
}

absl::StatusOr<int> ShowNodes(const NodesOptions& options, const EnvMap& env, const Paths& paths) {
  auto finder = JobFinder::Make(options.cluster, env, paths);
  if (!finder.ok()) return finder.status();
  std::vector<v1::NodeInfo> nodes;
  if (auto client = finder->Cluster(); client.has_value()) {
    if (!client->ok()) return client->status();
    if (!options.fence.empty()) {
      v1::FenceNodeRequest request;
      request.set_node(options.fence);
      auto fenced = (*client)->FenceNode(request);
      if (!fenced.ok()) return fenced.status();
      return Print(options.json ? NodesJson({*fenced}) : RenderNodes({*fenced}));
    }
    auto listed = (*client)->Nodes();
    if (!listed.ok()) return listed.status();
    nodes = *std::move(listed);
  } else if (!options.fence.empty()) {
    return absl::FailedPreconditionError("there is no cluster here: dgxrun nodes fence needs --cluster");
  } else {
    nodes.push_back(LocalNode());
  }
  return Print(options.json ? NodesJson(nodes) : RenderNodes(nodes));
}

absl::StatusOr<int> ShowLogs(const LogsOptions& options, const EnvMap& env, const Paths& paths) {
  auto finder = JobFinder::Make(options.cluster, env, paths);
  if (!finder.ok()) return finder.status();
  auto job = finder->Find(options.job, /*alive=*/false);
  if (!job.ok()) return job.status();
  Console console(STDOUT_FILENO, STDERR_FILENO);
  const bool running_here = job->local.has_value() && !job->local->control_socket.empty();
  if (job->local.has_value() && !(running_here && options.follow)) {
    return ShowLocalFiles(*job->local, options, &console);
  }
  auto client = finder->ClientOf(*job);
  if (!client.ok()) return client.status();
  absl::Status shown = ShowStream(*std::move(client), job->status, options, &console);
  if (!shown.ok() && job->local.has_value()) {
    // The controller of a local job goes with its dgxrun; the files stay, and what was shown is not repeated.
    auto again = finder->Find(job->status.job_id(), /*alive=*/false);
    if (again.ok() && again->local.has_value() && HasEnded(again->status.state())) {
      return ShowLocalFiles(*again->local, FromHere(options, job->status), &console);
    }
  }
  console.FinishLines();
  SayLost(job->status, options, &console);
  console.Flush(/*wait=*/true);
  if (!shown.ok()) return shown;
  return ExitOf(console);
}

absl::StatusOr<int> ShowWhy(const WhyOptions& options, const EnvMap& env, const Paths& paths) {
  auto finder = JobFinder::Make(options.cluster, env, paths);
  if (!finder.ok()) return finder.status();
  auto job = finder->Find(options.job, /*alive=*/false);
  if (!job.ok()) return job.status();
  return Print(options.json ? WhyJson(job->status) : RenderWhy(job->status, absl::Now()));
}

absl::StatusOr<int> StopJobCommand(const StopOptions& options, const EnvMap& env, const Paths& paths) {
  auto finder = JobFinder::Make(options.cluster, env, paths);
  if (!finder.ok()) return finder.status();
  auto job = finder->Find(options.job, /*alive=*/true);
  if (!job.ok()) return job.status();
  const std::string id = job->status.job_id();
  if (HasEnded(job->status.state())) {
    return Print(absl::StrCat("job ", id, " has ended already: ", StateName(job->status.state()), "\n"));
  }
  auto client = finder->ClientOf(*job);
  if (!client.ok()) return client.status();
  v1::StopRequest request;
  request.set_job(id);
  request.set_reason("dgxrun stop");
  if (options.grace.has_value()) {
    request.set_has_grace(true);
    request.set_grace_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(*options.grace)));
  }
  if (auto stopped = client->Stop(request); !stopped.ok()) return stopped.status();
  auto ended = client->WaitEnded(id, options.grace.value_or(kLongestGrace) + kStopMargin);
  if (!ended.ok()) {
    // A local job's controller goes with its dgxrun, maybe before it could tell us the end.
    auto again = finder->Find(id, /*alive=*/false);
    if (!again.ok() || !HasEnded(again->status.state())) return ended.status();
    ended = again->status;
  }
  return Print(absl::StrCat("job ", id, " ", StateName(ended->state()), "\n"));
}

}  // namespace dgxrun::cli
