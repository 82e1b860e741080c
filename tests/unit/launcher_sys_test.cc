// One contract for both Sys: what the fake says is what the kernel does.
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "launcher/base/sys.h"
#include "tests/unit/launcher_deny.h"

namespace dgxrun {
namespace {

[[maybe_unused]] const bool kPrepared = (testing::DenyNewSyscallsIfRequested(), true);

// How a test makes processes: by a fork that never returns, or by an entry in the fake's table.
class World {
 public:
  virtual ~World() = default;
  virtual Sys& sys() = 0;
  virtual pid_t Child(bool ignore_term) = 0;
  // A child of ours with a child of its own; both pids.
  virtual std::pair<pid_t, pid_t> ChildWithChild() = 0;
};

class RealWorld final : public World {
 public:
  RealWorld() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  Sys& sys() override { return sys_; }
  pid_t Child(bool ignore_term) override {
    return Start([ignore_term] {
      if (ignore_term) signal(SIGTERM, SIG_IGN);
    });
  }
  std::pair<pid_t, pid_t> ChildWithChild() override {
    const pid_t child = Start([] {
      if (fork() == 0) {
        while (true) pause();
      }
    });
    return {child, sys_.Children(child).at(0)};
  }

 private:
  template <class Function>
  pid_t Start(Function prepare) {
    int ready[2];
    if (pipe(ready) != 0) abort();
    absl::StatusOr<pid_t> pid = sys_.Fork([&] {
      setsid();
      prepare();
      if (write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    });
    char byte;
    if (!pid.ok() || read(ready[0], &byte, 1) != 1) abort();
    close(ready[0]);
    close(ready[1]);
    return *pid;
  }
  RealSys sys_;
};

class FakeWorld final : public World {
 public:
  Sys& sys() override { return sys_; }
  pid_t Child(bool ignore_term) override {
    const pid_t pid = sys_.Spawn(FakeSys::kSelf, true);
    if (ignore_term) sys_.IgnoreTerm(pid);
    return pid;
  }
  std::pair<pid_t, pid_t> ChildWithChild() override {
    const pid_t child = sys_.Spawn(FakeSys::kSelf, true);
    return {child, sys_.Spawn(child, false)};
  }

 private:
  FakeSys sys_;
};

class SysContract : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      world_ = std::make_unique<RealWorld>();
    } else {
      world_ = std::make_unique<FakeWorld>();
    }
  }
  void TearDown() override { KillDescendants(world_->sys()); }

  // A death takes a moment in the real world.
  ChildEnd ReapSoon() {
    ChildEnd end;
    EXPECT_EQ(world_->sys().Reap(true, &end), Reaped::kOne);
    return end;
  }
  std::unique_ptr<World> world_;
};
INSTANTIATE_TEST_SUITE_P(Both, SysContract, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Real" : "Fake"; });

TEST_P(SysContract, ReapTellsNoneFromNoChildren) {
  ChildEnd end;
  EXPECT_EQ(world_->sys().Reap(false, &end), Reaped::kNoChildren);
  const pid_t pid = world_->Child(false);
  EXPECT_EQ(world_->sys().Reap(false, &end), Reaped::kNone);
  EXPECT_EQ(world_->sys().Kill(pid, SIGTERM), 0);
  end = ReapSoon();
  EXPECT_EQ(end.pid, pid);
  EXPECT_EQ(end.signal, SIGTERM);
  EXPECT_EQ(world_->sys().Reap(false, &end), Reaped::kNoChildren);
  EXPECT_EQ(world_->sys().Kill(pid, SIGTERM), ESRCH);
}

TEST_P(SysContract, AProcessThatIgnoresTermDiesOfKill) {
  const pid_t pid = world_->Child(true);
  EXPECT_EQ(world_->sys().Kill(pid, SIGTERM), 0);
  EXPECT_EQ(world_->sys().Kill(pid, SIGKILL), 0);
  EXPECT_EQ(ReapSoon().signal, SIGKILL);
}

TEST_P(SysContract, AnOrphanComesToTheSubreaper) {
  const auto [child, grandchild] = world_->ChildWithChild();
  const std::vector<pid_t> all = Descendants(world_->sys(), world_->sys().Self(), {});
  EXPECT_EQ(all, (std::vector<pid_t>{child, grandchild}));
  EXPECT_TRUE(Descendants(world_->sys(), world_->sys().Self(), {child}).empty());
  world_->sys().Kill(child, SIGKILL);
  EXPECT_EQ(ReapSoon().pid, child);
  EXPECT_EQ(world_->sys().Children(world_->sys().Self()), std::vector<pid_t>{grandchild});
}

TEST_P(SysContract, AGroupGetsTheSignal) {
  const auto [child, grandchild] = world_->ChildWithChild();
  EXPECT_EQ(world_->sys().Group(grandchild), child);
  EXPECT_EQ(world_->sys().KillGroup(child, SIGTERM), 0);
  std::vector<pid_t> dead = {ReapSoon().pid, ReapSoon().pid};
  std::sort(dead.begin(), dead.end());
  EXPECT_EQ(dead, (std::vector<pid_t>{child, grandchild}));
  EXPECT_EQ(world_->sys().KillGroup(child, SIGTERM), ESRCH);
}

TEST_P(SysContract, KillDescendantsLeavesNoChild) {
  for (int i = 0; i < 5; ++i) world_->ChildWithChild();
  KillDescendants(world_->sys());
  ChildEnd end;
  EXPECT_EQ(world_->sys().Reap(false, &end), Reaped::kNoChildren);
}

TEST(RealSysTest, PidfdTellsTheEndWhereThereIsOne) {
  RealWorld world;
  const pid_t pid = world.Child(false);
  UniqueFd pidfd = world.sys().PidfdOpen(pid);
  EXPECT_EQ(pidfd.valid(), !testing::DenyRequested());
  world.sys().Kill(pid, SIGKILL);
  if (pidfd.valid()) {
    pollfd one{pidfd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 10'000), 1);
  }
  KillDescendants(world.sys());
}

TEST(FakeSysTest, ALastForkIsMetInTheNextRound) {
  FakeSys sys;
  const pid_t bomb = sys.Spawn(FakeSys::kSelf, true);
  sys.OnKill(bomb, [&] {
    const pid_t second = sys.Spawn(bomb, false);
    sys.OnKill(second, [&sys, second] { sys.Spawn(second, false); });
  });
  KillDescendants(sys);
  EXPECT_EQ(sys.living(), 0u);
}

TEST(RealSysTest, NobodyIsKilledByAGroupThatIsNone) {
  RealSys sys;
  EXPECT_EQ(sys.KillGroup(0, SIGKILL), EINVAL);
  EXPECT_EQ(sys.KillGroup(1, SIGKILL), EINVAL);
  EXPECT_NE(sys.Kill(0, SIGKILL), 0);
  EXPECT_NE(sys.Kill(-1, SIGKILL), 0);
}

}  // namespace
}  // namespace dgxrun
