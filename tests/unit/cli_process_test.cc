// Local jobs on disk, daemons found by a pid file, and the janitor: with real files, sockets and processes.
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/daemon.h"
#include "cli/janitor.h"
#include "cli/local_jobs.h"
#include "cli/paths.h"
#include "cli/status_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/base/sys.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

using ::testing::HasSubstr;

// Waits for a condition; generous, for a loaded machine.
bool Soon(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    poll(nullptr, 0, 5);
  }
  return true;
}

class Folder : public ::testing::Test {
 protected:
  Folder() {
    std::string pattern = ::testing::TempDir() + "/dgxrun_procXXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~Folder() override { std::filesystem::remove_all(dir_); }

  UniqueFd Listen(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd.get(), 8), 0);
    return fd;
  }
  std::string dir_;
};

v1::JobStatus Job(const std::string& id, v1::JobState state, int64_t submitted) {
  v1::JobStatus job;
  job.set_job_id(id);
  job.set_name("name");
  job.set_state(state);
  job.set_submitted_unix_ns(submitted);
  v1::JobNodeStatus* node = job.add_nodes();
  node->set_state(v1::NODE_STATE_UP);
  node->add_ranks()->set_state(v1::RANK_STATE_RUNNING);
  return job;
}

using LocalJobsTest = Folder;

TEST_F(LocalJobsTest, ByIdByNameAndTheNewest) {
  const LocalJobs jobs(dir_ + "/local");
  EXPECT_THAT(std::string(jobs.Find("").status().message()), HasSubstr("no jobs yet"));
  ASSERT_TRUE(jobs.Write(Job("aaaaaa-1", v1::JOB_STATE_SUCCEEDED, 10), "/x").ok());
  ASSERT_TRUE(jobs.Write(Job("bbbbbb-1", v1::JOB_STATE_FAILED, 30), "/x").ok());
  ASSERT_TRUE(jobs.Write(Job("cccccc-1", v1::JOB_STATE_STOPPED, 20), "/x").ok());
  EXPECT_EQ(jobs.Find("")->status.job_id(), "bbbbbb-1");
  EXPECT_EQ(jobs.Find("name")->status.job_id(), "bbbbbb-1");
  EXPECT_EQ(jobs.Find("aaaaaa-1")->status.state(), v1::JOB_STATE_SUCCEEDED);
  v1::JobStatus named_like_an_id = Job("dddddd-1", v1::JOB_STATE_STOPPED, 25);
  named_like_an_id.set_name("aaaaaa-1");
  ASSERT_TRUE(jobs.Write(named_like_an_id, "/x").ok());
  EXPECT_EQ(jobs.Find("aaaaaa-1")->status.job_id(), "aaaaaa-1") << "an id goes before a name";
  EXPECT_THAT(std::string(jobs.Find("zzz").status().message()), HasSubstr("no job zzz"));
  jobs.Prune(2);
  EXPECT_EQ(jobs.Find("aaaaaa-1")->status.job_id(), "dddddd-1") << "the oldest goes, its namesake stays";
  EXPECT_EQ(jobs.List().size(), 2u);
  EXPECT_FALSE(jobs.Write(Job("../x", v1::JOB_STATE_RUNNING, 1), "/x").ok());
}

TEST_F(LocalJobsTest, AKilledDgxrunIsToldAsSuch) {
  const LocalJobs jobs(dir_ + "/local");
  const std::string socket = dir_ + "/control.sock";
  ASSERT_TRUE(jobs.Write(Job("aaaaaa-1", v1::JOB_STATE_RUNNING, 10), socket).ok());
  {
    const UniqueFd listening = Listen(socket);
    const auto running = jobs.Find("aaaaaa-1");
    EXPECT_EQ(running->status.state(), v1::JOB_STATE_RUNNING);
    EXPECT_EQ(running->control_socket, socket);
    jobs.Prune(0);
    EXPECT_TRUE(jobs.Find("aaaaaa-1").ok()) << "a running job is never removed";
  }
  const auto dead = jobs.Find("aaaaaa-1");
  EXPECT_EQ(dead->status.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(dead->status.why().cause(), v1::CAUSE_CLIENT_LOST);
  EXPECT_EQ(dead->status.exit_code(), 70);
  EXPECT_EQ(dead->status.nodes(0).ranks(0).state(), v1::RANK_STATE_UNKNOWN);
  EXPECT_GT(dead->status.ended_unix_ns(), 0);
  EXPECT_EQ(dead->control_socket, "");
}

TEST_F(LocalJobsTest, AStatusIsKeptWhenItsDiskIsFull) {
  const auto full = [](const std::string& path, const std::string&) {
    return absl::ResourceExhaustedError(path + ": No space left on device");
  };
  v1::JobStatus read;
  EXPECT_FALSE(ReadStatus(dir_, &read));
  ASSERT_TRUE(WriteStatus(dir_, Job("aaaaaa-1", v1::JOB_STATE_QUEUED, 10), WriteFileAtomically).ok());
  ASSERT_TRUE(WriteStatus(dir_, Job("aaaaaa-1", v1::JOB_STATE_RUNNING, 10), full).ok());
  ASSERT_TRUE(ReadStatus(dir_, &read));
  EXPECT_EQ(read.state(), v1::JOB_STATE_RUNNING);
  v1::JobStatus large = Job("aaaaaa-1", v1::JOB_STATE_FAILED, 10);
  large.mutable_why()->set_detail(std::string(64 << 10, 'x'));
  EXPECT_FALSE(WriteStatus(dir_, large, full).ok()) << "more than was reserved";
  ASSERT_TRUE(WriteStatus(dir_, Job("aaaaaa-1", v1::JOB_STATE_SUCCEEDED, 10), WriteFileAtomically).ok());
  ASSERT_TRUE(ReadStatus(dir_, &read));
  EXPECT_EQ(read.state(), v1::JOB_STATE_SUCCEEDED) << "what was reserved counts no more";
}

using DaemonTest = Folder;

TEST_F(DaemonTest, StartFindEnd) {
  Daemon daemon(dir_ + "/pid");
  EXPECT_EQ(daemon.LivingPid(), 0);
  ASSERT_TRUE(daemon
                  .Start({"/bin/sh", "-c", "echo $WORD; exec sleep 1000"},
                         {"WORD=said", "PATH=/usr/bin:/bin"}, dir_ + "/log")
                  .ok());
  const int pid = daemon.LivingPid();
  ASSERT_GT(pid, 1);
  EXPECT_EQ(getsid(pid), pid) << "a session of its own";
  EXPECT_EQ(Daemon(dir_ + "/pid").LivingPid(), pid);
  EXPECT_TRUE(Soon([&] { return ReadFile(dir_ + "/log").value_or("") == "said\n"; }));
  EXPECT_TRUE(daemon.End(absl::Seconds(20)).ok());
  EXPECT_EQ(daemon.LivingPid(), 0);
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/pid"));
  EXPECT_TRUE(daemon.End(absl::Seconds(1)).ok()) << "what does not run has ended";
}

TEST_F(DaemonTest, AnotherProcessWithThatPidIsNotTouched) {
  Daemon daemon(dir_ + "/pid");
  ASSERT_TRUE(daemon.Start({"/bin/sleep", "1000"}, {}, dir_ + "/log").ok());
  const int pid = daemon.LivingPid();
  const std::string right = *ReadFile(dir_ + "/pid");
  const std::string boot = right.substr(right.rfind(' ') + 1);
  for (const std::string& wrong :
       {absl::StrCat(pid, " 1 ", boot),
        absl::StrCat(pid, right.substr(right.find(' '), right.rfind(' ') - right.find(' ')),
                     " another-boot\n"),
        std::string("x"), std::string("-1 1 1")}) {
    ASSERT_TRUE(WriteFileAtomically(dir_ + "/pid", wrong).ok());
    EXPECT_EQ(daemon.LivingPid(), 0) << wrong;
    EXPECT_TRUE(daemon.End(absl::Seconds(1)).ok());
    EXPECT_EQ(kill(pid, 0), 0) << "it must live on";
  }
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/pid", right).ok());
  EXPECT_TRUE(daemon.End(absl::Seconds(20)).ok());
}

TEST_F(DaemonTest, OneThatIgnoresSigtermIsKilled) {
  Daemon daemon(dir_ + "/pid");
  ASSERT_TRUE(daemon
                  .Start({"/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"},
                         {"PATH=/usr/bin:/bin"}, dir_ + "/log")
                  .ok());
  EXPECT_TRUE(daemon.End(absl::Milliseconds(50)).ok());
  EXPECT_EQ(daemon.LivingPid(), 0);
}

TEST_F(DaemonTest, AMissingProgramIsNamed) {
  Daemon daemon(dir_ + "/pid");
  EXPECT_THAT(std::string(daemon.Start({"/no/such"}, {}, dir_ + "/log").message()), HasSubstr("/no/such"));
}

using JanitorTest = Folder;

bool GoneSoon(const std::string& path) {
  return Soon([&] { return !std::filesystem::exists(path); });
}

TEST_F(JanitorTest, AnOrderlyEndRemovesAll) {
  const std::string folder = dir_ + "/local-1";
  auto janitor = Janitor::Start(folder);
  ASSERT_TRUE(janitor.ok());
  ASSERT_TRUE(MakeFolders(folder + "/shims/job.0", 0700).ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/env", "secret").ok());
  janitor->Finish();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// The process that started it is killed: secrets go at once, a shim's folder when the shim has removed it.
TEST_F(JanitorTest, AfterAKillItWaitsForTheShims) {
  const std::string folder = dir_ + "/local-1";
  const std::string shim = folder + "/shims/job.0";
  ASSERT_TRUE(MakeFolders(shim, 0700).ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/env", "secret").ok());
  RealSys sys;
  auto child = sys.Fork([&] {
    auto janitor = Janitor::Start(folder);
    if (!janitor.ok()) _exit(1);
    raise(SIGKILL);
  });
  ASSERT_TRUE(child.ok());
  int status = 0;
  ASSERT_EQ(waitpid(*child, &status, 0), *child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(GoneSoon(folder + "/env"));
  EXPECT_TRUE(std::filesystem::exists(shim));
  std::filesystem::remove_all(shim);
  EXPECT_TRUE(GoneSoon(folder));
}

}  // namespace
}  // namespace dgxrun::cli
