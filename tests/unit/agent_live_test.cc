// The agent with real shims and ranks, against a scripted controller on a unix socket.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "dgxrun/v1/agent_link.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "proto/rpc/wire_version.h"

namespace dgxrun {
namespace {

constexpr std::chrono::seconds kDeadline(20);  // for what takes milliseconds, on a machine that is busy

// Files of other processes are looked at every few ms until `ready`.
bool AwaitFiles(const std::function<bool()>& ready) {
  const absl::Time end = absl::Now() + absl::FromChrono(kDeadline);
  while (!ready()) {
    if (absl::Now() > end) return false;
    poll(nullptr, 0, 5);
  }
  return true;
}

// Accepts any agent; the test says what to send and waits for what came.
class ScriptedController final : public v1::AgentLink::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::AgentMsg, v1::ControllerMsg>* Connect(grpc::CallbackServerContext*) override {
    auto* stream = new Stream(this);
    stream->Begin();
    return stream;
  }
  grpc::ServerReadReactor<v1::OutputChunk>* Output(grpc::CallbackServerContext*, v1::OutputDone*) override {
    return new Sink(this);
  }

  void Send(v1::ControllerMsg message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream_ != nullptr) stream_->Queue(std::move(message));
  }
  // Waits until `ready` holds; it may look at hellos, reports and output.
  bool Await(const std::function<bool()>& ready) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kDeadline, ready);
  }
  const v1::Report* Find(v1::Report::BodyCase body, uint32_t attempt) const {
    for (const v1::Report& r : reports) {
      if (r.body_case() == body && r.attempt() == attempt) return &r;
    }
    return nullptr;
  }
  void Break() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream_ != nullptr) stream_->End();
  }

  // Under mutex_.
  std::vector<v1::Hello> hellos;
  std::vector<v1::Report> reports;  // each number once
  std::set<uint64_t> numbers;
  int repeated = 0;
  std::string output, errors;
  int ends = 0;
  bool ack = true;
  std::mutex mutex_;

 private:
  class Stream final : public grpc::ServerBidiReactor<v1::AgentMsg, v1::ControllerMsg> {
   public:
    explicit Stream(ScriptedController* owner) : owner_(owner) {}
    void Begin() { StartRead(&in_); }
    void Queue(v1::ControllerMsg message) {
      out_.push_back(std::move(message));
      if (out_.size() == 1) StartWrite(&out_.front());
    }
    void End() {
      if (!std::exchange(ended_, true)) Finish(grpc::Status::OK);
    }
    void OnReadDone(bool ok) override {
      std::lock_guard<std::mutex> lock(owner_->mutex_);
      if (!ok) return End();
      owner_->Heard(this, in_);
      owner_->changed_.notify_all();
      StartRead(&in_);
    }
    void OnWriteDone(bool ok) override {
      std::lock_guard<std::mutex> lock(owner_->mutex_);
      out_.pop_front();
      if (ok && !ended_ && !out_.empty()) StartWrite(&out_.front());
    }
    void OnDone() override {
      {
        std::lock_guard<std::mutex> lock(owner_->mutex_);
        if (owner_->stream_ == this) owner_->stream_ = nullptr;
      }
      delete this;
    }

   private:
    ScriptedController* const owner_;
    v1::AgentMsg in_;
    std::deque<v1::ControllerMsg> out_;
    bool ended_ = false;
  };

  class Sink final : public grpc::ServerReadReactor<v1::OutputChunk> {
   public:
    explicit Sink(ScriptedController* owner) : owner_(owner) { StartRead(&in_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      {
        std::lock_guard<std::mutex> lock(owner_->mutex_);
        (in_.stream() == v1::STREAM_STDERR ? owner_->errors : owner_->output) += in_.data();
        owner_->ends += in_.end() ? 1 : 0;
        owner_->changed_.notify_all();
      }
      StartRead(&in_);
    }
    void OnDone() override { delete this; }

   private:
    ScriptedController* const owner_;
    v1::OutputChunk in_;
  };

  void Heard(Stream* stream, const v1::AgentMsg& message) {
    v1::ControllerMsg answer;
    if (message.has_hello()) {
      stream_ = stream;
      hellos.push_back(message.hello());
      v1::Welcome* welcome = answer.mutable_welcome();
      *welcome->mutable_version() = OurWireVersion();
      welcome->set_cluster_id("cluster");
      welcome->set_term(1);
      welcome->set_heartbeat_ms(100);
      welcome->set_node_lease_ms(5000);
      welcome->set_isolation_timeout_ms(30000);
      stream->Queue(std::move(answer));
    } else if (message.has_heartbeat()) {
      answer.mutable_answer()->set_number(message.heartbeat().number());
      stream->Queue(std::move(answer));
    } else if (message.has_report()) {
      if (numbers.insert(message.report().number()).second) {
        reports.push_back(message.report());
      } else {
        ++repeated;
      }
      if (!ack) return;
      answer.mutable_ack()->set_number(message.report().number());
      stream->Queue(std::move(answer));
    }
  }

  std::condition_variable changed_;
  Stream* stream_ = nullptr;  // under mutex_
};

class AgentLiveTest : public ::testing::Test {
 protected:
  AgentLiveTest() {
    char name[] = "/tmp/agent_live_XXXXXX";
    dir_ = mkdtemp(name);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(Target(), grpc::InsecureServerCredentials());
    builder.RegisterService(&controller_);
    server_ = builder.BuildAndStart();
  }
  ~AgentLiveTest() override {
    agent_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    std::filesystem::remove_all(dir_);
  }
  std::string Target() const { return "unix:" + dir_ + "/control.sock"; }

  void StartAgent(v1::OnAgentGone gone = v1::ON_AGENT_GONE_LEASE) {
    AgentOptions options;
    options.node_name = "n1";
    options.state_dir = dir_ + "/state";
    options.run_dir = dir_ + "/run";
    options.log_root = dir_ + "/logs";
    options.shim_binary = SHIM_BINARY;
    options.on_agent_gone = gone;
    options.single_user = true;
    options.cgroup_parent = "";
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    options.control = grpc::CreateCustomChannel(Target(), grpc::InsecureChannelCredentials(), arguments);
    options.bulk = grpc::CreateCustomChannel(Target(), grpc::InsecureChannelCredentials(), arguments);
    absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(std::move(options));
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    const size_t before = hellos_;
    ASSERT_TRUE(controller_.Await([&] { return controller_.hellos.size() > before; }));
    hellos_ = before + 1;
  }

  // Two ranks that run `script` with /bin/sh.
  void Launch(uint32_t attempt, const std::string& script, uint32_t port = 0) {
    v1::ControllerMsg message;
    v1::Launch* launch = message.mutable_launch();
    launch->set_job_id("c-1");
    launch->set_attempt(attempt);
    v1::NodePlan* plan = launch->mutable_plan();
    for (const char* word : {"/bin/sh", "-c"}) plan->add_argv(word);
    plan->add_argv(script);
    plan->set_cwd("/");
    plan->set_grace_ms(200);
    plan->set_held_port(port);
    for (uint32_t r = 0; r < 2; ++r) {
      v1::RankPlan* rank = plan->add_ranks();
      rank->set_rank(r);
      rank->set_local_rank(r);
      v1::EnvVar* variable = rank->add_env();
      variable->set_name("RANK");
      variable->set_value(absl::StrCat(r));
    }
    controller_.Send(std::move(message));
  }
  void Stop(uint32_t attempt) {
    v1::ControllerMsg message;
    message.mutable_stop()->set_job_id("c-1");
    message.mutable_stop()->set_attempt(attempt);
    message.mutable_stop()->set_grace_ms(200);
    controller_.Send(std::move(message));
  }
  bool Await(v1::Report::BodyCase body, uint32_t attempt) {
    return controller_.Await([&] { return controller_.Find(body, attempt) != nullptr; });
  }
  v1::Report Report(v1::Report::BodyCase body, uint32_t attempt) {
    std::lock_guard<std::mutex> lock(controller_.mutex_);
    const v1::Report* found = controller_.Find(body, attempt);
    return found == nullptr ? v1::Report() : *found;
  }

  std::string dir_;
  ScriptedController controller_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Agent> agent_;
  size_t hellos_ = 0;
};

TEST_F(AgentLiveTest, RanksRunExitAndAreExplained) {
  StartAgent();
  ASSERT_EQ(controller_.hellos[0].free_ports_size(), 4);
  const uint32_t port = controller_.hellos[0].free_ports(0);
  Launch(0, "echo out $RANK; [ $RANK = 0 ] || { echo why not >&2; exit 85; }", port);
  ASSERT_TRUE(Await(v1::Report::kStarted, 0));
  ASSERT_TRUE(Await(v1::Report::kExited, 0));
  Stop(0);
  ASSERT_TRUE(Await(v1::Report::kGone, 0));
  bool seen = false;
  const v1::Report gone = Report(v1::Report::kGone, 0);
  for (const v1::RankReport& rank : gone.gone().ranks()) {
    if (rank.rank() != 1) continue;
    seen = true;
    EXPECT_EQ(rank.exit().code(), 85);
    ASSERT_EQ(rank.stderr_tail_size(), 1);
    EXPECT_EQ(rank.stderr_tail(0), "why not");
  }
  EXPECT_TRUE(seen);
  v1::ControllerMsg message;
  message.mutable_tail()->set_tail_id(7);
  message.mutable_tail()->set_job_id("c-1");
  message.mutable_tail()->set_follow(true);
  controller_.Send(message);
  ASSERT_TRUE(controller_.Await([&] { return controller_.ends == 4; }));
  EXPECT_TRUE(controller_.output == "out 0\nout 1\n" || controller_.output == "out 1\nout 0\n")
      << controller_.output;
  EXPECT_EQ(controller_.errors, "why not\n");
}

TEST_F(AgentLiveTest, TailFollowsALivingRank) {
  StartAgent();
  Launch(0, "echo first; while [ ! -e " + dir_ + "/go ]; do sleep 0.05; done; echo second");
  ASSERT_TRUE(Await(v1::Report::kStarted, 0));
  v1::ControllerMsg message;
  message.mutable_tail()->set_tail_id(1);
  message.mutable_tail()->set_job_id("c-1");
  message.mutable_tail()->add_ranks(1);
  message.mutable_tail()->set_follow(true);
  controller_.Send(message);
  ASSERT_TRUE(controller_.Await([&] { return controller_.output == "first\n"; }));
  std::ofstream(dir_ + "/go") << "x";
  ASSERT_TRUE(controller_.Await([&] { return controller_.ends == 2; }));
  EXPECT_EQ(controller_.output, "first\nsecond\n");
}

TEST_F(AgentLiveTest, ReportsWaitForTheController) {
  StartAgent();
  {
    std::lock_guard<std::mutex> lock(controller_.mutex_);
    controller_.ack = false;
  }
  Launch(0, "exit 3");
  ASSERT_TRUE(Await(v1::Report::kExited, 0));
  controller_.Break();
  ASSERT_TRUE(controller_.Await([&] { return controller_.hellos.size() == 2 && controller_.repeated > 0; }));
  std::lock_guard<std::mutex> lock(controller_.mutex_);
  EXPECT_EQ(controller_.hellos[1].oldest_unacked_report(), 1u);
}

TEST_F(AgentLiveTest, ANewAgentFindsTheLivingShim) {
  StartAgent();
  Launch(0, "echo $$ > " + dir_ + "/pid.$RANK; exec sleep 600");
  ASSERT_TRUE(Await(v1::Report::kStarted, 0));
  const int pid = Report(v1::Report::kStarted, 0).started().ranks(0).pid();
  agent_->Shutdown();
  agent_.reset();
  EXPECT_EQ(kill(pid, 0), 0);
  StartAgent();
  {
    std::lock_guard<std::mutex> lock(controller_.mutex_);
    const v1::Snapshot& snapshot = controller_.hellos.back().snapshot();
    ASSERT_EQ(snapshot.attempts_size(), 1);
    EXPECT_EQ(controller_.hellos.front().node_id(), controller_.hellos.back().node_id());
  }
  Launch(0, "never");  // lives already
  Stop(0);
  ASSERT_TRUE(Await(v1::Report::kGone, 0));
  EXPECT_EQ(kill(pid, 0), -1);
  Launch(0, "never");  // a tombstone
  ASSERT_TRUE(Await(v1::Report::kRefused, 0));
}

TEST_F(AgentLiveTest, AnEndThatNobodySawIsReportedLater) {
  StartAgent();
  Launch(0, "while [ ! -e " + dir_ + "/go ]; do sleep 0.05; done; echo bye >&2; exit 9");
  ASSERT_TRUE(Await(v1::Report::kStarted, 0));
  agent_.reset();
  std::ofstream(dir_ + "/go") << "x";
  ASSERT_TRUE(AwaitFiles([&] { return !std::filesystem::exists(dir_ + "/run/c-1.0/shim.sock"); }));
  StartAgent();
  ASSERT_TRUE(Await(v1::Report::kGone, 0));
  const v1::Report gone = Report(v1::Report::kGone, 0);
  ASSERT_EQ(gone.gone().ranks_size(), 2);
  EXPECT_EQ(gone.gone().ranks(0).exit().code(), 9);
  EXPECT_EQ(gone.gone().ranks(0).stderr_tail(0), "bye");
  EXPECT_TRUE(AwaitFiles([&] { return std::filesystem::is_empty(dir_ + "/run"); }));
}

int ParentOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  int parent = 0;
  while (file >> word && word != "PPid:") {
  }
  file >> parent;
  return parent;
}

TEST_F(AgentLiveTest, ADeadSupervisorTakesItsRanksAlong) {
  StartAgent();
  uint32_t attempt = 0;
  for (const bool guard_too : {false, true}) {
    Launch(attempt, "exec sleep 600");
    ASSERT_TRUE(Await(v1::Report::kStarted, attempt));
    const int rank = Report(v1::Report::kStarted, attempt).started().ranks(0).pid();
    const int shim = ParentOf(rank);
    const int guard = ParentOf(shim);
    if (guard_too) kill(guard, SIGSTOP);  // else it sees the shim's end first
    kill(shim, SIGKILL);
    if (guard_too) kill(guard, SIGKILL);
    ASSERT_TRUE(Await(v1::Report::kGone, attempt));
    EXPECT_EQ(Report(v1::Report::kGone, attempt).gone().cause(), v1::CAUSE_SUPERVISOR_LOST);
    EXPECT_TRUE(AwaitFiles([&] { return kill(rank, 0) != 0; }));
    EXPECT_TRUE(AwaitFiles([&] { return std::filesystem::is_empty(dir_ + "/run"); }));
    ++attempt;
  }
}

TEST_F(AgentLiveTest, PrepareNamesWhatIsMissing) {
  StartAgent();
  v1::ControllerMsg message;
  message.mutable_prepare()->set_job_id("c-1");
  message.mutable_prepare()->set_cwd(dir_ + "/nowhere");
  controller_.Send(message);
  ASSERT_TRUE(Await(v1::Report::kPrepared, 0));
  EXPECT_EQ(Report(v1::Report::kPrepared, 0).prepared().errors(0),
            "working folder " + dir_ + "/nowhere does not exist");
}

}  // namespace
}  // namespace dgxrun
