#include "controller/controller.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/agent_service.h"
#include "controller/control_service.h"
#include "controller/engine.h"
#include "controller/in_process.h"
#include "controller/outbox.h"
#include "controller/peers.h"
#include "controller/tail_router.h"
#include "controller/unix_listener.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"
#include "launcher/base/event_loop.h"
#include "proto/rpc/wire_version.h"
#include "spdlog/spdlog.h"

namespace dgxrun {
namespace {

// Calls that are being answered get this long; then they are cancelled.
constexpr auto kShutdownGrace = std::chrono::milliseconds(50);

absl::Status CheckOptions(const ControllerOptions& options) {
  if (options.state_dir.empty()) {
    return absl::InvalidArgumentError("no state folder: set [controller] state_dir");
  }
  if (!options.listen_address.empty() && options.tls.empty() && options.pems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.listen_address,
                     ": a network port needs [tls]; `dgxrun cluster init DIR` makes certificates"));
  }
  return absl::OkStatus();
}

// gRPC says only that it failed; the kernel says why.
absl::Status CheckAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : listen.substr(colon + 1);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0)
    return absl::InvalidArgumentError(absl::StrCat("listen ", listen, ": ", gai_strerror(error)));
  UniqueFd probe(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool free =
      bind(probe.get(), found->ai_addr, found->ai_addrlen) == 0 && ::listen(probe.get(), 1) == 0;
  const int why = errno;
  freeaddrinfo(found);
  if (free) return absl::OkStatus();
  if (why == EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat(
        "listen ", listen, ": the port is in use (another controller?); `ss -ltnp` says by whom"));
  }
  return absl::InvalidArgumentError(absl::StrCat("listen ", listen, ": ", strerror(why)));
}

// The wires of a controller. Members are built from the top to the bottom and taken down in reverse.
class ControllerImpl : public Controller {
 public:
  explicit ControllerImpl(ControllerOptions options)
      : options_(std::move(options)),
        agents_(&loop_, &peers_),
        tails_(&loop_, &agents_),
        outbox_(
            EnvironmentStore(options_.state_dir + "/env", options_.durable), &agents_,
            [this](const JobId& job, const std::string& why) { GiveUp(job, why); },
            /*environments_of_nodes=*/options_.peers.has_value()) {
    if (options_.peers) peers_.AllowPeers();
  }
  ~ControllerImpl() override;

  absl::Status Begin();
  InProcess& in_process() override { return *in_process_; }
  std::shared_ptr<grpc::Channel> InProcessChannel() override {
    return NeedServer()->InProcessChannel(ClientArguments(false));
  }
  std::string listening_on() const override { return listening_on_; }

 private:
  absl::Status StartEngine();
  absl::Status Listen();
  grpc::Server* NeedServer();
  void PrepareServer(grpc::ServerBuilder* builder);
  void GiveUp(const JobId& job, const std::string& why);

  const ControllerOptions options_;
  std::string listening_on_;
  EventLoop loop_;
  Peers peers_;
  AgentService agents_;
  TailRouter tails_;
  Outbox outbox_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<InProcess> in_process_;
  std::mutex server_mutex_;
  std::unique_ptr<grpc::Server> server_;  // made under server_mutex_; null: nobody has needed it yet
  bool closing_ = false;                  // under server_mutex_
  std::unique_ptr<UnixListener> unix_listener_;
  std::thread loop_thread_;
};

absl::Status ControllerImpl::StartEngine() {
  EngineOptions options;
  options.state_dir = options_.state_dir;
  options.durable = options_.durable;
  options.config.cluster_name = options_.cluster_name;
  options.config.heartbeat = absl::Milliseconds(options_.heartbeat_ms);
  options.config.node_lease = absl::Milliseconds(options_.node_lease_ms);
  options.config.isolation_timeout = absl::Milliseconds(options_.isolation_timeout_ms);
  options.config.orphan_timeout = absl::Milliseconds(options_.orphan_timeout_ms);
  options.config.nccl = options_.nccl;
  options.config.version = OurWireVersion();
  options.config.peers = options_.peers;
  // In local mode the one node says its hello while the job is being submitted.
  options.config.node_comes_with_job = !options_.durable;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Start(std::move(options), &outbox_);
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  agents_.Wire(engine_.get(), &tails_);
  control_ = std::make_unique<ControlService>(engine_.get(), &peers_, &tails_, &loop_);
  in_process_ =
      std::make_unique<InProcess>(engine_.get(), &agents_, control_.get(), &peers_, &tails_, &loop_);
  return absl::OkStatus();
}

absl::Status ControllerImpl::Listen() {
  std::vector<std::string> places;
  if (!options_.unix_socket.empty()) places.push_back("unix:" + options_.unix_socket);
  if (!options_.listen_address.empty()) {
    grpc::ServerBuilder builder;
    PrepareServer(&builder);
    absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> tls = ServerTls(options_.pems);
    if (options_.pems.empty()) tls = ServerTls(options_.tls);
    if (!tls.ok()) return tls.status();
    absl::Status free = CheckAddress(options_.listen_address);
    if (!free.ok()) return free;
    int port = -1;
    builder.AddListeningPort(options_.listen_address, *tls, &port);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port <= 0) {
      return absl::AlreadyExistsError(
          absl::StrCat("listen ", options_.listen_address, ": the port cannot be had"));
    }
    places.push_back(
        absl::StrCat(options_.listen_address.substr(0, options_.listen_address.rfind(':')), ":", port));
  }
  listening_on_ = absl::StrJoin(places, ", ");
  return absl::OkStatus();
}

// Without a port of its own, a server has nothing to fail on. Null: the controller is being taken down.
grpc::Server* ControllerImpl::NeedServer() {
  std::lock_guard<std::mutex> lock(server_mutex_);
  if (server_ == nullptr && !closing_) {
    grpc::ServerBuilder builder;
    PrepareServer(&builder);
    server_ = builder.BuildAndStart();
  }
  return server_.get();
}

void ControllerImpl::PrepareServer(grpc::ServerBuilder* builder) {
  SetServerArguments(builder);
  builder->RegisterService(&agents_);
  builder->RegisterService(control_.get());
}

absl::Status ControllerImpl::Begin() {
  absl::Status status = CheckOptions(options_);
  if (!status.ok()) return status;
  // The socket before the log: two controllers of one user meet there, and that error says more.
  if (!options_.unix_socket.empty()) {
    absl::StatusOr<std::unique_ptr<UnixListener>> listener =
        UnixListener::Open(options_.unix_socket, options_.any_user);
    if (!listener.ok()) return listener.status();
    unix_listener_ = *std::move(listener);
  }
  status = StartEngine();
  if (status.ok()) status = Listen();
  if (!status.ok()) return status;
  if (unix_listener_ != nullptr) {
    unix_listener_->StartAccepting(&loop_, [this](UniqueFd connection) {
      const absl::Time now = absl::FromUnixNanos(EventLoop::BoottimeNs());
      absl::StatusOr<UniqueFd> admitted = peers_.Admit(std::move(connection), now);
      if (admitted.ok()) {
        grpc::Server* server = NeedServer();
        if (server != nullptr) grpc::AddInsecureChannelFromFd(server, admitted->Release());
      } else {
        spdlog::warn("controller: a connection was refused: {}", std::string(admitted.status().message()));
      }
    });
  }
  loop_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "controller-loop");
    loop_.Run();
  });
  return absl::OkStatus();
}

void ControllerImpl::GiveUp(const JobId& job, const std::string& why) {
  spdlog::error("controller: job {} cannot start: {}", job.str(), why);
  core::StopJob stop;
  stop.caller.admin = true;
  stop.caller.user = "dgxrun";
  stop.job = job;
  stop.reason = absl::StrCat("its environment is lost: ", why);
  engine_->Stop(std::move(stop), nullptr);
}

ControllerImpl::~ControllerImpl() {
  if (loop_thread_.joinable() && unix_listener_ != nullptr) {
    loop_.Post([this] { unix_listener_->StopAccepting(); });
  }
  // While the loop still runs: the streams end on it. Agents' streams never end by themselves.
  agents_.CloseAllStreams();
  {
    std::lock_guard<std::mutex> lock(server_mutex_);
    closing_ = true;
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  }
  // Its last callbacks post to the loop, so it ends first; then the loop drops what was posted.
  engine_.reset();
  if (loop_thread_.joinable()) {
    loop_.Post([this] { loop_.Quit(); });
    loop_thread_.join();
  }
  unix_listener_.reset();
  server_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(ControllerOptions options) {
  auto controller = std::make_unique<ControllerImpl>(std::move(options));
  absl::Status status = controller->Begin();
  if (!status.ok()) return status;
  return std::unique_ptr<Controller>(std::move(controller));
}

}  // namespace dgxrun
