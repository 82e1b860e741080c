// A controller that is called within its own process: a job from submit to end, its output, a stop, and what
// happens when either side leaves.
#include <condition_variable>
#include <deque>
#include <mutex>

#include "controller/controller.h"
#include "controller/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc/wire_version.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

using ::testing::HasSubstr;
constexpr auto kDeadline = std::chrono::seconds(20);  // of anything that should take milliseconds

// What the controller's threads say, for the test's own thread.
template <class T>
class Heard {
 public:
  void Put(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_.push_back(std::move(value));
    came_.notify_all();
  }
  // The first one that fits; those before it are dropped.
  template <class Fits>
  T Take(Fits fits) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (true) {
      while (!values_.empty()) {
        T value = std::move(values_.front());
        values_.pop_front();
        if (fits(value)) return value;
      }
      if (came_.wait_until(lock, deadline) == std::cv_status::timeout) {
        ADD_FAILURE() << "not said in time";
        return T();
      }
    }
  }
  T Take() {
    return Take([](const T&) { return true; });
  }
  bool empty() {
    std::lock_guard<std::mutex> lock(mutex_);
    return values_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<T> values_;
};

// The agent of the one node.
class LocalNode {
 public:
  explicit LocalNode(InProcess* controller)
      : end_(controller->ConnectNode([this](v1::ControllerMsg message) { messages_.Put(std::move(message)); },
                                     [this](const std::string& why) { closed_.Put(why); })) {}
  void Hello(uint32_t major = OurWireVersion().major()) {
    v1::AgentMsg message;
    v1::Hello* hello = message.mutable_hello();
    *hello->mutable_version() = OurWireVersion();
    hello->mutable_version()->set_major(major);
    hello->set_node_id("id-here");
    hello->set_node_name("here");
    hello->set_boot_id("boot");
    hello->set_agent_user("root");
    hello->mutable_inventory()->set_allowed_cores(4);
    hello->mutable_inventory()->add_addresses("10.0.0.1");
    hello->add_free_ports(29500);
    end_->Send(message);
  }
  v1::ControllerMsg Expect(v1::ControllerMsg::BodyCase kind) {
    return messages_.Take([kind](const v1::ControllerMsg& m) { return m.body_case() == kind; });
  }
  v1::Report* NewReport(v1::AgentMsg* message, const std::string& job) {
    message->mutable_report()->set_number(++reports_);
    message->mutable_report()->set_job_id(job);
    return message->mutable_report();
  }
  void StartJob(const std::string& job) {
    Expect(v1::ControllerMsg::kPrepare);
    v1::AgentMsg prepared, started;
    NewReport(&prepared, job)->mutable_prepared();
    end_->Send(prepared);
    EXPECT_EQ(Expect(v1::ControllerMsg::kLaunch).launch().environment().vars(0).value(), "s3cr3t");
    v1::RanksStarted* ranks = NewReport(&started, job)->mutable_started();
    ranks->set_log_dir("/logs");
    ranks->add_ranks()->set_state(v1::RANK_STATE_RUNNING);
    end_->Send(started);
  }
  void EndJob(const std::string& job, int signal) {
    v1::AgentMsg gone;
    v1::RankReport* rank = NewReport(&gone, job)->mutable_gone()->add_ranks();
    rank->set_state(v1::RANK_STATE_EXITED);
    rank->set_after_stop(signal != 0);
    rank->mutable_exit()->set_code(signal != 0 ? 128 + signal : 0);
    rank->mutable_exit()->set_signal(signal);
    end_->Send(gone);
  }
  Heard<std::string>& closed() { return closed_; }
  void BreakOff() { end_.reset(); }

 private:
  Heard<v1::ControllerMsg> messages_;
  Heard<std::string> closed_;
  uint64_t reports_ = 0;
  std::unique_ptr<InProcess::Node> end_;
};

class InProcessTest : public ::testing::Test {
 protected:
  InProcessTest() {
    ControllerOptions options;
    options.cluster_name = "local";
    options.state_dir = folder_ / "state";
    options.durable = false;
    controller_ = *Controller::Start(std::move(options));
  }
  InProcess& here() { return controller_->in_process(); }
  v1::SubmitRequest NewJob() {
    v1::SubmitRequest request;
    request.set_key("key");
    request.mutable_spec()->set_nodes(1);
    request.mutable_spec()->set_ranks_per_node(1);
    request.mutable_spec()->set_device(v1::DEVICE_CPU);
    request.mutable_spec()->add_argv("true");
    request.mutable_spec()->set_cwd("/");
    v1::EnvVar* var = request.mutable_environment()->add_vars();
    var->set_name("API_KEY");
    var->set_value("s3cr3t");
    return request;
  }
  absl::StatusOr<v1::SubmitReply> Submit(const v1::SubmitRequest& request) {
    Heard<std::pair<absl::Status, v1::SubmitReply>> answer;
    here().Submit(request, [&answer](absl::Status status, v1::SubmitReply reply) {
      answer.Put({std::move(status), std::move(reply)});
    });
    auto [status, reply] = answer.Take();
    if (!status.ok()) return status;
    return reply;
  }
  std::unique_ptr<InProcess::Call> Watch(const std::string& job) {
    v1::WatchRequest request;
    request.set_job(job);
    return here().Watch(
        request, [this](const v1::JobStatus& status) { statuses_.Put(status); },
        [this](const grpc::Status& status) { ended_.Put(status); });
  }
  void ExpectState(v1::JobState state) {
    statuses_.Take([state](const v1::JobStatus& status) { return status.state() == state; });
  }

  TempDir folder_;
  Heard<v1::JobStatus> statuses_;
  Heard<grpc::Status> ended_;
  std::unique_ptr<Controller> controller_;  // its threads use the above
};

TEST_F(InProcessTest, AJobFromSubmitToEnd) {
  LocalNode node(&here());
  node.Hello();
  node.Expect(v1::ControllerMsg::kWelcome);
  const auto submitted = Submit(NewJob());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const auto watch = Watch(submitted->job_id());
  node.StartJob(submitted->job_id());
  ExpectState(v1::JOB_STATE_RUNNING);
  node.EndJob(submitted->job_id(), 0);
  ExpectState(v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(ended_.Take().ok());
}

TEST_F(InProcessTest, AStopIsAnsweredAndEndsTheJob) {
  LocalNode node(&here());
  node.Hello();
  const std::string job = Submit(NewJob())->job_id();
  const auto watch = Watch(job);
  node.StartJob(job);
  ExpectState(v1::JOB_STATE_RUNNING);
  v1::StopRequest request;
  request.set_job(job);
  Heard<absl::Status> answer;
  here().Stop(request, [&answer](absl::Status status, v1::StopReply) { answer.Put(std::move(status)); });
  EXPECT_TRUE(answer.Take().ok());
  node.Expect(v1::ControllerMsg::kStop);
  node.EndJob(job, 15);
  ExpectState(v1::JOB_STATE_STOPPED);
}

TEST_F(InProcessTest, ABadSubmitAndAnUnknownJobAreRefused) {
  v1::SubmitRequest bad = NewJob();
  bad.mutable_spec()->set_cwd("relative");
  EXPECT_THAT(std::string(Submit(bad).status().message()), HasSubstr("absolute"));
  const auto watch = Watch("nobody");
  EXPECT_EQ(ended_.Take().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(InProcessTest, OutputWaitsUntilAChunkIsTaken) {
  LocalNode node(&here());
  node.Hello();
  const std::string job = Submit(NewJob())->job_id();
  v1::LogsRequest request;
  request.set_job(job);
  request.set_follow(true);
  Heard<std::pair<std::string, std::function<void()>>> chunks;
  const auto logs = here().Logs(
      request,
      [&chunks](v1::OutputChunk chunk, std::function<void()> taken) {
        chunks.Put({chunk.data(), std::move(taken)});
      },
      [this](const grpc::Status& status) { ended_.Put(status); });
  node.StartJob(job);
  const uint64_t tail = node.Expect(v1::ControllerMsg::kTail).tail().tail_id();
  const auto output = here().OpenOutput();
  Heard<bool> written;
  const auto write = [&](const std::string& text, uint64_t offset) {
    v1::OutputChunk chunk;
    chunk.set_tail_id(tail);
    chunk.set_stream(v1::STREAM_STDOUT);
    chunk.set_offset(offset);
    chunk.set_data(text);
    output->Write(std::move(chunk), [&written](bool ok) { written.Put(ok); });
  };
  write("one\n", 0);
  EXPECT_TRUE(written.Take());
  write("two\n", 4);
  EXPECT_TRUE(written.Take());  // the controller holds it until the reader wants it
  auto [first, taken] = chunks.Take();
  EXPECT_EQ(first, "one\n");
  EXPECT_TRUE(chunks.empty());
  taken();
  auto [second, taken_too] = chunks.Take();
  EXPECT_EQ(second, "two\n");
  taken_too();
  output->Finish();
  node.EndJob(job, 0);
  EXPECT_TRUE(ended_.Take().ok());
}

TEST_F(InProcessTest, CancelEndsWatchAndLogs) {
  const std::string job = Submit(NewJob())->job_id();
  const auto watch = Watch(job);
  ExpectState(v1::JOB_STATE_QUEUED);
  watch->Cancel();
  EXPECT_EQ(ended_.Take().error_code(), grpc::StatusCode::CANCELLED);
  v1::LogsRequest request;
  request.set_job(job);
  request.set_follow(true);
  const auto logs = here().Logs(
      request, [](v1::OutputChunk, std::function<void()>) {},
      [this](const grpc::Status& status) { ended_.Put(status); });
  logs->Cancel();
  EXPECT_EQ(ended_.Take().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InProcessTest, AWrongVersionIsRefusedForGood) {
  LocalNode node(&here());
  node.Hello(OurWireVersion().major() + 1);
  EXPECT_TRUE(node.Expect(v1::ControllerMsg::kRefused).refused().final());
  EXPECT_THAT(node.closed().Take(), HasSubstr("closed"));
}

TEST_F(InProcessTest, ANewStreamOfTheNodeEndsTheOldOne) {
  LocalNode old(&here());
  old.Hello();
  old.Expect(v1::ControllerMsg::kWelcome);
  LocalNode node(&here());
  node.Hello();
  node.Expect(v1::ControllerMsg::kWelcome);
  EXPECT_THAT(old.closed().Take(), HasSubstr("closed"));
  node.BreakOff();  // by the node itself: nobody is told
  EXPECT_TRUE(node.closed().empty());
}

}  // namespace
}  // namespace dgxrun
