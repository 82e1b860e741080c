// wire_proxy --listen unix:A --dial unix:B [--wire FILE --say MAJOR.MINOR] [--log FILE]
//
// Stands between agents or clients (which dial A) and a controller (at B). With --wire it makes each of them
// believe that the other is of another release: every message passes through OldWire, both ways, and the
// version that a client says with its calls is that release's (1.0 said none). Without, messages pass as they
// are. With
// --log each message is a line (wire_log.h). Prints "ready" when it listens; ends with SIGTERM.
//
// Each call is one Call: the reactor that serves the client and the reactor that calls the controller. Every
// kind of call is passed on as a stream of bytes, one message at a time in each direction.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <stdio.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "proto/rpc/credentials.h"
#include "proto/rpc/wire_version.h"
#include "tests/contract/old_wire.h"
#include "tests/contract/wire_log.h"

namespace dgxrun {
namespace {

constexpr char kSaysNoVersion[] = "1.0";  // of calls; the release that came before

std::string Bytes(grpc::ByteBuffer* buffer) {
  grpc::Slice slice;
  if (!buffer->TrySingleSlice(&slice).ok()) (void)buffer->DumpToSingleSlice(&slice);
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// What holds for all calls.
struct Settings {
  std::unique_ptr<OldWire> wire;  // null: messages pass as they are
  std::string say;
  std::unique_ptr<WireLog> log;  // null: none
};

class Call;

// Towards the controller. `open_`: it may be given work; the hold that allows this is dropped with it.
class Upstream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Upstream(std::shared_ptr<Call> call, std::string method)
      : call_(std::move(call)), method_(std::move(method)) {}

  // `version`: as the caller said it in its metadata; empty: it did not.
  void Begin(grpc::GenericStub* stub, std::chrono::system_clock::time_point deadline,
             const std::string& version);
  void Write(grpc::ByteBuffer message);
  void NoMoreWrites();
  void ReadNext();
  void Cancel();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  std::shared_ptr<Call> call_;
  const std::string method_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  bool open_ = true;
  grpc::ByteBuffer reading_, writing_;
};

// Towards the agent or client.
class Downstream final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Downstream(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  void Write(grpc::ByteBuffer message);
  void ReadNext() { StartRead(&reading_); }
  void End(const grpc::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  std::shared_ptr<Call> call_;
  std::mutex mutex_;
  bool writing_now_ = false, ended_ = false;
  std::unique_ptr<grpc::Status> end_;  // waits for the write under way
  grpc::ByteBuffer reading_, writing_;
};

// Lives as long as one of its halves.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(const Settings& settings, std::string method) : settings(settings), method(std::move(method)) {}

  // A message as the other side shall hear it.
  absl::StatusOr<std::string> Pass(bool request, const std::string& bytes) {
    if (settings.log != nullptr) settings.log->Note(method, request, bytes);
    if (settings.wire == nullptr) return bytes;
    return request ? settings.wire->Request(method, bytes) : settings.wire->Reply(method, bytes);
  }

  const Settings& settings;
  const std::string method;
  std::unique_ptr<Downstream> downstream;
  std::unique_ptr<Upstream> upstream;
};

void Upstream::Begin(grpc::GenericStub* stub, std::chrono::system_clock::time_point deadline,
                     const std::string& version) {
  context_.set_deadline(deadline);
  if (!version.empty()) context_.AddMetadata(kWireVersionKey, version);
  stub->PrepareBidiStreamingCall(&context_, method_, grpc::StubOptions(), this);
  AddHold();
  StartRead(&reading_);
  StartCall();
}

void Upstream::Write(grpc::ByteBuffer message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!open_) return;
  writing_ = std::move(message);
  StartWrite(&writing_);
}

void Upstream::NoMoreWrites() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (open_) StartWritesDone();
}

void Upstream::ReadNext() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (open_) StartRead(&reading_);
}

void Upstream::Cancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  context_.TryCancel();
  if (std::exchange(open_, false)) RemoveHold();
}

void Upstream::OnReadDone(bool ok) {
  if (!ok) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(open_, false)) RemoveHold();
    return;
  }
  const absl::StatusOr<std::string> reply = call_->Pass(/*request=*/false, Bytes(&reading_));
  if (!reply.ok()) return Cancel();
  call_->downstream->Write(Buffer(*reply));
}

void Upstream::OnWriteDone(bool ok) {
  if (ok) call_->downstream->ReadNext();
}

void Upstream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<Call> call = std::move(call_);  // ends with this function, perhaps
  call->downstream->End(status);
}

void Downstream::Write(grpc::ByteBuffer message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return;
  writing_now_ = true;
  writing_ = std::move(message);
  StartWrite(&writing_);
}

void Downstream::End(const grpc::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(ended_, true)) return;
  if (writing_now_) {
    end_ = std::make_unique<grpc::Status>(status);
  } else {
    Finish(status);
  }
}

void Downstream::OnReadDone(bool ok) {
  if (!ok) return call_->upstream->NoMoreWrites();
  const absl::StatusOr<std::string> request = call_->Pass(/*request=*/true, Bytes(&reading_));
  if (!request.ok()) return call_->upstream->Cancel();
  call_->upstream->Write(Buffer(*request));
}

void Downstream::OnWriteDone(bool ok) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_now_ = false;
    if (end_ != nullptr) return Finish(*end_);
  }
  if (ok) {
    call_->upstream->ReadNext();
  } else {
    call_->upstream->Cancel();
  }
}

void Downstream::OnCancel() {
  if (call_->upstream != nullptr) call_->upstream->Cancel();
}

void Downstream::OnDone() { const std::shared_ptr<Call> call = std::move(call_); }

class Proxy final : public grpc::CallbackGenericService {
 public:
  Proxy(const Settings& settings, std::shared_ptr<grpc::Channel> channel)
      : settings_(settings), stub_(std::move(channel)) {}

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    auto call = std::make_shared<Call>(settings_, context->method());
    call->downstream = std::make_unique<Downstream>(call);
    // A method that the old release has not: as its server would say.
    const bool known =
        settings_.wire == nullptr ||
        settings_.wire->Request(call->method, "").status().code() != absl::StatusCode::kNotFound;
    if (!known) {
      call->downstream->End(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, call->method));
      return call->downstream.get();
    }
    call->upstream = std::make_unique<Upstream>(call, call->method);
    call->upstream->Begin(&stub_, context->deadline(), VersionOf(*context));
    call->downstream->ReadNext();
    return call->downstream.get();
  }

  std::string VersionOf(const grpc::GenericCallbackServerContext& context) const {
    const auto said = context.client_metadata().find(kWireVersionKey);
    if (said == context.client_metadata().end() || settings_.say == kSaysNoVersion) return "";
    return settings_.wire == nullptr ? std::string(said->second.data(), said->second.size())
                                     : settings_.say + " another";
  }

  const Settings& settings_;
  grpc::GenericStub stub_;
};

int Fail(const std::string& why) {
  fprintf(stderr, "wire_proxy: %s\n", why.c_str());
  return EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);  // before any thread starts
  std::string listen, dial, wire_file, log_file;
  Settings settings;
  CLI::App app("Makes two ends believe that the other is of another release.");
  app.add_option("--listen", listen, "unix:/path to serve")->required();
  app.add_option("--dial", dial, "unix:/path of the controller")->required();
  app.add_option("--wire", wire_file, "the other release's descriptors (wire_1_0.pb)");
  app.add_option("--say", settings.say, "the version that both ends hear: MAJOR.MINOR");
  app.add_option("--log", log_file, "a line for each message");
  CLI11_PARSE(app, argc, argv);
  if (!wire_file.empty()) {
    unsigned major = 0, minor = 0;
    if (sscanf(settings.say.c_str(), "%u.%u", &major, &minor) != 2) return Fail("--say wants MAJOR.MINOR");
    absl::StatusOr<std::unique_ptr<OldWire>> wire = OldWire::Load(wire_file, major, minor);
    if (!wire.ok()) return Fail(wire.status().ToString());
    settings.wire = *std::move(wire);
  }
  if (!log_file.empty()) {
    absl::StatusOr<std::unique_ptr<WireLog>> log = WireLog::Open(log_file);
    if (!log.ok()) return Fail(log.status().ToString());
    settings.log = *std::move(log);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Dial(dial, TlsFiles(), /*bulk=*/false);
  if (!channel.ok()) return Fail(channel.status().ToString());
  Proxy proxy(settings, *channel);
  grpc::ServerBuilder builder;
  SetServerArguments(&builder);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&proxy);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Fail("cannot listen on " + listen);
  printf("ready\n");
  fflush(stdout);
  int signal_number = 0;
  sigwait(&end, &signal_number);
  server->Shutdown(std::chrono::system_clock::now());
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace dgxrun

int main(int argc, char** argv) { return dgxrun::Main(argc, argv); }
