#include "cli/job_finder.h"

#include <stdio.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/cluster_choice.h"
#include "cli/peers_key.h"
#include "cli/render.h"
#include "proto/rpc/credentials.h"

namespace dgxrun::cli {
namespace {

constexpr uint32_t kListed = 100;  // of a cluster's jobs, newest first

bool Newer(const v1::JobStatus& a, const v1::JobStatus& b) {
  return a.submitted_unix_ns() > b.submitted_unix_ns();
}

// The endpoint of a job in peers mode of which this machine has another node.
absl::StatusOr<Client> PeersClient(const std::string& endpoint, const EnvMap& env, const Paths& paths) {
  auto secret = FindPeersSecret(env, paths);
  if (!secret.ok()) return secret.status();
  auto made = MakePeersCertificate(secret->bytes);
  if (!made.ok()) return made.status();
  return Client(Dial(endpoint, TlsPems{made->ca, made->cert, made->key}, /*bulk=*/false), endpoint);
}

}  // namespace

absl::StatusOr<JobFinder> JobFinder::Make(const std::string& asked_cluster, const EnvMap& env,
                                          const Paths& paths) {
  JobFinder finder(env, paths);
  auto choice = FindCluster(asked_cluster, env, paths);
  if (!choice.ok()) return choice.status();
  finder.look_local_ = asked_cluster.empty();
  if (choice->has_value()) {
    finder.cluster_ = (*choice)->file;
    finder.asked_for_ = (*choice)->asked_for;
  }
  return finder;
}

std::optional<absl::StatusOr<Client>> JobFinder::Cluster() {
  if (!cluster_.has_value()) return std::nullopt;
  return Client::Connect(*cluster_);
}

absl::StatusOr<std::vector<v1::JobStatus>> JobFinder::ClusterJobs(const std::string& job, bool all) {
  std::vector<v1::JobStatus> jobs;
  auto client = Cluster();
  if (!client.has_value()) return jobs;
  if (!client->ok()) return client->status();
  absl::Status error;
  if (all) {
    auto listed = (*client)->Jobs(kListed);
    if (listed.ok()) jobs = *std::move(listed);
    error = listed.status();
  } else {
    auto status = (*client)->Status(job);
    if (status.ok()) jobs.push_back(*std::move(status));
    error = status.status();
  }
  if (error.ok() || absl::IsNotFound(error)) return jobs;
  const bool silent = absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
  if (asked_for_ || !silent) return error;
  unreachable_ = error;
  return jobs;
}

absl::StatusOr<FoundJob> JobFinder::Find(const std::string& job, bool alive) {
  const bool any_alive = alive && job.empty();
  std::vector<FoundJob> found;
  if (look_local_) {
    for (LocalJob& local : local_.List()) {  // newest first
      const bool is_id = !job.empty() && local.status.job_id() == job;
      if (!job.empty() && !is_id && local.status.name() != job) continue;
      FoundJob match{local.status, std::move(local)};
      if (is_id) return match;  // ids are unique: no need to ask a cluster; a name like it comes second
      if (any_alive || found.empty()) found.push_back(std::move(match));
    }
  }
  auto others = ClusterJobs(job, any_alive);
  if (!others.ok()) return others.status();
  for (v1::JobStatus& status : *others) found.push_back(FoundJob{std::move(status), std::nullopt});
  if (found.empty()) {
    if (!unreachable_.ok()) return unreachable_;
    return absl::NotFoundError(job.empty() ? "no jobs yet" : absl::StrCat("no job ", job));
  }
  if (!unreachable_.ok()) fprintf(stderr, "dgxrun: %s\n", std::string(unreachable_.message()).c_str());
  return *std::min_element(found.begin(), found.end(), [&](const FoundJob& a, const FoundJob& b) {
    if ((a.status.job_id() == job) != (b.status.job_id() == job)) return a.status.job_id() == job;
    if (any_alive && HasEnded(a.status.state()) != HasEnded(b.status.state()))
      return HasEnded(b.status.state());
    return Newer(a.status, b.status);
  });
}

absl::StatusOr<std::vector<v1::JobStatus>> JobFinder::List() {
  std::vector<v1::JobStatus> jobs;
  if (look_local_) {
    for (LocalJob& local : local_.List()) jobs.push_back(std::move(local.status));
  }
  auto others = ClusterJobs("", /*all=*/true);
  if (!others.ok()) return others.status();
  if (!unreachable_.ok()) fprintf(stderr, "dgxrun: %s\n", std::string(unreachable_.message()).c_str());
  jobs.insert(jobs.end(), others->begin(), others->end());
  std::stable_sort(jobs.begin(), jobs.end(), Newer);
  return jobs;
}

absl::StatusOr<Client> JobFinder::ClientOf(const FoundJob& job) {
  if (job.local.has_value()) {
    if (job.local->control_socket.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("job ", job.status.job_id(), " has ended"));
    }
    if (!job.local->endpoint.empty()) return PeersClient(job.local->endpoint, env_, paths_);
    return Client::ConnectLocal(job.local->control_socket);
  }
  return *Cluster();
}

}  // namespace dgxrun::cli
