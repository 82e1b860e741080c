#include "controller/outbox.h"

#include "spdlog/spdlog.h"

namespace dgxrun {

bool Outbox::AlreadySent(const core::SendToNode& message) {
  Sent& sent = sent_[message.node];
  if (sent.connection != message.connection) sent = Sent{message.connection};
  std::string bytes = message.message.SerializeAsString();
  std::string& last = sent.last[Key(message.kind, message.job, message.attempt)];
  if (last == bytes) return true;
  last = std::move(bytes);
  return false;
}

const v1::Environment* Outbox::EnvironmentOf(const JobId& job) {
  if (job == cached_job_ || environments_of_nodes_) return &cached_;
  absl::StatusOr<std::string> bytes = environments_.Read(job);
  v1::Environment environment;
  if (!bytes.ok() || !environment.ParseFromString(*bytes)) {
    lost_(job, bytes.ok() ? "its environment is damaged" : std::string(bytes.status().message()));
    return nullptr;
  }
  cached_job_ = job;
  cached_ = std::move(environment);
  return &cached_;
}

void Outbox::Send(const core::SendToNode& message) {
  using Kind = core::SendToNode::Kind;
  v1::ControllerMsg out = message.message;
  switch (message.kind) {
    case Kind::kHeartbeatAnswer:
    case Kind::kAck:
    case Kind::kWelcome:
    case Kind::kRefuse:
    case Kind::kStop:
    case Kind::kCommittee:
    case Kind::kRemove:
      if (AlreadySent(message)) return;
      break;
    case Kind::kForget:
      if (AlreadySent(message)) return;
      if (cached_job_ == message.job) {
        cached_job_ = JobId();
        cached_ = v1::Environment();
      }
      break;
    case Kind::kPrepare: {
      if (AlreadySent(message)) return;
      const v1::Environment* environment = EnvironmentOf(message.job);
      if (environment == nullptr) return;
      for (const v1::EnvVar& var : environment->vars()) {
        if (var.name() == "PATH") out.mutable_prepare()->set_path(var.value());
      }
      break;
    }
    case Kind::kLaunch: {
      if (AlreadySent(message)) return;
      const v1::Environment* environment = EnvironmentOf(message.job);
      if (environment == nullptr) return;
      *out.mutable_launch()->mutable_environment() = *environment;
      break;
    }
  }
  streams_->SendOn(message.connection, std::move(out), message.kind == Kind::kRefuse);
}

}  // namespace dgxrun
