#include "cli/client.h"

#include <stdlib.h>

#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/render.h"
#include "grpcpp/client_context.h"
#include "proto/rpc/credentials.h"
#include "proto/rpc/status.h"
#include "proto/rpc/wire_version.h"

namespace dgxrun::cli {
namespace {

constexpr int kSubmitTries = 3;  // a controller that is being restarted is back within one of them

// Of every call with a time limit; streams that an event loop reads have none.
void SetUp(grpc::ClientContext* context, absl::Duration limit) {
  SayWireVersion(context);
  context->set_deadline(absl::ToChronoTime(absl::Now() + limit));
}

}  // namespace

Client::Client(std::shared_ptr<grpc::Channel> channel, std::string where)
    : channel_(std::move(channel)), stub_(v1::Control::NewStub(channel_)), where_(std::move(where)) {}

absl::StatusOr<Client> Client::Connect(const ClusterFile& cluster) {
  // Read when gRPC begins. Its own lines are for its developers; what concerns a user is in our one line.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const TlsFiles tls{cluster.tls_ca, cluster.tls_cert, cluster.tls_key};
  auto channel = Dial(cluster.controller, tls, /*bulk=*/false);
  if (!channel.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(cluster.path, ": ", std::string(channel.status().message())));
  }
  return Client(*std::move(channel), absl::StrCat("cluster ", cluster.name, " (", cluster.controller, ")"));
}

absl::StatusOr<Client> Client::ConnectLocal(const std::string& socket_path) {
  auto channel = Dial("unix:" + socket_path, TlsFiles(), /*bulk=*/false);
  if (!channel.ok()) return channel.status();
  return Client(*std::move(channel), "the local job");
}

absl::Status Client::Explain(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        absl::StrCat(where_, " does not answer; is its controller's machine up and the port open?"));
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      absl::StrContains(status.error_message(), "certificate verify failed")) {
    return absl::UnauthenticatedError(absl::StrCat(
        where_, ": its certificate is not of the authority that [tls] ca of the cluster file names; ",
        "is this the right controller, and the right ca?"));
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(
        absl::StrCat(where_, " cannot be reached: ", Printable(status.error_message())));
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), Printable(status.error_message()));
}

absl::StatusOr<v1::ControllerInfo> Client::Info() {
  grpc::ClientContext context;
  SetUp(&context, kAnswerLimit);
  v1::InfoRequest request;
  *request.mutable_version() = OurWireVersion();
  v1::ControllerInfo reply;
  if (const grpc::Status status = stub_->Info(&context, request, &reply); !status.ok())
    return Explain(status);
  return reply;
}

absl::StatusOr<v1::SubmitReply> Client::SubmitHere(const v1::SubmitRequest& request) {
  // Shared: the future may be read before set_value has returned.
  auto answer = std::make_shared<std::promise<absl::StatusOr<v1::SubmitReply>>>();
  here_->Submit(request, [answer](absl::Status status, v1::SubmitReply reply) {
    answer->set_value(status.ok() ? absl::StatusOr<v1::SubmitReply>(std::move(reply)) : std::move(status));
  });
  return answer->get_future().get();
}

absl::StatusOr<v1::SubmitReply> Client::Submit(const v1::SubmitRequest& request) {
  if (here_ != nullptr) return SubmitHere(request);
  grpc::Status status;
  for (int i = 0; i < kSubmitTries; ++i) {
    grpc::ClientContext context;
    SetUp(&context, kSubmitLimit);
    context.set_wait_for_ready(i > 0);
    v1::SubmitReply reply;
    status = stub_->Submit(&context, request, &reply);
    if (status.ok()) return reply;
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  return Explain(status);
}

absl::StatusOr<v1::JobStatus> Client::Status(const std::string& job) {
  grpc::ClientContext context;
  SetUp(&context, kAnswerLimit);
  v1::StatusRequest request;
  request.set_job(job);
  v1::JobStatus reply;
  if (const grpc::Status status = stub_->Status(&context, request, &reply); !status.ok())
    return Explain(status);
  return reply;
}

absl::StatusOr<std::vector<v1::JobStatus>> Client::Jobs(uint32_t limit) {
  grpc::ClientContext context;
  SetUp(&context, kSubmitLimit);
  v1::JobsRequest request;
  request.set_limit(limit);
  auto reader = stub_->Jobs(&context, request);
  std::vector<v1::JobStatus> jobs;
  v1::JobStatus job;
  while (reader->Read(&job)) jobs.push_back(job);
  if (const grpc::Status status = reader->Finish(); !status.ok()) return Explain(status);
  return jobs;
}

absl::StatusOr<std::vector<v1::NodeInfo>> Client::Nodes() {
  grpc::ClientContext context;
  SetUp(&context, kSubmitLimit);
  auto reader = stub_->Nodes(&context, v1::NodesRequest());
  std::vector<v1::NodeInfo> nodes;
  v1::NodeInfo node;
  while (reader->Read(&node)) nodes.push_back(node);
  if (const grpc::Status status = reader->Finish(); !status.ok()) return Explain(status);
  return nodes;
}

absl::StatusOr<v1::NodeInfo> Client::FenceNode(const v1::FenceNodeRequest& request) {
  grpc::ClientContext context;
  SetUp(&context, kAnswerLimit);
  v1::NodeInfo reply;
  if (const grpc::Status status = stub_->FenceNode(&context, request, &reply); !status.ok())
    return Explain(status);
  return reply;
}

absl::StatusOr<v1::JobStatus> Client::Stop(const v1::StopRequest& request) {
  grpc::ClientContext context;
  SetUp(&context, kAnswerLimit);
  v1::StopReply reply;
  if (const grpc::Status status = stub_->Stop(&context, request, &reply); !status.ok())
    return Explain(status);
  return reply.status();
}

void Client::StopLater(const v1::StopRequest& request, std::function<void(const grpc::Status&)> done) {
  if (here_ != nullptr) {
    return here_->Stop(
        request, [done = std::move(done)](absl::Status status, v1::StopReply) { done(ToGrpc(status)); });
  }
  struct Call {
    grpc::ClientContext context;
    v1::StopRequest request;
    v1::StopReply reply;
  };
  auto call = std::make_shared<Call>();
  call->request = request;
  SetUp(&call->context, kAnswerLimit);
  stub_->async()->Stop(&call->context, &call->request, &call->reply,
                       [call, done = std::move(done)](grpc::Status status) { done(status); });
}

void Client::StartWatch(const v1::WatchRequest& request, StreamReader<v1::JobStatus>* reader) {
  if (here_ != nullptr) {
    return reader->StartHere(here_->Watch(
        request, [reader](const v1::JobStatus& status) { reader->Take(status, nullptr); },
        [reader](const grpc::Status& status) { reader->End(status); }));
  }
  SayWireVersion(reader->context());
  stub_->async()->Watch(reader->context(), &request, reader);
  reader->Start();
}

void Client::StartLogs(const v1::LogsRequest& request, StreamReader<v1::OutputChunk>* reader) {
  if (here_ != nullptr) {
    return reader->StartHere(here_->Logs(
        request,
        [reader](v1::OutputChunk chunk, std::function<void()> taken) {
          reader->Take(std::move(chunk), std::move(taken));
        },
        [reader](const grpc::Status& status) { reader->End(status); }));
  }
  SayWireVersion(reader->context());
  stub_->async()->Logs(reader->context(), &request, reader);
  reader->Start();
}

absl::StatusOr<v1::JobStatus> Client::WaitEnded(const std::string& job, absl::Duration limit) {
  grpc::ClientContext context;
  SetUp(&context, limit);
  v1::WatchRequest request;
  request.set_job(job);
  auto reader = stub_->Watch(&context, request);
  v1::JobStatus last, next;
  bool ended = false;
  while (!ended && reader->Read(&next)) {
    last = next;
    ended = HasEnded(last.state());
  }
  if (ended) {
    context.TryCancel();
    reader->Finish();
    return last;
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return Explain(status);
  return absl::UnavailableError(absl::StrCat(where_, " closed the connection before job ", job, " ended"));
}

}  // namespace dgxrun::cli
