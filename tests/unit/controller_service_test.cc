// A whole controller over its unix socket, in process and TLS, with a scripted agent.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "controller/controller.h"
#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "dgxrun/v1/control.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/rpc/wire_version.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

using ::testing::HasSubstr;
using Channel = std::shared_ptr<grpc::Channel>;
constexpr auto kDeadline = std::chrono::seconds(20);  // of anything that should take milliseconds
constexpr uid_t kOtherUid = 65534;

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kDeadline);
}

v1::SubmitRequest NewJob(const std::string& key) {
  v1::SubmitRequest request;
  request.set_key(key);
  request.mutable_spec()->set_name("train");
  request.mutable_spec()->set_nodes(1);
  request.mutable_spec()->set_ranks_per_node(1);
  request.mutable_spec()->set_device(v1::DEVICE_CPU);
  request.mutable_spec()->add_argv("true");
  request.mutable_spec()->set_cwd("/");
  request.mutable_spec()->set_grace_ms(30000);
  request.mutable_spec()->mutable_owner()->set_user("forged");
  v1::EnvVar* var = request.mutable_environment()->add_vars();
  var->set_name("API_KEY");
  var->set_value("s3cr3t");
  return request;
}

grpc::Status Submit(const Channel& channel, const v1::SubmitRequest& request, v1::SubmitReply* reply) {
  grpc::ClientContext context;
  SetDeadline(&context);
  return v1::Control::NewStub(channel)->Submit(&context, request, reply);
}
grpc::Status Status(const Channel& channel, const std::string& job, v1::JobStatus* reply) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::StatusRequest request;
  request.set_job(job);
  return v1::Control::NewStub(channel)->Status(&context, request, reply);
}

// A process of another account, forked before gRPC has started anything in this one. It is given the path
// of a socket and the id of somebody's job; it answers with what the controller told it.
class OtherAccount : public ::testing::Environment {
 public:
  void SetUp() override {
    ASSERT_EQ(pipe(to_), 0);
    ASSERT_EQ(pipe(from_), 0);
    pid_ = fork();
    if (pid_ == 0) _exit(Serve());
    close(to_[0]);
    close(from_[1]);
  }
  void TearDown() override {
    close(to_[1]);
    waitpid(pid_, nullptr, 0);
  }
  std::string Ask(const std::string& socket, const std::string& job) {
    const std::string line = socket + " " + job + "\n";
    if (write(to_[1], line.data(), line.size()) < 0) return "write";
    char buffer[1000];
    const ssize_t n = read(from_[0], buffer, sizeof buffer);
    return std::string(buffer, n > 0 ? n : 0);
  }

 private:
  int Serve() {
    close(to_[1]);
    if (geteuid() == 0 && (setgid(kOtherUid) != 0 || setuid(kOtherUid) != 0)) return 1;
    FILE* in = fdopen(to_[0], "r");
    char socket[500], job[100];
    while (fscanf(in, "%499s %99s", socket, job) == 2) {
      absl::StatusOr<Channel> channel = Dial(std::string("unix:") + socket, TlsFiles(), false);
      v1::SubmitReply reply;
      const grpc::Status submitted = Submit(*channel, NewJob("other"), &reply);
      v1::JobStatus own, others;
      Status(*channel, reply.job_id(), &own);
      const grpc::Status refused = Status(*channel, job, &others);
      grpc::ClientContext context;
      SetDeadline(&context);
      auto stream = v1::AgentLink::NewStub(*channel)->Connect(&context);
      const grpc::Status agent = stream->Finish();
      dprintf(from_[1], "submit %d owner %u status %d agent %d", submitted.error_code(), own.owner().uid(),
              refused.error_code(), agent.error_code());
    }
    return 0;
  }
  int to_[2], from_[2];
  pid_t pid_ = -1;
};
OtherAccount* const other_account = new OtherAccount;
const ::testing::Environment* const registered = ::testing::AddGlobalTestEnvironment(other_account);

class FakeAgent {
 public:
  FakeAgent(const Channel& channel, const std::string& name)
      : stub_(v1::AgentLink::NewStub(channel)), name_(name) {
    SetDeadline(&context_);
    stream_ = stub_->Connect(&context_);
  }
  ~FakeAgent() {
    context_.TryCancel();
    if (stream_ != nullptr) stream_->Finish();
  }
  void Hello(uint32_t major = OurWireVersion().major()) {
    v1::AgentMsg message;
    v1::Hello* hello = message.mutable_hello();
    *hello->mutable_version() = OurWireVersion();
    hello->mutable_version()->set_major(major);
    hello->set_node_id("id-" + name_);
    hello->set_node_name(name_);
    hello->set_boot_id("boot");
    hello->set_agent_user("root");
    hello->mutable_inventory()->set_allowed_cores(4);
    hello->mutable_inventory()->add_addresses("10.0.0.1");
    hello->add_free_ports(29500);
    hello->add_free_ports(29501);  // an attempt takes another one than the last
    stream_->Write(message);
  }
  // Reads up to the next message of that kind. Empty: the stream has ended. Tails that come between other
  // messages are kept for those who expect them.
  v1::ControllerMsg Expect(v1::ControllerMsg::BodyCase kind) {
    v1::ControllerMsg message;
    if (kind == v1::ControllerMsg::kTail && !tails_.empty()) {
      message = std::move(tails_.front());
      tails_.pop_front();
      return message;
    }
    while (stream_->Read(&message)) {
      if (message.body_case() == kind) return message;
      if (message.has_tail()) tails_.push_back(message);
    }
    ADD_FAILURE() << "no message of kind " << kind;
    return {};
  }
  bool Ended() {
    v1::ControllerMsg message;
    while (stream_->Read(&message)) {
    }
    return true;
  }
  v1::Report* NewReport(v1::AgentMsg* message, const std::string& job, uint32_t attempt = 0) {
    message->mutable_report()->set_number(++reports_);
    message->mutable_report()->set_job_id(job);
    message->mutable_report()->set_attempt(attempt);
    return message->mutable_report();
  }
  void Send(const v1::AgentMsg& message) { stream_->Write(message); }
  void StartJob(const std::string& job) {
    Expect(v1::ControllerMsg::kPrepare);
    v1::AgentMsg prepared;
    NewReport(&prepared, job)->mutable_prepared();
    Send(prepared);
    const v1::ControllerMsg launch = Expect(v1::ControllerMsg::kLaunch);
    ASSERT_EQ(launch.launch().environment().vars_size(), 1);
    EXPECT_EQ(launch.launch().environment().vars(0).value(), "s3cr3t");
    v1::AgentMsg started;
    v1::RanksStarted* ranks = NewReport(&started, job)->mutable_started();
    ranks->set_log_dir("/logs");
    ranks->add_ranks()->set_state(v1::RANK_STATE_RUNNING);
    Send(started);
  }
  void EndJob(const std::string& job, bool stopped = false) {
    v1::AgentMsg gone;
    v1::RankReport* rank = NewReport(&gone, job)->mutable_gone()->add_ranks();
    rank->set_state(v1::RANK_STATE_EXITED);
    rank->set_after_stop(stopped);
    rank->mutable_exit()->set_code(stopped ? 143 : 0);
    rank->mutable_exit()->set_signal(stopped ? 15 : 0);
    Send(gone);
  }
  // The node's one rank of an attempt, as far as Launch; then its whole life in one go.
  void Launched(const std::string& job, uint32_t attempt) {
    EXPECT_EQ(Expect(v1::ControllerMsg::kPrepare).prepare().attempt(), attempt);
    v1::AgentMsg prepared;
    NewReport(&prepared, job, attempt)->mutable_prepared();
    Send(prepared);
  }
  void Live(const std::string& job, uint32_t attempt, uint32_t rank, int exit_code) {
    EXPECT_EQ(Expect(v1::ControllerMsg::kLaunch).launch().attempt(), attempt);
    v1::AgentMsg started, gone;
    v1::RanksStarted* ranks = NewReport(&started, job, attempt)->mutable_started();
    ranks->set_log_dir("/logs");
    v1::RankReport* report = ranks->add_ranks();
    report->set_rank(rank);
    report->set_state(v1::RANK_STATE_RUNNING);
    Send(started);
    report = NewReport(&gone, job, attempt)->mutable_gone()->add_ranks();
    report->set_rank(rank);
    report->set_state(v1::RANK_STATE_EXITED);
    report->mutable_exit()->set_code(exit_code);
    Send(gone);
  }
  v1::TailRequest ExpectTail() { return Expect(v1::ControllerMsg::kTail).tail(); }
  v1::AgentLink::Stub& stub() { return *stub_; }

 private:
  std::unique_ptr<v1::AgentLink::Stub> stub_;
  const std::string name_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMsg, v1::ControllerMsg>> stream_;
  std::deque<v1::ControllerMsg> tails_;
  uint64_t reports_ = 0;
};

// An agent's Output RPC for one tail.
class Output {
 public:
  explicit Output(FakeAgent& agent) {
    SetDeadline(&context_);
    writer_ = agent.stub().Output(&context_, &done_);
  }
  bool Write(uint64_t tail, uint64_t offset, const std::string& data, bool end = false, uint32_t rank = 0) {
    v1::OutputChunk chunk;
    chunk.set_tail_id(tail);
    chunk.set_rank(rank);
    chunk.set_stream(v1::STREAM_STDOUT);
    chunk.set_offset(offset);
    chunk.set_data(data);
    chunk.set_end(end);
    return writer_->Write(chunk);
  }
  void WriteNoLogs(uint64_t tail) {
    v1::OutputChunk chunk;
    chunk.set_tail_id(tail);
    chunk.set_end(true);
    chunk.set_no_logs(true);
    chunk.set_error("nothing");
    EXPECT_TRUE(writer_->Write(chunk));
  }
  void Break() {
    context_.TryCancel();
    writer_->Finish();
  }
  void Done() {
    writer_->WritesDone();
    EXPECT_TRUE(writer_->Finish().ok());
  }

 private:
  grpc::ClientContext context_;
  v1::OutputDone done_;
  std::unique_ptr<grpc::ClientWriter<v1::OutputChunk>> writer_;
};

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    chmod(dir_.path().c_str(), 0755);
    options_.cluster_name = "test";
    options_.state_dir = dir_ / "state";
    options_.unix_socket = dir_ / "control.sock";
    options_.any_user = true;
  }
  void Start() {
    absl::StatusOr<std::unique_ptr<Controller>> controller = Controller::Start(options_);
    ASSERT_TRUE(controller.ok()) << controller.status();
    controller_ = *std::move(controller);
  }
  Channel Unix(bool bulk = false) { return *Dial("unix:" + options_.unix_socket, TlsFiles(), bulk); }
  std::string SubmitOk(const Channel& channel, const std::string& key) {
    v1::SubmitReply reply;
    const grpc::Status status = Submit(channel, NewJob(key), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.job_id();
  }

  TempDir dir_;
  ControllerOptions options_;
  std::unique_ptr<Controller> controller_;
};

TEST_F(ServiceTest, TheKernelSaysWhoAsks) {
  Start();
  const Channel channel = Unix();
  FakeAgent agent(channel, "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(channel, "mine");
  v1::JobStatus status;
  ASSERT_TRUE(Status(channel, "", &status).ok());
  EXPECT_EQ(status.job_id(), job);
  EXPECT_EQ(status.owner().uid(), geteuid());
  EXPECT_NE(status.owner().user(), "forged");
  const std::string answer = other_account->Ask(options_.unix_socket, job);
  if (geteuid() == 0) {
    EXPECT_EQ(answer, "submit 0 owner 65534 status 7 agent 7");  // 7: PERMISSION_DENIED
  } else {
    EXPECT_THAT(answer, HasSubstr("submit 0 owner " + std::to_string(geteuid()) + " status 0"));
  }
}

TEST_F(ServiceTest, InProcessItIsOurselves) {
  Start();
  const Channel channel = controller_->InProcessChannel();
  FakeAgent agent(channel, "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(channel, "mine");
  v1::JobStatus status;
  ASSERT_TRUE(Status(channel, job, &status).ok());
  EXPECT_EQ(status.owner().uid(), geteuid());
  v1::SubmitReply again;
  ASSERT_TRUE(Submit(channel, NewJob("mine"), &again).ok());
  EXPECT_EQ(again.job_id(), job);
  EXPECT_EQ(again.ranks_per_node(), 1u);
  EXPECT_TRUE(again.on_cpu());
}

TEST_F(ServiceTest, WhatIsWrongWithARequestIsNamed) {
  Start();
  const Channel channel = controller_->InProcessChannel();
  const auto error = [&](const std::function<void(v1::SubmitRequest*)>& spoil) {
    v1::SubmitRequest request = NewJob("k");
    spoil(&request);
    v1::SubmitReply reply;
    const grpc::Status status = Submit(channel, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(error([](auto* r) { r->mutable_spec()->set_name("a b"); }), HasSubstr("no job name"));
  EXPECT_THAT(error([](auto* r) { r->mutable_spec()->set_cwd("rel"); }), HasSubstr("working folder"));
  EXPECT_THAT(error([](auto* r) { r->mutable_spec()->clear_argv(); }), HasSubstr("command is empty"));
  EXPECT_THAT(error([](auto* r) { r->mutable_spec()->set_nodes(0); }), HasSubstr("nodes"));
  EXPECT_THAT(error([](auto* r) { r->clear_key(); }), HasSubstr("submit key"));
  const std::string big =
      error([](auto* r) { r->mutable_environment()->mutable_vars(0)->set_value(std::string(3 << 20, 'x')); });
  EXPECT_THAT(big, HasSubstr("--export"));
  EXPECT_THAT(error([](auto* r) { r->mutable_environment()->mutable_vars(0)->set_name("A=B"); }),
              HasSubstr("A=B"));
  v1::JobStatus status;
  EXPECT_EQ(Status(channel, "../x", &status).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Status(channel, "none", &status).error_code(), grpc::StatusCode::NOT_FOUND);
}

template <class Message>
grpc::Status ReadOut(grpc::ClientReader<Message>* reader) {
  for (Message message; reader->Read(&message);) {
  }
  return reader->Finish();
}

// Of a client: in its metadata, with every call.
TEST_F(ServiceTest, EveryCallSaysTheVersionOfTheWire) {
  Start();
  const Channel channel = Unix();
  FakeAgent agent(Unix(true), "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(channel, "key");  // says nothing, as clients before wire 1.2
  const auto stub = v1::Control::NewStub(channel);
  using Say = std::function<void(grpc::ClientContext*)>;
  const auto status = [&](const Say& say) {
    grpc::ClientContext context;
    SetDeadline(&context);
    say(&context);
    v1::StatusRequest request;
    request.set_job(job);
    v1::JobStatus reply;
    return stub->Status(&context, request, &reply);
  };
  const auto streamed = [&](const Say& say, auto call) {
    grpc::ClientContext context;
    SetDeadline(&context);
    say(&context);
    return ReadOut(call(&context).get());
  };
  const auto version = [](const std::string& word) {
    return [word](grpc::ClientContext* context) { context->AddMetadata(kWireVersionKey, word); };
  };
  EXPECT_TRUE(status(SayWireVersion).ok());
  EXPECT_TRUE(status([](grpc::ClientContext*) {}).ok());
  EXPECT_EQ(status(version("one")).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status(version("1")).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const v1::WireVersion ours = OurWireVersion();
  const std::string near = absl::StrCat(ours.major(), ".", ours.minor() + 1, " next");
  const std::string far = absl::StrCat(ours.major(), ".", ours.minor() + 2, " 99.0");
  EXPECT_TRUE(status(version(near)).ok());
  EXPECT_TRUE(streamed(version(near), [&](auto* c) { return stub->Jobs(c, v1::JobsRequest()); }).ok());
  v1::LogsRequest logs;
  v1::StopReply stopped;
  grpc::ClientContext stop;
  SetDeadline(&stop);
  stop.AddMetadata(kWireVersionKey, far);
  for (const grpc::Status& refused :
       {status(version(far)), stub->Stop(&stop, v1::StopRequest(), &stopped),
        streamed(version(far), [&](auto* c) { return stub->Jobs(c, v1::JobsRequest()); }),
        streamed(version(far), [&](auto* c) { return stub->Nodes(c, v1::NodesRequest()); }),
        streamed(version(far), [&](auto* c) { return stub->Watch(c, v1::WatchRequest()); }),
        streamed(version(far), [&](auto* c) { return stub->Logs(c, logs); })}) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(refused.error_message(), HasSubstr("99.0"));
    EXPECT_THAT(refused.error_message(), HasSubstr(ours.release()));
  }
}

TEST_F(ServiceTest, ANewStreamOfANodeEndsTheOld) {
  Start();
  FakeAgent first(Unix(), "node1");
  first.Hello();
  first.Expect(v1::ControllerMsg::kWelcome);
  FakeAgent second(Unix(true), "node1");
  second.Hello();
  second.Expect(v1::ControllerMsg::kWelcome);
  EXPECT_TRUE(first.Ended());
  FakeAgent stranger(Unix(), "node2");
  stranger.Hello(99);
  const v1::ControllerMsg refused = stranger.Expect(v1::ControllerMsg::kRefused);
  EXPECT_TRUE(refused.refused().final());
  EXPECT_THAT(refused.refused().reason(), HasSubstr("99."));
  EXPECT_TRUE(stranger.Ended());
}

TEST_F(ServiceTest, WatchAndLogsUntilTheEnd) {
  Start();
  const Channel channel = Unix();
  FakeAgent agent(Unix(true), "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(channel, "key");
  auto stub = v1::Control::NewStub(channel);
  grpc::ClientContext watch_context, logs_context;
  SetDeadline(&watch_context);
  SetDeadline(&logs_context);
  v1::WatchRequest watch_request;
  auto watch = stub->Watch(&watch_context, watch_request);
  v1::LogsRequest logs_request;
  logs_request.set_job(job);
  logs_request.set_follow(true);
  auto logs = stub->Logs(&logs_context, logs_request);
  agent.StartJob(job);
  uint64_t tail = agent.Expect(v1::ControllerMsg::kTail).tail().tail_id();
  Output broken(agent);
  EXPECT_TRUE(broken.Write(tail, 0, "hello "));
  v1::OutputChunk chunk;
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_EQ(chunk.data(), "hello ");
  EXPECT_EQ(chunk.node(), "node1");
  // A connection that breaks is asked for again; what was relayed does not come twice.
  broken.Break();
  const v1::TailRequest again = agent.ExpectTail();
  tail = again.tail_id();
  ASSERT_EQ(again.from_size(), 1);
  EXPECT_EQ(again.from(0).offset(), 6u);
  Output output(agent);  // of an older agent, which begins at the start all the same
  EXPECT_TRUE(output.Write(tail, 0, "hello world\n"));
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_EQ(chunk.data(), "world\n");
  EXPECT_EQ(chunk.offset(), 6u);
  agent.EndJob(job);
  agent.Expect(v1::ControllerMsg::kForget);
  EXPECT_TRUE(output.Write(tail, 12, "", true));
  output.Done();
  ASSERT_TRUE(logs->Read(&chunk));
  EXPECT_TRUE(chunk.end());
  EXPECT_FALSE(logs->Read(&chunk));
  EXPECT_TRUE(logs->Finish().ok());
  v1::JobStatus status;
  while (watch->Read(&status)) {
  }
  EXPECT_TRUE(watch->Finish().ok());
  EXPECT_EQ(status.state(), v1::JOB_STATE_SUCCEEDED);
}

// Two nodes, one rank each; every attempt ends at once, the last of three for good.
class AttemptsTest : public ServiceTest {
 protected:
  static constexpr uint32_t kAttempts = 3;
  void StartTwo() {
    Start();
    channel_ = Unix();
    for (uint32_t rank : {0, 1}) {
      agents_[rank] = std::make_unique<FakeAgent>(Unix(true), rank == 0 ? "node1" : "node2");
      agents_[rank]->Hello();
      agents_[rank]->Expect(v1::ControllerMsg::kWelcome);
    }
    v1::SubmitRequest request = NewJob("key");
    request.mutable_spec()->set_nodes(2);
    request.mutable_spec()->set_max_restarts(kAttempts - 1);
    v1::SubmitReply reply;
    ASSERT_TRUE(Submit(channel_, request, &reply).ok());
    job_ = reply.job_id();
  }
  void LiveAttempt(uint32_t attempt) {
    for (auto& agent : agents_) agent->Launched(job_, attempt);
    for (uint32_t rank : {0, 1}) agents_[rank]->Live(job_, attempt, rank, attempt + 1 < kAttempts ? 7 : 0);
  }
  std::unique_ptr<grpc::ClientReader<v1::OutputChunk>> Logs(const v1::LogsRequest& request) {
    context_ = std::make_unique<grpc::ClientContext>();
    SetDeadline(context_.get());
    stub_ = v1::Control::NewStub(channel_);
    return stub_->Logs(context_.get(), request);
  }
  v1::LogsRequest Follow() {
    v1::LogsRequest request;
    request.set_job(job_);
    request.set_follow(true);
    request.set_has_attempt(true);
    return request;
  }
  // One node's answer to a tail: its output in two chunks.
  void Answer(uint32_t rank, const v1::TailRequest& tail) {
    const std::string text = Text(tail.attempt(), rank);
    Output output(*agents_[rank]);
    EXPECT_TRUE(output.Write(tail.tail_id(), 0, text.substr(0, 3), false, rank));
    EXPECT_TRUE(output.Write(tail.tail_id(), 3, text.substr(3), true, rank));
    output.Done();
  }
  static std::string Text(uint32_t attempt, uint32_t rank) {
    return "attempt " + std::to_string(attempt) + " rank " + std::to_string(rank) + "\n";
  }
  // Reads to the end; what came, by attempt and rank. Chunks of an attempt after those of a later one fail.
  std::map<std::pair<uint32_t, uint32_t>, std::string> ReadAll(grpc::ClientReader<v1::OutputChunk>* logs) {
    std::map<std::pair<uint32_t, uint32_t>, std::string> bytes;
    uint32_t newest = 0;
    for (v1::OutputChunk chunk; logs->Read(&chunk);) {
      EXPECT_EQ(chunk.error(), "");
      EXPECT_GE(chunk.attempt(), newest);
      newest = std::max(newest, chunk.attempt());
      std::string& sofar = bytes[{chunk.attempt(), chunk.rank()}];
      EXPECT_EQ(chunk.offset(), sofar.size());
      sofar += chunk.data();
    }
    return bytes;
  }
  void ExpectWhole(const std::map<std::pair<uint32_t, uint32_t>, std::string>& bytes) {
    EXPECT_EQ(bytes.size(), 2 * kAttempts);
    for (const auto& [key, text] : bytes) EXPECT_EQ(text, Text(key.first, key.second));
  }

  Channel channel_;
  std::unique_ptr<FakeAgent> agents_[2];
  std::string job_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

TEST_F(AttemptsTest, AllOutputOfAnArchivedJobInOrder) {
  StartTwo();
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) LiveAttempt(attempt);
  for (auto& agent : agents_) agent->Expect(v1::ControllerMsg::kForget);
  auto logs = Logs(Follow());
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) {
    for (uint32_t rank : {0, 1}) {
      const v1::TailRequest tail = agents_[rank]->ExpectTail();
      EXPECT_EQ(tail.attempt(), attempt);
      EXPECT_FALSE(tail.follow()) << "of what is over, the files are all there is";
      Answer(rank, tail);
    }
  }
  ExpectWhole(ReadAll(logs.get()));
  EXPECT_TRUE(logs->Finish().ok());
}

TEST_F(AttemptsTest, AClientGoesOnWhereItWas) {
  StartTwo();
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) LiveAttempt(attempt);
  for (auto& agent : agents_) agent->Expect(v1::ControllerMsg::kForget);
  v1::LogsRequest request = Follow();
  request.set_attempt(1);
  v1::LogPosition* place = request.add_from();
  place->set_rank(1);
  place->set_stream(v1::STREAM_STDOUT);
  place->set_offset(5);
  auto logs = Logs(request);
  EXPECT_EQ(agents_[0]->ExpectTail().from_size(), 0);
  const v1::TailRequest tail = agents_[1]->ExpectTail();
  ASSERT_EQ(tail.from_size(), 1);  // of the node that has the rank
  EXPECT_EQ(tail.from(0).rank(), 1u);
  EXPECT_EQ(tail.from(0).stream(), v1::STREAM_STDOUT);
  EXPECT_EQ(tail.from(0).offset(), 5u);
  Output output(*agents_[1]);
  const std::string text = Text(1, 1);
  EXPECT_TRUE(output.Write(tail.tail_id(), 0, text.substr(0, 7), false, 1));  // an older agent sends all
  EXPECT_TRUE(output.Write(tail.tail_id(), 7, text.substr(7), true, 1));
  v1::OutputChunk chunk;
  std::string bytes;
  while (bytes.size() < text.size() - 5 && logs->Read(&chunk)) {
    EXPECT_EQ(chunk.offset(), 5 + bytes.size());
    bytes += chunk.data();
  }
  EXPECT_EQ(bytes, text.substr(5));
  context_->TryCancel();
  logs->Finish();
}

TEST_F(AttemptsTest, AttemptsThatEndAsSoonAsTheyStartedAreFollowed) {
  StartTwo();
  auto logs = Logs(Follow());
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) LiveAttempt(attempt);
  // Nobody has answered the tails of attempt 0 so far: those of attempt 1 wait for both.
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) {
    v1::TailRequest tails[2];
    for (uint32_t rank : {0, 1}) tails[rank] = agents_[rank]->ExpectTail();
    for (uint32_t rank : {1, 0}) {
      EXPECT_EQ(tails[rank].attempt(), attempt);
      Answer(rank, tails[rank]);
    }
  }
  ExpectWhole(ReadAll(logs.get()));
  EXPECT_TRUE(logs->Finish().ok());
}

TEST_F(AttemptsTest, AnEarlierAttemptIsAskedForByItsNumber) {
  StartTwo();
  for (uint32_t attempt = 0; attempt < kAttempts; ++attempt) LiveAttempt(attempt);
  for (auto& agent : agents_) agent->Expect(v1::ControllerMsg::kForget);
  v1::LogsRequest request = Follow();
  request.set_follow(false);
  request.set_attempt(1);
  auto logs = Logs(request);
  v1::TailRequest tails[2];
  for (uint32_t rank : {0, 1}) tails[rank] = agents_[rank]->ExpectTail();
  {  // node1 holds nothing of it any more: passed over
    Output none(*agents_[0]);
    none.WriteNoLogs(tails[0].tail_id());
    none.Done();
  }
  Answer(1, tails[1]);
  const auto bytes = ReadAll(logs.get());
  ASSERT_EQ(bytes.size(), 1u);
  EXPECT_EQ(bytes.at({1, 1}), Text(1, 1));
  EXPECT_TRUE(logs->Finish().ok());

  request.add_ranks(0);  // of node1
  logs = Logs(request);
  const v1::TailRequest tail = agents_[0]->ExpectTail();
  Output none(*agents_[0]);
  none.WriteNoLogs(tail.tail_id());
  none.Done();
  EXPECT_TRUE(ReadAll(logs.get()).empty());
  const grpc::Status status = logs->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no node has output of attempt 1 of job " + job_);

  request.set_attempt(kAttempts);
  logs = Logs(request);
  EXPECT_TRUE(ReadAll(logs.get()).empty());
  EXPECT_EQ(logs->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, ASlowClientHoldsTheAgentBack) {
  Start();
  const Channel channel = Unix();
  FakeAgent agent(Unix(true), "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(channel, "key");
  agent.StartJob(job);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::LogsRequest request;
  request.set_follow(true);
  auto logs = v1::Control::NewStub(channel)->Logs(&context, request);
  const uint64_t tail = agent.Expect(v1::ControllerMsg::kTail).tail().tail_id();
  constexpr uint64_t kChunks = 1000, kSize = 65536;  // 64 MiB: more than all buffers between
  std::atomic<uint64_t> written{0};
  std::thread writer([&] {
    Output output(agent);
    for (uint64_t i = 0; i < kChunks; ++i, ++written) {
      if (!output.Write(tail, i * kSize, std::string(kSize, 'x'), i + 1 == kChunks)) break;
    }
    output.Done();
  });
  // Without a reader the writer comes to rest: two looks half a second apart are alike.
  uint64_t before = 0, now = 1;
  for (int looks = 0; looks < 40 && before != now; ++looks) {
    before = written;
    std::mutex never;
    std::condition_variable quiet;
    std::unique_lock<std::mutex> lock(never);
    quiet.wait_for(lock, std::chrono::milliseconds(500));
    now = written;
  }
  EXPECT_LT(now, kChunks / 2);
  uint64_t bytes = 0;
  v1::OutputChunk chunk;
  while (bytes < kChunks * kSize && logs->Read(&chunk)) bytes += chunk.data().size();
  EXPECT_EQ(bytes, kChunks * kSize);
  writer.join();
}

TEST_F(ServiceTest, StopNodesJobsAndTheEnd) {
  Start();
  const Channel channel = Unix();
  auto stub = v1::Control::NewStub(channel);
  FakeAgent agent(Unix(true), "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(channel, "key");
  agent.StartJob(job);
  grpc::ClientContext stop_context, nodes_context, jobs_context, info_context;
  v1::StopRequest stop;
  stop.set_job("train");
  stop.set_has_grace(true);
  stop.set_grace_ms(5);
  stop.set_reason("dgxrun stop");
  v1::StopReply stopped;
  SetDeadline(&stop_context);
  ASSERT_TRUE(stub->Stop(&stop_context, stop, &stopped).ok());
  EXPECT_EQ(stopped.status().state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(agent.Expect(v1::ControllerMsg::kStop).stop().grace_ms(), 5u);
  agent.EndJob(job, true);
  agent.Expect(v1::ControllerMsg::kForget);
  SetDeadline(&nodes_context);
  auto nodes = stub->Nodes(&nodes_context, v1::NodesRequest());
  v1::NodeInfo node;
  ASSERT_TRUE(nodes->Read(&node));
  EXPECT_EQ(node.name(), "node1");
  EXPECT_EQ(node.state(), v1::NODE_STATE_UP);
  EXPECT_FALSE(nodes->Read(&node));
  SetDeadline(&jobs_context);
  auto jobs = stub->Jobs(&jobs_context, v1::JobsRequest());
  v1::JobStatus status;
  ASSERT_TRUE(jobs->Read(&status));
  EXPECT_EQ(status.state(), v1::JOB_STATE_STOPPED);
  EXPECT_FALSE(jobs->Read(&status));
  SetDeadline(&info_context);
  v1::ControllerInfo info;
  ASSERT_TRUE(stub->Info(&info_context, v1::InfoRequest(), &info).ok());
  EXPECT_EQ(info.cluster_name(), "test");
  EXPECT_EQ(info.nodes_up(), 1u);
  // With streams open: ends at once and leaves no socket.
  controller_.reset();
  EXPECT_TRUE(agent.Ended());
  EXPECT_NE(access(options_.unix_socket.c_str(), F_OK), 0);
}

TEST_F(ServiceTest, AStaleSocketIsReplacedALivingOneIsNot) {
  std::ofstream(dir_ / "file") << "x";
  ControllerOptions wrong = options_;
  wrong.unix_socket = dir_ / "file";
  EXPECT_THAT(std::string(Controller::Start(wrong).status().message()), HasSubstr("no socket"));
  Start();
  ControllerOptions second = options_;
  second.state_dir = dir_ / "state2";
  absl::Status status = Controller::Start(second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a controller already runs on " + options_.unix_socket));
  second.unix_socket = dir_ / "other.sock";
  second.state_dir = options_.state_dir;
  EXPECT_THAT(std::string(Controller::Start(second).status().message()),
              HasSubstr("another controller uses this log"));
  struct stat info;
  ASSERT_EQ(stat(options_.unix_socket.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
  controller_.reset();
  // A controller that was killed leaves its file.
  std::string command =
      "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('" + options_.unix_socket + "')\"";
  ASSERT_EQ(system(command.c_str()), 0);
  Start();
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ControllerInfo reply;
  EXPECT_TRUE(v1::Control::NewStub(Unix())->Info(&context, v1::InfoRequest(), &reply).ok());
}

class TlsTest : public ServiceTest {
 protected:
  TlsTest() {
    Sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt"
       " -subj /CN=ca -days 2");
    for (const char* name : {"controller", "agent", "user:root", "user:no-such-account-here"}) {
      const std::string n = name;
      Sh("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + n + ".key -out " + n +
         ".csr -subj '/CN=" + n + "' && printf 'subjectAltName=DNS:" + kControllerName + "' > " + n +
         ".ext && openssl x509 -req -in " + n +
         ".csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out " + n + ".crt -extfile " + n +
         ".ext && chmod 600 " + n + ".key");
    }
    options_.listen_address = "127.0.0.1:0";
    options_.unix_socket.clear();
    options_.tls = Files("controller");
  }
  void Sh(const std::string& command) {
    ASSERT_EQ(system(("cd " + dir_.path() + " && (" + command + ") >/dev/null 2>&1").c_str()), 0) << command;
  }
  TlsFiles Files(const std::string& name) {
    return {dir_ / "ca.crt", dir_ / (name + ".crt"), dir_ / (name + ".key")};
  }
  Channel As(const std::string& name) { return *Dial(controller_->listening_on(), Files(name), false); }
};

TEST_F(TlsTest, TheCertificateSaysWhoAsks) {
  Start();
  FakeAgent agent(As("agent"), "node1");
  agent.Hello();
  agent.Expect(v1::ControllerMsg::kWelcome);
  const std::string job = SubmitOk(As("user:root"), "key");
  v1::JobStatus status;
  ASSERT_TRUE(Status(As("user:root"), job, &status).ok());
  EXPECT_EQ(status.owner().user(), "root");
  EXPECT_EQ(Status(As("agent"), job, &status).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Status(As("controller"), job, &status).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Status(As("user:no-such-account-here"), job, &status).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext context;
  SetDeadline(&context);
  auto stream = v1::AgentLink::NewStub(As("user:root"))->Connect(&context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  // Without a certificate there is no conversation at all.
  grpc::ClientContext plain;
  plain.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::ControllerInfo info;
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel(controller_->listening_on(), grpc::InsecureChannelCredentials()));
  EXPECT_FALSE(stub->Info(&plain, v1::InfoRequest(), &info).ok());
}

TEST_F(TlsTest, APortThatIsTakenIsNamed) {
  Start();
  ControllerOptions second = options_;
  second.state_dir = dir_ / "state2";
  second.listen_address = controller_->listening_on();
  const absl::Status status = Controller::Start(second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(second.listen_address + ": the port is in use"));
  second.listen_address = "127.0.0.1:0";
  second.tls = {};
  EXPECT_THAT(std::string(Controller::Start(second).status().message()), HasSubstr("needs [tls]"));
}

}  // namespace
}  // namespace dgxrun
