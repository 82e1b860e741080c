#include "agent/witness.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/server_callback.h"
#include "proto/lease_rule.h"

namespace dgxrun::agent {

// Reactors by the number of their question. gRPC's threads add, the agent's thread takes.
class WitnessServer::Service final : public v1::Witness::CallbackService {
 public:
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const v1::WitnessQuestion* question,
                                v1::WitnessAnswer* answer) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    std::lock_guard<std::mutex> lock(mutex_);
    if (inbox_ == nullptr || waiting_.size() >= kMaxWaiting) {
      reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this agent cannot answer now"));
      return reactor;
    }
    const uint64_t id = ++last_id_;
    waiting_[id] = {reactor, answer};
    inbox_->Post([asked = asked_, id, question = *question] { (*asked)(WitnessAsked{id, question}); });
    return reactor;
  }

  void Serve(std::shared_ptr<LoopInbox> inbox, std::function<void(WitnessAsked)> asked) {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_ = std::move(inbox);
    asked_ = std::make_shared<std::function<void(WitnessAsked)>>(std::move(asked));
  }

  void Answer(const AnswerWitness& action) {
    Waiting waiting;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto it = waiting_.find(action.question_id);
      if (it == waiting_.end()) return;
      waiting = it->second;
      waiting_.erase(it);
    }
    *waiting.answer = action.answer;
    waiting.reactor->Finish(grpc::Status::OK);
  }

  void Close() {
    std::map<uint64_t, Waiting> waiting;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      inbox_.reset();
      waiting.swap(waiting_);
    }
    for (auto& [id, one] : waiting) {
      one.reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this agent ends"));
    }
  }

 private:
  struct Waiting {
    grpc::ServerUnaryReactor* reactor = nullptr;
    v1::WitnessAnswer* answer = nullptr;
  };
  std::mutex mutex_;
  std::shared_ptr<LoopInbox> inbox_;                          // under mutex_; null: not serving
  std::shared_ptr<std::function<void(WitnessAsked)>> asked_;  // under mutex_
  std::map<uint64_t, Waiting> waiting_;                       // under mutex_
  uint64_t last_id_ = 0;                                      // under mutex_
};

WitnessServer::WitnessServer() : service_(std::make_unique<Service>()) {}

WitnessServer::~WitnessServer() {
  service_->Close();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

absl::StatusOr<std::unique_ptr<WitnessServer>> WitnessServer::Listen(const WitnessPlace& place) {
  std::unique_ptr<WitnessServer> made(new WitnessServer());
  grpc::ServerBuilder builder;
  SetServerArguments(&builder);
  int port = 0;
  std::string where;
  if (!place.path.empty()) {
    unlink(place.path.c_str());  // of an agent that was killed; the state folder's lock says that none lives
    where = absl::StrCat("unix:", place.path);
    builder.AddListeningPort(where, grpc::InsecureServerCredentials());
    made->path_ = place.path;
  } else {
    absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> credentials = ServerTls(place.tls);
    if (!credentials.ok()) return credentials.status();
    where = absl::StrCat("[::]:", place.port);
    builder.AddListeningPort(where, *credentials, &port);
  }
  builder.RegisterService(made->service_.get());
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", where, " to bear witness"));
  }
  made->port_ = static_cast<uint32_t>(port);
  return made;
}

void WitnessServer::Serve(std::shared_ptr<LoopInbox> inbox, std::function<void(WitnessAsked)> asked) {
  service_->Serve(std::move(inbox), std::move(asked));
}

void WitnessServer::Answer(const AnswerWitness& action) { service_->Answer(action); }

WitnessCalls::WitnessCalls(std::shared_ptr<LoopInbox> inbox, TlsFiles tls,
                           std::function<void(WitnessAnswered)> answered)
    : inbox_(std::move(inbox)),
      tls_(std::move(tls)),
      answered_(std::make_shared<std::function<void(WitnessAnswered)>>(std::move(answered))) {}

void WitnessCalls::Ask(const AskCommittee& action, const v1::WitnessQuestion& question) {
  // Lives until its answer, which may come after this object; so it owns all that gRPC points to.
  struct Call {
    grpc::ClientContext context;
    v1::WitnessQuestion question;
    v1::WitnessAnswer answer;
    std::unique_ptr<v1::Witness::Stub> stub;
  };
  for (const v1::CommitteeMember& member : action.members) {
    std::shared_ptr<grpc::Channel>& channel = channels_[member.target()];
    if (channel == nullptr) {
      absl::StatusOr<std::shared_ptr<grpc::Channel>> dialled = DialAgent(member.target(), tls_);
      if (!dialled.ok()) continue;
      channel = *std::move(dialled);
    }
    auto call = std::make_shared<Call>();
    call->question = question;
    call->stub = v1::Witness::NewStub(channel);
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(kWitnessAnswerNs));
    call->stub->async()->Ask(
        &call->context, &call->question, &call->answer,
        [call, inbox = inbox_, answered = answered_, round = action.round](const grpc::Status& status) {
          if (!status.ok()) return;
          inbox->Post([call, answered, round] { (*answered)(WitnessAnswered{round, call->answer}); });
        });
  }
}

}  // namespace dgxrun::agent
