// Channel, run folder, exit status, cgroup, event loop.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "dgxrun/v1/shim.pb.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/sys.h"
#include "launcher/cgroup.h"
#include "launcher/exit_status.h"
#include "launcher/run_dir.h"
#include "launcher/shim_channel.h"
#include "proto/signal_names.h"

namespace dgxrun {
namespace {

class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    left_ = std::make_unique<ShimChannel>(UniqueFd(ends[0]));
    right_ = std::make_unique<ShimChannel>(UniqueFd(ends[1]));
  }
  std::vector<std::string> Received(absl::Status* status = nullptr) {
    std::vector<std::string> messages;
    const absl::Status result = right_->Read([&](const std::string& bytes) { messages.push_back(bytes); });
    if (status != nullptr) *status = result;
    return messages;
  }
  std::unique_ptr<ShimChannel> left_, right_;
};

v1::ShimCommand StopBecause(const std::string& reason) {
  v1::ShimCommand command;
  command.mutable_stop()->set_reason(reason);
  return command;
}

TEST_F(ChannelTest, MessagesArriveWholeAndInOrder) {
  for (const char* reason : {"one", "", "three"}) ASSERT_TRUE(left_->Send(StopBecause(reason)).ok());
  const std::vector<std::string> messages = Received();
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[2], StopBecause("three").SerializeAsString());
}

TEST_F(ChannelTest, AnEmptyMessageIsAMessage) {
  ASSERT_TRUE(left_->Send(v1::ShimCommand()).ok());
  EXPECT_EQ(Received().size(), 1u);
}

TEST_F(ChannelTest, ALargeMessageIsQueuedAndFlushed) {
  const v1::ShimCommand large = StopBecause(std::string(4 << 20, 'x'));
  ASSERT_TRUE(left_->Send(large).ok());
  EXPECT_TRUE(left_->wants_write());
  std::vector<std::string> messages;
  for (int i = 0; i < 1000 && messages.empty(); ++i) {
    messages = Received();
    ASSERT_TRUE(left_->Flush().ok());
  }
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0] == large.SerializeAsString());
  EXPECT_FALSE(left_->wants_write());
}

TEST_F(ChannelTest, ABytewiseStreamIsPutTogether) {
  const std::string bytes = DelimitedBytes(StopBecause(std::string(300, 'y')));
  for (char c : bytes) {
    EXPECT_TRUE(Received().empty());
    ASSERT_EQ(write(left_->fd(), &c, 1), 1);
  }
  EXPECT_EQ(Received().size(), 1u);
}

TEST_F(ChannelTest, WhatCameBeforeTheEndStillCounts) {
  ASSERT_TRUE(left_->Send(StopBecause("last words")).ok());
  left_.reset();
  absl::Status status;
  EXPECT_EQ(Received(&status).size(), 1u);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(right_->Send(StopBecause("x")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ChannelTest, LimitsAreKept) {
  const std::string huge = "\xff\xff\xff\x7f";  // a length of 256 MiB
  ASSERT_EQ(write(left_->fd(), huge.data(), huge.size()), 4);
  absl::Status status;
  Received(&status);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const v1::ShimCommand big = StopBecause(std::string(15 << 20, 'z'));
  ASSERT_TRUE(left_->Send(big).ok());
  ASSERT_TRUE(left_->Send(big).ok());
  EXPECT_EQ(left_->Send(big).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(left_->Send(StopBecause(std::string(17 << 20, 'z'))).code(),
            absl::StatusCode::kResourceExhausted);
}

class RunDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/dgxrun-run-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    dir_ = pattern;
  }
  void TearDown() override {
    unsetenv("DGXRUN_RUN_DIR");
    RemoveAttemptDir(dir_ + "/sub");
    unlink((dir_ + "/file").c_str());
    unlink((dir_ + "/link").c_str());
    RemoveAttemptDir(dir_);
  }
  std::string dir_;
};

TEST_F(RunDirTest, AFolderOfOursAndClosedIsTaken) {
  EXPECT_TRUE(PrepareRunDir(dir_).ok());
  EXPECT_TRUE(PrepareRunDir(dir_ + "/sub").ok());
  struct stat info;
  ASSERT_EQ(stat((dir_ + "/sub").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(RunDirTest, AnOpenFolderALinkOrAFileIsRefused) {
  ASSERT_EQ(chmod(dir_.c_str(), 0750), 0);
  EXPECT_EQ(PrepareRunDir(dir_).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(symlink("/tmp", (dir_ + "/link").c_str()), 0);
  EXPECT_EQ(PrepareRunDir(dir_ + "/link").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/file", "x").ok());
  EXPECT_EQ(PrepareRunDir(dir_ + "/file").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(PrepareRunDir(dir_ + "/no/such").ok());
}

TEST_F(RunDirTest, TheEnvironmentNamesIt) {
  setenv("DGXRUN_RUN_DIR", "/somewhere", 1);
  EXPECT_EQ(DefaultRunDir(), "/somewhere");
  unsetenv("DGXRUN_RUN_DIR");
  EXPECT_NE(DefaultRunDir().find("dgxrun"), std::string::npos);
}

TEST_F(RunDirTest, SocketPathsHaveALimit) {
  EXPECT_TRUE(ShimSocketPath("/" + std::string(96, 'a')).ok());  // 107 with "/shim.sock"
  EXPECT_EQ(ShimSocketPath("/" + std::string(97, 'a')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RunDirTest, FinalAndJournalComeBack) {
  EXPECT_EQ(ReadFinal(dir_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadJournal(dir_).ok());
  v1::ShimFinal final;
  final.set_job_id("j-1");
  v1::ShimEvent event;
  event.set_number(1);
  event.mutable_started()->set_log_dir("/l");
  const std::string torn = DelimitedBytes(event).substr(0, 3);
  ASSERT_TRUE(WriteFileAtomically(absl::StrCat(dir_, "/", kJournalName),
                                  DelimitedBytes(final) + DelimitedBytes(event) + torn)
                  .ok());
  absl::StatusOr<v1::ShimFinal> journal = ReadJournal(dir_);
  ASSERT_TRUE(journal.ok());
  EXPECT_EQ(journal->job_id(), "j-1");
  ASSERT_EQ(journal->events_size(), 1);
  ASSERT_TRUE(WriteFinal(dir_, *journal).ok());
  EXPECT_EQ(ReadFinal(dir_)->events(0).started().log_dir(), "/l");
}

TEST(ExitStatusTest, CodesAndWords) {
  ChildEnd end;
  end.exit_code = 85;
  EXPECT_EQ(DescribeExit(ToExitStatus(end)), "exited with code 85");
  end.signal = SIGSEGV;
  end.core_dumped = true;
  EXPECT_EQ(ToExitStatus(end).code(), 139);
  EXPECT_EQ(DescribeExit(ToExitStatus(end)), "killed by SIGSEGV (core dumped)");
  EXPECT_EQ(SignalName(SIGRTMIN + 5), "SIGRTMIN+5");
  EXPECT_EQ(SignalName(1000), "signal 1000");
}

TEST(CgroupTest, OnlyNamesOfOursAreTouched) {
  EXPECT_EQ(Cgroup::Adopt("/sys/fs/cgroup").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Cgroup::Adopt("/sys/fs/cgroup/user.slice").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Cgroup::Make("/tmp/other").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Cgroup::Adopt("/tmp/dgxrun-x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CgroupPathOf("/p", "ab-3", 2, "0123456789-x:ab-3.2"), "/p/dgxrun-ab-3.2.01234567");
  EXPECT_EQ(CgroupKind(""), "none");
}

// Others may sweep the same parent meanwhile, so an abandoned one is only said to be gone in the end.
TEST(CgroupTest, AbandonedOnesAreRemoved) {
  const std::string parent = FindCgroupParent();
  const std::string path = absl::StrCat(parent, "/dgxrun-test-abandoned-", getpid());
  EXPECT_EQ(RemoveAbandonedCgroups(""), 0);
  if (parent.empty()) {
    EXPECT_FALSE(Cgroup::Make(path).ok());  // no cgroups on this machine
    return;
  }
  {
    absl::StatusOr<Cgroup> held = Cgroup::Make(path);
    ASSERT_TRUE(held.ok()) << held.status();
    RemoveAbandonedCgroups(parent);
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << "its maker lives";
  }
  RemoveAbandonedCgroups(parent);
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "nobody holds it";
}

TEST(CgroupTest, AbandonedOnesWithMembersStay) {
  const std::string parent = FindCgroupParent();
  if (parent.empty()) {
    EXPECT_EQ(CgroupKind(parent), "none");
    return;
  }
  const std::string path = absl::StrCat(parent, "/dgxrun-test-members-", getpid());
  RealSys sys;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd theirs(ends[0]), ours(ends[1]);
  absl::StatusOr<pid_t> member = sys.Fork([&] {
    ours.Reset();
    char byte;
    _exit(read(theirs.get(), &byte, 1) == 0 ? 0 : 1);
  });
  ASSERT_TRUE(member.ok()) << member.status();
  {
    absl::StatusOr<Cgroup> cgroup = Cgroup::Make(path);
    ASSERT_TRUE(cgroup.ok()) << cgroup.status();
    EXPECT_TRUE(cgroup->Add(*member).ok());
  }
  RemoveAbandonedCgroups(parent);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  ours.Reset();
  EXPECT_EQ(waitpid(*member, nullptr, 0), *member);
  RemoveAbandonedCgroups(parent);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(CgroupTest, TheEnvironmentForbidsThem) {
  setenv("DGXRUN_NO_CGROUP", "1", 1);
  EXPECT_EQ(FindCgroupParent(), "");
  unsetenv("DGXRUN_NO_CGROUP");
}

TEST(EventLoopTest, TimersFdsAndPostsRun) {
  EventLoop loop;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]), writer(ends[1]);
  std::string order;
  loop.Watch(reader.get(), EPOLLIN, [&](uint32_t) {
    order += "f";
    loop.Unwatch(reader.get());
  });
  loop.After(absl::Milliseconds(1), [&] { order += "t"; });
  const EventLoop::TimerId never = loop.After(absl::Milliseconds(1), [&] { order += "never"; });
  loop.Cancel(never);
  loop.Post([&] { order += "p"; });
  while (order.size() < 2) loop.RunOnce(absl::Seconds(5));
  EXPECT_EQ(order, "pt");
  ASSERT_EQ(write(writer.get(), "x", 1), 1);
  EXPECT_TRUE(loop.RunOnce(absl::Seconds(5)));
  EXPECT_EQ(order, "ptf");
  loop.Post([&] { loop.Quit(); });
  loop.Run();
}

}  // namespace
}  // namespace dgxrun
