// The engine with the real core and log, and a sink in place of the streams.
#include <signal.h>
#include <sys/resource.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "controller/engine.h"
#include "controller/outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc/wire_version.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

using ::testing::HasSubstr;
constexpr auto kDeadline = std::chrono::seconds(20);  // of anything that should take milliseconds

// Streams that keep what is sent until the test takes it.
class FakeStreams : public NodeStreams {
 public:
  void SendOn(core::ConnectionId connection, v1::ControllerMsg message, bool) override {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_.emplace_back(connection, std::move(message));
    wake_.notify_all();
  }
  void CloseAllStreams() override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++closed_;
    wake_.notify_all();
  }
  // The next message of that kind; others before it stay.
  v1::ControllerMsg Take(v1::ControllerMsg::BodyCase kind) {
    std::unique_lock<std::mutex> lock(mutex_);
    v1::ControllerMsg found;
    const bool in_time = wake_.wait_for(lock, kDeadline, [&] {
      for (auto it = sent_.begin(); it != sent_.end(); ++it) {
        if (it->second.body_case() != kind) continue;
        found = it->second;
        sent_.erase(it);
        return true;
      }
      return false;
    });
    EXPECT_TRUE(in_time) << "no message of kind " << kind;
    return found;
  }
  bool WaitClosed() {
    std::unique_lock<std::mutex> lock(mutex_);
    return wake_.wait_for(lock, kDeadline, [&] { return closed_ > 0; });
  }
  size_t Count(v1::ControllerMsg::BodyCase kind) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t n = 0;
    for (const auto& [connection, message] : sent_) n += message.body_case() == kind ? 1 : 0;
    return n;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<core::ConnectionId, v1::ControllerMsg>> sent_;
  int closed_ = 0;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { StartEngine(); }
  void StartEngine() {
    streams_ = std::make_unique<FakeStreams>();
    outbox_ = std::make_unique<Outbox>(EnvironmentStore(dir_ / "state/env", true), streams_.get(),
                                       [](const JobId&, const std::string& why) { ADD_FAILURE() << why; });
    EngineOptions options;
    options.state_dir = dir_ / "state";
    options.config.cluster_name = "test";
    options.config.version = OurWireVersion();
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Start(options, outbox_.get());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void Restart() {
    engine_.reset();
    StartEngine();
  }
  void Connect(core::ConnectionId connection) {
    v1::Hello hello;
    *hello.mutable_version() = OurWireVersion();
    hello.set_node_id("id-1");
    hello.set_node_name("node1");
    hello.set_boot_id("boot");
    hello.set_agent_user("root");
    hello.mutable_inventory()->set_allowed_cores(4);
    hello.add_free_ports(29500);
    engine_->Post({{}, core::NodeConnected{connection, hello, ""}});
    EXPECT_EQ(streams_->Take(v1::ControllerMsg::kWelcome).welcome().term(), Term());
  }
  uint64_t Term() {
    uint64_t term = 0;
    Ask([&](const core::State& state) { term = state.term; });
    return term;
  }
  void Ask(std::function<void(const core::State&)> look) {
    std::mutex mutex;
    std::condition_variable wake;
    bool done = false;
    engine_->Query([&](const core::State& state, const core::Contacts&, absl::Time) {
      look(state);
      std::lock_guard<std::mutex> lock(mutex);
      done = true;
      wake.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex);
    ASSERT_TRUE(wake.wait_for(lock, kDeadline, [&] { return done; }));
  }
  core::Answer Submit(const std::string& key) {
    core::SubmitJob submit;
    submit.caller = caller_;
    submit.key = key;
    submit.spec.set_name("train");
    submit.spec.set_nodes(1);
    submit.spec.set_ranks_per_node(1);
    submit.spec.set_device(v1::DEVICE_CPU);
    submit.spec.add_argv("true");
    submit.spec.set_cwd("/");
    v1::Environment environment;
    v1::EnvVar* var = environment.add_vars();
    var->set_name("HF_TOKEN");
    var->set_value("s3cr3t-value");
    var = environment.add_vars();
    var->set_name("PATH");
    var->set_value("/my/bin");
    return Await<core::Answer>(
        [&](auto done) { engine_->Submit(submit, environment.SerializeAsString(), done); });
  }
  core::Answer Fence(const std::string& node) {
    core::FenceNode fence;
    fence.caller = core::Caller{"root", 0, 0, true};
    fence.node = node;
    return Await<core::Answer>([&](auto done) { engine_->Fence(fence, done); });
  }
  absl::StatusOr<v1::JobStatus> Status(const std::string& what) {
    return Await<absl::StatusOr<v1::JobStatus>>(
        [&](auto done) { engine_->FindStatus(caller_, core::Verb::kSee, what, done); });
  }
  template <class T>
  T Await(const std::function<void(std::function<void(T)>)>& start) {
    auto mutex = std::make_shared<std::mutex>();
    auto wake = std::make_shared<std::condition_variable>();
    auto result = std::make_shared<std::optional<T>>();
    start([=](T value) {
      std::lock_guard<std::mutex> lock(*mutex);
      *result = std::move(value);
      wake->notify_all();
    });
    std::unique_lock<std::mutex> lock(*mutex);
    if (!wake->wait_for(lock, kDeadline, [&] { return result->has_value(); })) abort();
    return **result;
  }
  v1::Report Report(uint64_t number, const std::string& job) {
    v1::Report report;
    report.set_number(number);
    report.set_job_id(job);
    return report;
  }
  void Post(const v1::Report& report, core::ConnectionId connection = 1) {
    engine_->Post({{}, core::NodeReport{NodeId("id-1"), connection, report}});
  }
  // From Prepare to all gone with exit code 0.
  void RunToTheEnd(const std::string& job) {
    EXPECT_EQ(streams_->Take(v1::ControllerMsg::kPrepare).prepare().path(), "/my/bin");
    v1::Report prepared = Report(1, job);
    prepared.mutable_prepared();
    Post(prepared);
    const v1::Launch launch = streams_->Take(v1::ControllerMsg::kLaunch).launch();
    EXPECT_EQ(launch.job_id(), job);
    ASSERT_EQ(launch.environment().vars_size(), 2);
    EXPECT_EQ(launch.environment().vars(0).value(), "s3cr3t-value");
    v1::Report started = Report(2, job);
    started.mutable_started()->set_log_dir("/logs");
    v1::RankReport* rank = started.mutable_started()->add_ranks();
    rank->set_pid(77);
    rank->set_state(v1::RANK_STATE_RUNNING);
    Post(started);
    v1::Report gone = Report(3, job);
    rank = gone.mutable_gone()->add_ranks();
    rank->set_state(v1::RANK_STATE_EXITED);
    rank->mutable_exit();
    Post(gone);
  }

  TempDir dir_;
  core::Caller caller_{"alice", 1000, 1000, false};
  std::unique_ptr<FakeStreams> streams_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Engine> engine_;
};

std::string AllBytesBelow(const std::string& folder) {
  std::ostringstream all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) all << std::ifstream(entry.path()).rdbuf();
  }
  return all.str();
}

TEST_F(EngineTest, AJobFromSubmitToArchive) {
  Connect(1);
  const core::Answer answer = Submit("key");
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const std::string job = answer.job.str();
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<v1::JobState> states;
  engine_->WatchJob(answer.job, [&](const v1::JobStatus& status) {
    std::lock_guard<std::mutex> lock(mutex);
    states.push_back(status.state());
    wake.notify_all();
  });
  EXPECT_EQ(Submit("key").job.str(), job);  // a repeated key
  RunToTheEnd(job);
  {
    std::unique_lock<std::mutex> lock(mutex);
    ASSERT_TRUE(
        wake.wait_for(lock, kDeadline, [&] { return !states.empty() && core::IsEnded(states.back()); }));
    EXPECT_EQ(states.back(), v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(states.front(), v1::JOB_STATE_STARTING);
  }
  streams_->Take(v1::ControllerMsg::kForget);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "state/env"));
  EXPECT_EQ(AllBytesBelow(dir_ / "state").find("s3cr3t-value"), std::string::npos);
  for (const char* what : {job.c_str(), "train", ""}) {
    absl::StatusOr<v1::JobStatus> status = Status(what);
    ASSERT_TRUE(status.ok()) << what << status.status();
    EXPECT_EQ(status->state(), v1::JOB_STATE_SUCCEEDED);
  }
  Restart();
  EXPECT_EQ(Status("train")->job_id(), job);
  Ask([](const core::State& state) { EXPECT_TRUE(state.jobs.empty()); });
  EXPECT_EQ(Submit("key").job.str(), job);  // the key is remembered by the archive
  core::Caller bob{"bob", 1001, 1001, false};
  absl::StatusOr<v1::JobStatus> refused = Await<absl::StatusOr<v1::JobStatus>>(
      [&](auto done) { engine_->FindStatus(bob, core::Verb::kSee, "train", done); });
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Status("none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineTest, APersonsWordIsAnswered) {
  Connect(1);
  EXPECT_EQ(Fence("nowhere").status.code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineTest, ARestartRaisesTheTermAndKeepsTheJob) {
  const uint64_t term = Term();
  Connect(1);
  const core::Answer answer = Submit("key");
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  streams_->Take(v1::ControllerMsg::kPrepare);
  std::ofstream(dir_ / "state/env/orphan") << "x";
  Restart();
  EXPECT_EQ(Term(), term + 1);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "state/env/orphan"));
  EXPECT_EQ(Status("")->job_id(), answer.job.str());
  Connect(1);
  RunToTheEnd(answer.job.str());
  streams_->Take(v1::ControllerMsg::kForget);
}

TEST_F(EngineTest, TheSameMessageGoesOncePerConnection) {
  Connect(1);
  const core::Answer answer = Submit("key");
  streams_->Take(v1::ControllerMsg::kPrepare);
  for (int i = 0; i < 3; ++i) {
    v1::Heartbeat heartbeat;
    heartbeat.set_number(i + 1);
    engine_->Post({{}, core::NodeHeartbeat{NodeId("id-1"), 1, heartbeat}});
    EXPECT_EQ(streams_->Take(v1::ControllerMsg::kAnswer).answer().number(), i + 1u);
  }
  EXPECT_EQ(streams_->Count(v1::ControllerMsg::kPrepare), 0u);
  engine_->Post({{}, core::NodeDisconnected{NodeId("id-1"), 1}});
  Connect(2);
  EXPECT_EQ(streams_->Take(v1::ControllerMsg::kPrepare).prepare().job_id(), answer.job.str());
}

// The file size limit of the process stands for a disk that takes no more.
TEST_F(EngineTest, WhenTheLogCannotBeWrittenNothingIsPromised) {
  Connect(1);
  signal(SIGXFSZ, SIG_IGN);
  rlimit whole;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &whole), 0);
  rlimit none = whole;
  none.rlim_cur = std::filesystem::file_size(dir_ / "state/log.db-wal");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const core::Answer refused = Submit("key");
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable) << refused.status;
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("log.db"));
  // A connected node keeps its lease.
  v1::Heartbeat heartbeat;
  heartbeat.set_number(9);
  engine_->Post({{}, core::NodeHeartbeat{NodeId("id-1"), 1, heartbeat}});
  EXPECT_EQ(streams_->Take(v1::ControllerMsg::kAnswer).answer().number(), 9u);
  EXPECT_EQ(streams_->Count(v1::ControllerMsg::kPrepare), 0u);
  EXPECT_EQ(Status("").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "state/env"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &whole), 0);
  ASSERT_TRUE(streams_->WaitClosed());
  Connect(2);
  EXPECT_TRUE(Submit("key").status.ok());
  streams_->Take(v1::ControllerMsg::kPrepare);
}

TEST(EngineStart, ErrorsNameThePlace) {
  FakeStreams streams;
  Outbox outbox(EnvironmentStore("/nowhere", false), &streams, nullptr);
  EngineOptions options;
  options.state_dir = "/proc/nowhere";
  EXPECT_THAT(std::string(Engine::Start(options, &outbox).status().message()), HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace dgxrun
