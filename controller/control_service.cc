#include "controller/control_service.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "controller/list_stream.h"
#include "controller/logs_stream.h"
#include "controller/sha256.h"
#include "proto/rpc/status.h"
#include "proto/rpc/wire_version.h"

namespace dgxrun {
namespace {

// The kernel refuses an exec with more than this (a quarter of the default stack limit).
constexpr size_t kMaxEnvironmentBytes = 2u << 20;
constexpr size_t kMaxCommandBytes = 2u << 20;
constexpr size_t kMaxKeyBytes = 128;         // a UUID and then some
constexpr uint32_t kMaxNodes = 16384;        // above the largest cluster that one controller was tried with
constexpr uint32_t kMaxRanksPerNode = 1024;  // more than any node has cores to run them on
constexpr uint64_t kMaxGraceMs = 24 * 3600 * 1000ull;  // a day; longer is a typing error
constexpr uint32_t kDefaultJobs = 100;
constexpr uint32_t kMaxJobs = 10000;  // keeps one list under a second and some megabytes

absl::Status CheckPath(const char* what, const std::string& path, bool may_be_empty) {
  if (path.empty() && may_be_empty) return absl::OkStatus();
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat(what, " must be an absolute path, not \"", path, "\""));
  }
  if (path.find('\0') != std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat(what, " holds a NUL"));
  return absl::OkStatus();
}

absl::Status CheckWords(const v1::JobSpec& spec) {
  size_t bytes = 0;
  for (const auto* words : {&spec.argv(), &spec.resume_args()}) {
    for (const std::string& word : *words) {
      bytes += word.size() + 1;
      if (word.find('\0') != std::string::npos)
        return absl::InvalidArgumentError("a word of the command holds a NUL");
    }
  }
  if (spec.argv().empty() || spec.argv(0).empty()) return absl::InvalidArgumentError("the command is empty");
  if (bytes > kMaxCommandBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the command has ", bytes, " bytes; at most ", kMaxCommandBytes));
  }
  return absl::OkStatus();
}

// Messages name the variable, never its value.
absl::Status CheckEnvironment(const v1::Environment& environment) {
  const size_t bytes = environment.ByteSizeLong();
  if (bytes > kMaxEnvironmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the environment has ", bytes, " bytes; at most ",
                                                   kMaxEnvironmentBytes,
                                                   " can be passed to a program: use --export"));
  }
  for (const v1::EnvVar& var : environment.vars()) {
    if (var.name().empty() || var.name().find_first_of(std::string("=\0", 2)) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CEscape(var.name()), "\" is no name of an environment variable"));
    }
    if (var.value().find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("the value of ", var.name(), " holds a NUL"));
    }
  }
  return absl::OkStatus();
}

std::string Sha256Hex(const std::string& bytes) {
  const auto digest = Sha256(bytes);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// A name for a job that was given none: its script's or program's.
std::string NameFor(const v1::JobSpec& spec) {
  const std::string& path = spec.script().empty() ? spec.argv(0) : spec.script();
  std::string name = std::filesystem::path(path).stem().string().substr(0, kMaxNameLength);
  for (char& c : name) {
    if (!IsValidName(std::string_view(&c, 1)) && c != '.') c = '_';
  }
  return IsValidName(name) ? name : "job";
}

// The digits of names are compared as numbers: node2 before node10.
bool NaturalLess(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (isdigit(static_cast<unsigned char>(a[i])) && isdigit(static_cast<unsigned char>(b[j]))) {
      const size_t i0 = std::min(a.find_first_not_of('0', i), a.size());
      const size_t j0 = std::min(b.find_first_not_of('0', j), b.size());
      const size_t i1 = std::min(a.find_first_not_of("0123456789", i), a.size());
      const size_t j1 = std::min(b.find_first_not_of("0123456789", j), b.size());
      const size_t na = i1 - std::min(i0, i1), nb = j1 - std::min(j0, j1);
      if (na != nb) return na < nb;
      const int order = a.compare(i1 - na, na, b, j1 - nb, nb);
      if (order != 0) return order < 0;
      i = i1;
      j = j1;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

template <class T>
void SendAll(const std::shared_ptr<ListStream<T>>& stream, EventLoop* loop, absl::Status status,
             std::vector<T> values) {
  loop->Post([stream, status = std::move(status), values = std::move(values)]() mutable {
    for (T& value : values) stream->Push(std::move(value), false);
    stream->Close(ToGrpc(status));
  });
}

}  // namespace

absl::Status CheckSubmit(const v1::SubmitRequest& request) {
  const v1::JobSpec& spec = request.spec();
  if (request.has_version()) {
    absl::Status fits = CheckWireVersion(request.version(), "dgxrun");
    if (!fits.ok()) return fits;
  }
  if (request.key().empty() || request.key().size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the submit key must have 1 to ", kMaxKeyBytes, " bytes"));
  }
  if (!spec.name().empty() && !IsValidName(spec.name())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CEscape(spec.name()), "\" is no job name: 1 to 64 of the characters A-Z a-z 0-9 . _ -"));
  }
  if (spec.nodes() < 1 || spec.nodes() > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job has 1 to ", kMaxNodes, " nodes, not ", spec.nodes()));
  }
  if (spec.ranks_per_node() > kMaxRanksPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("a node has at most ", kMaxRanksPerNode, " ranks, not ", spec.ranks_per_node()));
  }
  if (spec.grace_ms() > kMaxGraceMs) return absl::InvalidArgumentError("the grace time is longer than a day");
  for (absl::Status status :
       {CheckWords(spec), CheckPath("the working folder", spec.cwd(), false),
        CheckPath("the script", spec.script(), true),
        CheckPath("the checkpoint folder", spec.ckpt_dir(), true), CheckEnvironment(request.environment())}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

v1::JobSpec CompleteSpec(const v1::SubmitRequest& request, const core::Caller& caller,
                         const std::string& environment_bytes) {
  v1::JobSpec spec = request.spec();
  if (spec.name().empty()) spec.set_name(NameFor(spec));
  spec.mutable_owner()->set_user(caller.user);
  spec.mutable_owner()->set_uid(caller.uid);
  spec.mutable_owner()->set_gid(caller.gid);
  spec.clear_env_names();
  for (const v1::EnvVar& var : request.environment().vars()) spec.add_env_names(var.name());
  spec.set_env_sha256(Sha256Hex(environment_bytes));
  return spec;
}

absl::StatusOr<core::Caller> ControlService::CallerFor(const grpc::ServerContextBase& context,
                                                       const std::string& job) {
  absl::StatusOr<core::Caller> caller = peers_->CallerOf(context);
  if (!caller.ok()) return caller;
  if (absl::Status fits = CheckSaidVersion(context, "dgxrun"); !fits.ok()) return fits;
  if (!job.empty() && !IsValidName(job)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CEscape(job), "\" is no job id or name"));
  }
  return caller;
}

void ControlService::FinishLater(grpc::ServerUnaryReactor* reactor, absl::Status status) {
  loop_->Post([reactor, status = std::move(status)] { reactor->Finish(ToGrpc(status)); });
}

grpc::ServerUnaryReactor* ControlService::Info(grpc::CallbackServerContext* context,
                                               const v1::InfoRequest* request, v1::ControllerInfo* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<core::Caller> caller = CallerFor(*context, "");
  absl::Status status = caller.status();
  if (status.ok() && request->has_version()) status = CheckWireVersion(request->version(), "dgxrun");
  if (!status.ok()) {
    FinishLater(reactor, status);
    return reactor;
  }
  engine_->Query(
      [this, reactor, reply](const core::State& state, const core::Contacts& contacts, absl::Time) {
        *reply->mutable_version() = OurWireVersion();
        reply->set_cluster_name(contacts.config.cluster_name);
        reply->set_cluster_id(state.cluster_id);
        reply->set_term(state.term);
        uint32_t up = 0;
        for (const auto& [id, node] : state.nodes) {
          if (node->phase == core::NodePhase::kUp && core::IsConnected(contacts, id)) ++up;
        }
        reply->set_nodes_up(up);
        FinishLater(reactor, absl::OkStatus());
      });
  return reactor;
}

void ControlService::SubmitFor(const core::Caller& caller, const v1::SubmitRequest& request,
                               std::function<void(absl::Status, v1::SubmitReply)> done) {
  absl::Status status = core::Authorize(caller, core::Verb::kSubmit, nullptr);
  if (status.ok()) status = CheckSubmit(request);
  if (!status.ok()) return done(std::move(status), v1::SubmitReply());
  std::string environment = request.environment().SerializeAsString();
  core::SubmitJob submit{0, caller, request.key(), CompleteSpec(request, caller, environment)};
  engine_->Submit(std::move(submit), std::move(environment),
                  [this, caller, done = std::move(done)](const core::Answer& answer) {
                    v1::SubmitReply reply;
                    if (!answer.status.ok()) return done(answer.status, std::move(reply));
                    reply.set_job_id(answer.job.str());
                    engine_->FindStatus(
                        caller, core::Verb::kSee, answer.job.str(),
                        [reply = std::move(reply), done](absl::StatusOr<v1::JobStatus> job) mutable {
                          if (job.ok()) {
                            reply.set_nodes(job->nodes_wanted());
                            reply.set_ranks_per_node(job->ranks_per_node());
                            reply.set_on_cpu(job->on_cpu());
                          }
                          done(job.status(), std::move(reply));
                        });
                  });
}

grpc::ServerUnaryReactor* ControlService::Submit(grpc::CallbackServerContext* context,
                                                 const v1::SubmitRequest* request, v1::SubmitReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<core::Caller> caller = CallerFor(*context, "");
  if (!caller.ok()) {
    FinishLater(reactor, caller.status());
    return reactor;
  }
  SubmitFor(*caller, *request, [this, reactor, reply](absl::Status status, v1::SubmitReply answer) {
    if (status.ok()) *reply = std::move(answer);
    FinishLater(reactor, std::move(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::Status(grpc::CallbackServerContext* context,
                                                 const v1::StatusRequest* request, v1::JobStatus* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<core::Caller> caller = CallerFor(*context, request->job());
  if (!caller.ok()) {
    FinishLater(reactor, caller.status());
    return reactor;
  }
  engine_->FindStatus(*caller, core::Verb::kSee, request->job(),
                      [this, reactor, reply](absl::StatusOr<v1::JobStatus> job) {
                        if (job.ok()) *reply = *std::move(job);
                        FinishLater(reactor, job.status());
                      });
  return reactor;
}

void ControlService::StopFor(const core::Caller& caller, const v1::StopRequest& request,
                             std::function<void(absl::Status, v1::StopReply)> done) {
  if (request.has_grace() && request.grace_ms() > kMaxGraceMs) {
    return done(absl::InvalidArgumentError("the grace time is longer than a day"), v1::StopReply());
  }
  core::StopJob stop;
  stop.caller = caller;
  stop.has_grace = request.has_grace();
  stop.grace = absl::Milliseconds(request.grace_ms());
  stop.reason = request.reason();
  const auto tell = [this, caller, done](const JobId& job) {
    engine_->FindStatus(caller, core::Verb::kSee, job.str(), [done](absl::StatusOr<v1::JobStatus> s) {
      v1::StopReply reply;
      if (s.ok()) *reply.mutable_status() = *std::move(s);
      done(s.status(), std::move(reply));
    });
  };
  engine_->FindStatus(caller, core::Verb::kStop, request.job(),
                      [this, stop, tell, done](absl::StatusOr<v1::JobStatus> job) mutable {
                        if (!job.ok()) return done(job.status(), v1::StopReply());
                        stop.job = JobId(job->job_id());
                        if (core::IsEnded(job->state())) return tell(stop.job);
                        const JobId id = stop.job;
                        engine_->Stop(std::move(stop), [id, tell, done](const core::Answer& answer) {
                          if (!answer.status.ok()) return done(answer.status, v1::StopReply());
                          tell(id);
                        });
                      });
}

grpc::ServerUnaryReactor* ControlService::Stop(grpc::CallbackServerContext* context,
                                               const v1::StopRequest* request, v1::StopReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<core::Caller> caller = CallerFor(*context, request->job());
  if (!caller.ok()) {
    FinishLater(reactor, caller.status());
    return reactor;
  }
  StopFor(*caller, *request, [this, reactor, reply](absl::Status status, v1::StopReply answer) {
    if (status.ok()) *reply = std::move(answer);
    FinishLater(reactor, std::move(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::FenceNode(grpc::CallbackServerContext* context,
                                                    const v1::FenceNodeRequest* request,
                                                    v1::NodeInfo* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<core::Caller> caller = CallerFor(*context, request->node());
  if (!caller.ok()) {
    FinishLater(reactor, caller.status());
    return reactor;
  }
  core::FenceNode fence;
  fence.caller = *caller;
  fence.node = request->node();
  engine_->Fence(
      std::move(fence), [this, reactor, reply, name = request->node()](const core::Answer& answer) {
        if (!answer.status.ok()) return FinishLater(reactor, answer.status);
        engine_->Query([this, reactor, reply, name](const core::State& state, const core::Contacts& contacts,
                                                    absl::Time now) {
          for (const auto& [id, node] : state.nodes) {
            if (id.str() == name || node->name == name) *reply = core::DescribeNode(state, contacts, id, now);
          }
          FinishLater(reactor, absl::OkStatus());
        });
      });
  return reactor;
}

grpc::ServerWriteReactor<v1::JobStatus>* ControlService::Watch(grpc::CallbackServerContext* context,
                                                               const v1::WatchRequest* request) {
  std::shared_ptr<ListStream<v1::JobStatus>> stream = ListStream<v1::JobStatus>::Make(loop_);
  absl::StatusOr<core::Caller> caller = CallerFor(*context, request->job());
  if (!caller.ok()) {
    SendAll(stream, loop_, caller.status(), std::vector<v1::JobStatus>());
    return stream.get();
  }
  engine_->FindStatus(
      *caller, core::Verb::kSee, request->job(), [this, stream](absl::StatusOr<v1::JobStatus> job) {
        if (!job.ok() || core::IsEnded(job->state())) {
          std::vector<v1::JobStatus> last;
          if (job.ok()) last.push_back(*job);
          return SendAll(stream, loop_, job.status(), std::move(last));
        }
        std::weak_ptr<ListStream<v1::JobStatus>> weak = stream;
        const uint64_t watch =
            engine_->WatchJob(JobId(job->job_id()), [weak, loop = loop_](const v1::JobStatus& now) {
              loop->Post([weak, now] {
                std::shared_ptr<ListStream<v1::JobStatus>> self = weak.lock();
                if (self == nullptr) return;
                self->Push(now, true);
                if (core::IsEnded(now.state())) self->Close(grpc::Status::OK);
              });
            });
        loop_->Post(
            [this, stream, watch] { stream->set_on_end([this, watch] { engine_->Unwatch(watch); }); });
      });
  return stream.get();
}

grpc::ServerWriteReactor<v1::JobStatus>* ControlService::Jobs(grpc::CallbackServerContext* context,
                                                              const v1::JobsRequest* request) {
  std::shared_ptr<ListStream<v1::JobStatus>> stream = ListStream<v1::JobStatus>::Make(loop_);
  absl::StatusOr<core::Caller> caller = CallerFor(*context, "");
  if (!caller.ok()) {
    SendAll(stream, loop_, caller.status(), std::vector<v1::JobStatus>());
    return stream.get();
  }
  const uint32_t limit = request->limit() == 0 ? kDefaultJobs : std::min(request->limit(), kMaxJobs);
  engine_->ListJobs(*caller, limit, [this, stream](absl::StatusOr<std::vector<v1::JobStatus>> jobs) {
    absl::Status status = jobs.status();
    SendAll(stream, loop_, std::move(status), jobs.ok() ? *std::move(jobs) : std::vector<v1::JobStatus>());
  });
  return stream.get();
}

grpc::ServerWriteReactor<v1::NodeInfo>* ControlService::Nodes(grpc::CallbackServerContext* context,
                                                              const v1::NodesRequest*) {
  std::shared_ptr<ListStream<v1::NodeInfo>> stream = ListStream<v1::NodeInfo>::Make(loop_);
  absl::StatusOr<core::Caller> caller = CallerFor(*context, "");
  absl::Status status = caller.status();
  if (status.ok()) status = core::Authorize(*caller, core::Verb::kSeeNodes, nullptr);
  if (!status.ok()) {
    SendAll(stream, loop_, std::move(status), std::vector<v1::NodeInfo>());
    return stream.get();
  }
  engine_->Query([this, stream](const core::State& state, const core::Contacts& contacts, absl::Time now) {
    std::vector<v1::NodeInfo> nodes;
    for (const auto& [id, node] : state.nodes) nodes.push_back(core::DescribeNode(state, contacts, id, now));
    std::sort(nodes.begin(), nodes.end(),
              [](const v1::NodeInfo& a, const v1::NodeInfo& b) { return NaturalLess(a.name(), b.name()); });
    SendAll(stream, loop_, absl::OkStatus(), std::move(nodes));
  });
  return stream.get();
}

grpc::ServerWriteReactor<v1::OutputChunk>* ControlService::Logs(grpc::CallbackServerContext* context,
                                                                const v1::LogsRequest* request) {
  auto stream = std::make_shared<LogsStream>(engine_, tails_, loop_, *request);
  LogsStream* raw = stream.get();
  raw->Start(CallerFor(*context, request->job()));
  return raw;
}

}  // namespace dgxrun
