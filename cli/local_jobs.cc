#include "cli/local_jobs.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/exit_codes.h"
#include "cli/paths.h"
#include "cli/render.h"
#include "cli/status_file.h"
#include "launcher/base/unique_fd.h"
#include "proto/ids.h"

namespace dgxrun::cli {
namespace {

constexpr char kControlName[] = "/control";

int64_t ModifiedNs(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec;
}

// What is known of a job whose dgxrun process was killed: its shim killed the ranks then.
void TellClientLost(const std::string& folder, v1::JobStatus* status) {
  status->set_state(v1::JOB_STATE_FAILED);
  status->set_exit_code(kExitInternal);
  status->set_ended_unix_ns(ModifiedNs(folder + kStatusName));
  status->clear_waiting_for();
  v1::Why* why = status->mutable_why();
  why->Clear();
  why->set_cause(v1::CAUSE_CLIENT_LOST);
  why->set_rank(-1);
  why->set_attempt(status->attempt());
  why->set_detail("the dgxrun process was killed, and its ranks with it");
  for (v1::JobNodeStatus& node : *status->mutable_nodes()) {
    node.set_state(v1::NODE_STATE_UNKNOWN);
    for (v1::RankStatus& rank : *node.mutable_ranks()) {
      if (rank.state() == v1::RANK_STATE_RUNNING) rank.set_state(v1::RANK_STATE_UNKNOWN);
    }
  }
}

// Of the processes of a job in peers mode: the newest status, and a socket on which somebody listens.
bool ReadPeersJob(const std::string& folder, LocalJob* job) {
  int64_t newest = 0;
  bool was_here = false;
  for (const std::string& name : ListFolder(folder)) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (absl::StartsWith(name, "status.") && absl::EndsWith(name, ".pb")) {
      v1::JobStatus status;
      auto bytes = ReadFile(path);
      if (!bytes.ok() || !status.ParseFromString(*bytes) || ModifiedNs(path) < newest) continue;
      newest = ModifiedNs(path);
      job->status = std::move(status);
    } else if (absl::StartsWith(name, "control.") && !absl::EndsWith(name, ".tmp")) {
      auto text = ReadFile(path);
      if (!text.ok()) continue;
      const std::pair<std::string, std::string> lines = absl::StrSplit(*text, absl::MaxSplits('\n', 1));
      was_here |= access(lines.first.substr(0, lines.first.rfind('/')).c_str(), F_OK) == 0;
      // The endpoint's own socket answers without a key.
      if (!SomebodyListens(lines.first) || (!job->control_socket.empty() && job->endpoint.empty())) continue;
      job->control_socket = lines.first;
      job->endpoint = lines.second;
    }
  }
  if (newest == 0) return false;
  job->folder = folder;
  if (HasEnded(job->status.state())) {
    job->control_socket.clear();
  } else if (job->control_socket.empty() && was_here) {
    TellClientLost(folder, &job->status);
  }  // else it runs on other machines, as far as anybody here can tell
  return true;
}

bool ReadJob(const std::string& folder, LocalJob* job) {
  if (access((folder + kStatusName).c_str(), F_OK) != 0) return ReadPeersJob(folder, job);
  if (!ReadStatus(folder, &job->status)) return false;
  job->folder = folder;
  if (HasEnded(job->status.state())) return true;
  auto socket = ReadFile(folder + kControlName);
  if (socket.ok() && SomebodyListens(*socket)) {
    job->control_socket = *std::move(socket);
    return true;
  }
  // It may have ended between the two looks.
  if (!ReadStatus(folder, &job->status)) return false;
  if (!HasEnded(job->status.state())) TellClientLost(folder, &job->status);
  return true;
}

}  // namespace

bool SomebodyListens(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.empty() || socket_path.size() >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return false;
  // EAGAIN: its queue of connections is full, so it is there.
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN;
}

absl::Status LocalJobs::Write(const v1::JobStatus& status, const std::string& control_socket) const {
  if (!IsValidName(status.job_id())) return absl::InternalError("a job without a valid id");
  const std::string folder = absl::StrCat(folder_, "/", status.job_id());
  if (access((folder + kControlName).c_str(), F_OK) != 0) {
    if (absl::Status made = MakeFolders(folder, 0700); !made.ok()) return made;
    absl::Status control = WriteFileAtomically(folder + kControlName, control_socket);
    if (!control.ok()) return control;
  }
  return WriteStatus(folder, status, WriteFileQuickly);
}

absl::Status LocalJobs::WritePeer(const v1::JobStatus& status, const std::string& node,
                                  const std::string& socket, const std::string& endpoint) const {
  if (!IsValidName(status.job_id())) return absl::InternalError("a job without a valid id");
  const std::string folder = absl::StrCat(folder_, "/", status.job_id());
  if (absl::Status made = MakeFolders(folder, 0700); !made.ok()) return made;
  const std::string lines = endpoint.empty() ? socket : absl::StrCat(socket, "\n", endpoint);
  absl::Status control = WriteFileAtomically(absl::StrCat(folder, kControlName, ".", node), lines);
  if (!control.ok()) return control;
  return WriteFileAtomically(absl::StrCat(folder, "/status.", node, ".pb"), status.SerializeAsString());
}

std::vector<LocalJob> LocalJobs::List() const {
  std::vector<LocalJob> jobs;
  for (const std::string& name : ListFolder(folder_)) {
    LocalJob job;
    if (ReadJob(absl::StrCat(folder_, "/", name), &job)) jobs.push_back(std::move(job));
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const LocalJob& a, const LocalJob& b) {
    return a.status.submitted_unix_ns() > b.status.submitted_unix_ns();
  });
  return jobs;
}

absl::StatusOr<LocalJob> LocalJobs::Find(const std::string& job) const {
  std::vector<LocalJob> jobs = List();
  for (LocalJob& candidate : jobs) {
    if (job.empty() || candidate.status.job_id() == job) return std::move(candidate);
  }
  for (LocalJob& candidate : jobs) {
    if (candidate.status.name() == job) return std::move(candidate);
  }
  return absl::NotFoundError(job.empty() ? "no jobs yet" : absl::StrCat("no job ", job));
}

void LocalJobs::Prune(size_t keep) const {
  // Reading every status takes milliseconds of each launch, so it is done once in a while.
  if (ListFolder(folder_).size() <= keep + keep / 5) return;
  const std::vector<LocalJob> jobs = List();
  for (size_t i = keep; i < jobs.size(); ++i) {
    std::error_code ignored;
    if (jobs[i].control_socket.empty()) std::filesystem::remove_all(jobs[i].folder, ignored);
  }
}

}  // namespace dgxrun::cli
