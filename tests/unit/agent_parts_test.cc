// Parts of the agent on real files, sockets and databases.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent_store.h"
#include "agent/driver_files.h"
#include "agent/inventory.h"
#include "agent/owner_files.h"
#include "agent/ports.h"
#include "agent/prepare.h"
#include "agent/rank_output.h"
#include "agent/tail.h"
#include "agent/utf8.h"

namespace dgxrun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    char name[] = "/tmp/agent_parts_XXXXXX";
    dir_ = mkdtemp(name);
  }
  ~FolderTest() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = dir_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::app) << text;
  }
  std::string dir_;
};

// ---- Prepare ----

v1::Prepared Check(const v1::Prepare& prepare, const OwnerPolicy& policy = {.single_user = true}) {
  JudgeStop stop;
  return CheckPrepare(prepare, policy, &stop);
}

TEST_F(FolderTest, PrepareNamesEachPath) {
  v1::Prepare prepare;
  prepare.set_cwd(dir_);
  prepare.set_program("true");
  prepare.set_path("/bin:/usr/bin");
  EXPECT_THAT(Check(prepare).errors(), IsEmpty());
  prepare.set_script("train.py");
  prepare.set_program("no-such-program");
  EXPECT_THAT(Check(prepare).errors(),
              ElementsAre("script " + dir_ + "/train.py does not exist",
                          "program no-such-program: not found in PATH (/bin:/usr/bin)"));
  Write("train.py", "");
  Write("c/step_3.pt", "");
  prepare.set_program("/bin/true");
  prepare.set_ckpt_dir(dir_ + "/c");
  const v1::Prepared ready = Check(prepare);
  EXPECT_THAT(ready.errors(), IsEmpty());
  ASSERT_EQ(ready.findings_size(), 1);
  EXPECT_EQ(ready.findings(0).checkpoint().step(), 3);
}

TEST_F(FolderTest, FilesAreSeenWithTheOwnersRights) {
  if (geteuid() != 0) {  // an agent that cannot change its rights takes nobody else's jobs
    v1::Prepare other;
    other.mutable_owner()->set_user("root");
    other.set_cwd("/");
    EXPECT_THAT(Check(other, {}).errors(), ElementsAre(HasSubstr("takes no jobs of root")));
    return;
  }
  Write("secret/x", "");
  chmod(dir_.c_str(), 0755);
  chmod((dir_ + "/secret").c_str(), 0700);
  v1::Prepare prepare;
  prepare.mutable_owner()->set_user("nobody");
  prepare.set_cwd(dir_ + "/secret");
  EXPECT_THAT(Check(prepare, {}).errors(), ElementsAre(HasSubstr("Permission denied")));
  struct stat st;
  EXPECT_EQ(stat((dir_ + "/secret/x").c_str(), &st), 0);  // and this thread is root again
  prepare.mutable_owner()->set_user("root");
  EXPECT_THAT(Check(prepare, {}).errors(), ElementsAre(HasSubstr("allow_root")));
  EXPECT_THAT(Check(prepare, {.allow_root = true}).errors(), IsEmpty());
  prepare.mutable_owner()->set_user("no-such-user-x");
  EXPECT_THAT(Check(prepare, {}).errors(), ElementsAre(HasSubstr("does not exist")));
}

TEST_F(FolderTest, NoLinkIsFollowedBelowTheRoot) {
  Write("logs/job/f", "x");
  std::filesystem::create_symlink("/etc", dir_ + "/logs/job/link");
  std::filesystem::create_symlink("/etc/passwd", dir_ + "/logs/job/file");
  for (auto open : {OpenBeneath, WalkBeneath}) {
    EXPECT_TRUE(open(dir_ + "/logs", "job/f", O_RDONLY).ok());
    EXPECT_FALSE(open(dir_ + "/logs", "job/link/passwd", O_RDONLY).ok());
    EXPECT_FALSE(open(dir_ + "/logs", "job/file", O_RDONLY).ok());
    EXPECT_FALSE(open(dir_ + "/logs", "../logs/job/f", O_RDONLY).ok());
    EXPECT_TRUE(absl::IsNotFound(open(dir_ + "/logs", "job/none", O_RDONLY).status()));
  }
}

// ---- What ranks left ----

TEST(LastLinesTest, Cases) {
  EXPECT_THAT(LastLines("a\nb\n\n", false), ElementsAre("a", "b"));
  EXPECT_THAT(LastLines("tail of x\nb", true), ElementsAre("b"));
  EXPECT_THAT(LastLines("10%\r20%\rdone\r\nnext", false), ElementsAre("10%", "20%", "done", "next"));
  EXPECT_THAT(LastLines("\xff\x1b[1m", false), ElementsAre("\xef\xbf\xbd?[1m"));
  std::string many;
  for (int i = 0; i < 50; ++i) many += std::to_string(i) + "\n";
  EXPECT_EQ(LastLines(many, false).size(), kTailLines);
  EXPECT_EQ(LastLines(many, false).back(), "49");
}

TEST(ErrorMessageTest, BothFormats) {
  EXPECT_EQ(ErrorMessage(R"({"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1"}}})"),
            "ValueError: x");
  EXPECT_EQ(ErrorMessage(R"({"message": "plain", "timestamp": 1})"), "plain");
  for (const char* bad : {"", "{", "[]", "{}", R"({"message": 3})", R"({"message": {"x": 1}})"}) {
    EXPECT_EQ(ErrorMessage(bad), "") << bad;
  }
}

TEST(Utf8Test, OnlyValidTextPasses) {
  EXPECT_TRUE(IsUtf8("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xff"})
    EXPECT_FALSE(IsUtf8(bad));
}

// ---- Inventory ----

TEST_F(FolderTest, NvidiaDevicesOfAFakeTree) {
  const auto device = [&](const std::string& at, const std::string& vendor, const std::string& kind) {
    Write("bus/pci/devices/" + at + "/vendor", vendor + "\n");
    Write("bus/pci/devices/" + at + "/class", kind + "\n");
  };
  device("0000:c1:00.0", "0x10de", "0x030200");
  device("0000:1b:00.0", "0x10de", "0x030000");
  device("0000:05:00.0", "0x10de", "0x068000");  // an NVSwitch
  device("0000:02:00.0", "0x1a03", "0x030000");  // the board's own display
  EXPECT_THAT(NvidiaPciDevices(dir_), ElementsAre("0000:1b:00.0", "0000:c1:00.0"));
  EXPECT_THAT(NvidiaPciDevices(dir_ + "/none"), IsEmpty());
}

TEST(FillGpusTest, Table) {
  const std::vector<std::string> two = {"0000:1b:00.0", "0000:c1:00.0"};
  const DriverGpu a{two[0], "GPU-a", "H200", 1}, b{two[1], "GPU-b", "H200", 1};
  using Nvml = absl::StatusOr<std::vector<DriverGpu>>;
  struct Case {
    std::vector<std::string> pci;
    Nvml nvml;
    int declared;
    int gpus;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{}, Nvml(std::vector<DriverGpu>()), -1, 0, ""},
      {two, Nvml(std::vector<DriverGpu>{b, a}), -1, 2, ""},
      {two, Nvml(std::vector<DriverGpu>{b}), -1, 1, "not 0000:1b:00.0"},
      {two, absl::NotFoundError("no driver"), -1, 0, "no driver"},
      {two, absl::NotFoundError("no driver"), 2, 0, "no driver"},  // declared does not hide it
      {{}, Nvml(std::vector<DriverGpu>()), 4, 4, ""},
      {two, Nvml(std::vector<DriverGpu>{a, b}), 1, 1, ""},
  };
  for (const Case& c : cases) {
    v1::Inventory inventory;
    FillGpus(c.pci, c.nvml, c.declared, &inventory);
    EXPECT_EQ(inventory.gpus_size(), c.gpus);
    EXPECT_EQ(inventory.pci_gpus(), c.pci.size());
    EXPECT_EQ(inventory.gpu_error().empty(), c.error.empty());
    EXPECT_THAT(inventory.gpu_error(), HasSubstr(c.error));
    EXPECT_EQ(inventory.declared(), c.declared >= 0);
    if (c.gpus == 2) {
      EXPECT_EQ(inventory.gpus(0).uuid(), "GPU-a");  // PCI order
    }
  }
}

// A tree as of a machine with 2 GPUs; `library`: a real one, under the name of a driver's.
class DriverFilesTest : public FolderTest {
 protected:
  const std::vector<std::string> two_ = {"0000:1b:00.0", "0000:c1:00.0"};

  void SetUp() override {
    FolderTest::SetUp();
    Write("sys/module/nvidia/version", "570.86.15\n");
    Describe(two_[0], "GPU-aaaaaaaa-1111", "0", "No");
    Describe(two_[1], "GPU-bbbbbbbb-2222", "3", "No");
    for (const char* node : {"dev/nvidia0", "dev/nvidia3"}) Write(node, "");
    SetLibrary("libnvidia-ml.so.570.86.15");
  }
  void Replace(const std::string& name, const std::string& text) {
    std::filesystem::remove(dir_ + "/" + name);
    Write(name, text);
  }
  void Describe(const std::string& pci, const std::string& uuid, const std::string& minor,
                const std::string& excluded) {
    Replace("proc/driver/nvidia/gpus/" + pci + "/information",
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 310\nGPU UUID: \t " + uuid +
                "\nBus Type: \t PCIe\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t " + pci +
                "\nDevice Minor: \t " + minor + "\nGPU Excluded:\t " + excluded + "\n");
  }
  // Any library that does nothing, under that name.
  void SetLibrary(const std::string& name) {
    void* real = dlopen("libdl.so.2", RTLD_LAZY);
    link_map* map = nullptr;
    ASSERT_TRUE(real != nullptr && dlinfo(real, RTLD_DI_LINKMAP, &map) == 0);
    std::filesystem::copy_file(std::filesystem::canonical(map->l_name), dir_ + "/" + name);
    dlclose(real);
    std::filesystem::create_symlink(dir_ + "/" + name, dir_ + "/libnvidia-ml.so.1");
  }
  absl::StatusOr<std::vector<DriverGpu>> Read() {
    return ReadDriverFiles(two_, DriverFiles{dir_, dir_ + "/libnvidia-ml.so.1"});
  }
  std::vector<std::string> Uuids() {
    std::vector<std::string> uuids;
    const auto gpus = Read();
    if (!gpus.ok()) return {gpus.status().ToString()};
    for (const DriverGpu& gpu : *gpus) uuids.push_back(gpu.uuid);
    return uuids;
  }
};

TEST_F(DriverFilesTest, AllThatIsUsable) {
  const auto gpus = Read();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[1].pci, two_[1]);
  EXPECT_EQ((*gpus)[1].uuid, "GPU-bbbbbbbb-2222");
  EXPECT_EQ((*gpus)[1].model, "NVIDIA H200");
  EXPECT_EQ((*gpus)[1].memory_bytes, 0u);
}

TEST_F(DriverFilesTest, WhatIsNotForThisProcessIsLeftOut) {
  std::filesystem::remove(dir_ + "/dev/nvidia3");  // listed, but a container was not given its node
  EXPECT_THAT(Uuids(), ElementsAre("GPU-aaaaaaaa-1111"));
  Write("dev/nvidia3", "");
  Describe(two_[1], "GPU-bbbbbbbb-2222", "3", "Yes");
  EXPECT_THAT(Uuids(), ElementsAre("GPU-aaaaaaaa-1111"));
  std::filesystem::remove_all(dir_ + "/proc/driver/nvidia/gpus/" + two_[1]);
  EXPECT_THAT(Uuids(), ElementsAre("GPU-aaaaaaaa-1111"));
}

TEST_F(DriverFilesTest, NvmlIsAskedWhereTheFilesDoNotSettleIt) {
  Describe(two_[1], std::string("GPU-") + std::string(8, '?'), "3", "No");  // nobody has opened it yet
  EXPECT_FALSE(Read().ok());
  Describe(two_[1], "", "3", "No");
  EXPECT_FALSE(Read().ok());
  Describe(two_[1], "GPU-bbbbbbbb-2222", "", "No");
  EXPECT_FALSE(Read().ok());
  Describe(two_[1], "GPU-bbbbbbbb-2222", "3", "No");
  Replace("sys/module/nvidia/version", "570.90\n");  // the library was upgraded under a driver that is loaded
  EXPECT_THAT(Read().status().message(), HasSubstr("570.90"));
  std::filesystem::remove(dir_ + "/sys/module/nvidia/version");
  EXPECT_TRUE(Read().ok());
  std::filesystem::remove(dir_ + "/libnvidia-ml.so.1");
  EXPECT_FALSE(Read().ok());
  std::filesystem::remove_all(dir_ + "/proc");
  EXPECT_FALSE(Read().ok());
}

TEST_F(FolderTest, CoresAreCountedOnce) {
  for (int cpu = 0; cpu < 4; ++cpu) {
    Write("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/core_cpus_list",
          cpu % 2 == 0 ? "0,2\n" : "1,3\n");
  }
  EXPECT_EQ(PhysicalCores(dir_, {0, 1, 2, 3}), 2u);
  EXPECT_EQ(PhysicalCores(dir_, {0, 2}), 1u);
  EXPECT_EQ(PhysicalCores(dir_, {8, 9}), 2u);  // no topology
  EXPECT_GE(AllowedCpus().size(), 1u);
}

// ---- Ports ----

int ListenOn(uint32_t port, bool reuse) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  const int on = reuse ? 1 : 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  return listen(fd.get(), 1) == 0 ? 0 : errno;
}

TEST(PortPoolTest, HeldForServersThatReuse) {
  PortPool pool(0, 0);
  ASSERT_TRUE(pool.Fill().ok());
  const std::vector<uint32_t> ports = pool.free();
  ASSERT_EQ(ports.size(), PortPool::kPoolSize);
  EXPECT_EQ(ListenOn(ports[0], true), 0);
  EXPECT_EQ(ListenOn(ports[0], false), EADDRINUSE);
  {
    absl::StatusOr<UniqueFd> taken = pool.Take(ports[0]);
    ASSERT_TRUE(taken.ok());
    ASSERT_TRUE(pool.Fill().ok());
    EXPECT_EQ(pool.free().size(), PortPool::kPoolSize);
    EXPECT_THAT(pool.free(), ::testing::Not(::testing::Contains(ports[0])));
  }
  EXPECT_TRUE(pool.Take(ports[0]).ok());  // bound anew
  EXPECT_FALSE(pool.Take(0).ok());
}

TEST(PortPoolTest, ARangeMayBeTooSmall) {
  uint32_t low = 0;
  const absl::StatusOr<UniqueFd> probe = HoldPort(0, &low);
  ASSERT_TRUE(probe.ok());
  PortPool pool(low, low + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Fill()));
  EXPECT_LE(pool.free().size(), 2u);
}

// ---- Store ----

TEST_F(FolderTest, StoreKeepsWhatItWasTold) {
  std::string node;
  {
    auto store = AgentStore::Open(dir_ + "/state");
    ASSERT_TRUE(store.ok()) << store.status();
    node = (*store)->node_id().str();
    ASSERT_TRUE((*store)->Store(StoreCluster{"cid", 7}).ok());
    ASSERT_TRUE((*store)->Store(StoreJob{JobId("gone"), StoredJob{1, 2, 3, 4}}).ok());
    for (uint64_t n = 1; n <= 3; ++n) {
      StoreReport action;
      action.report.set_number(n);
      action.report.set_job_id("c-1");
      action.stored.launched = 5;
      ASSERT_TRUE((*store)->Store(action).ok());
      if (n == 3) {
        EXPECT_FALSE((*store)->Store(action).ok());  // a number comes once
      }
    }
    ASSERT_TRUE((*store)->Store(DropReports{2}).ok());
    ASSERT_TRUE((*store)->Store(DropJob{JobId("gone")}).ok());
    EXPECT_THAT(std::string(AgentStore::Open(dir_ + "/state").status().message()),
                HasSubstr("another agent"));
  }
  auto store = AgentStore::Open(dir_ + "/state");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->node_id().str(), node);
  const absl::StatusOr<StoredState> state = (*store)->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->cluster_id, "cid");
  EXPECT_EQ(state->term, 7u);
  ASSERT_EQ(state->jobs.size(), 1u);
  EXPECT_EQ(state->jobs.at(JobId("c-1")).launched, 5);
  ASSERT_EQ(state->reports.size(), 1u);
  EXPECT_EQ(state->last_report, 3u);
  struct stat st;
  ASSERT_EQ(stat((dir_ + "/state/agent.db").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

// ---- Tails ----

struct Collected {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> bytes;  // "rank/stream"
  int ends = 0;
  std::string error;
  bool finished = false;
  std::map<std::pair<uint32_t, int>, uint64_t> from;  // as asked for
};

class CollectingSink final : public TailSink {
 public:
  CollectingSink(Collected* into, std::shared_ptr<LoopInbox> loop) : into_(into), loop_(std::move(loop)) {}
  void Write(v1::OutputChunk chunk, std::function<void(bool)> done) override {
    std::lock_guard<std::mutex> lock(into_->mutex);
    std::string& bytes = into_->bytes[std::to_string(chunk.rank()) + "/" + std::to_string(chunk.stream())];
    const uint64_t from = into_->from[{chunk.rank(), chunk.stream()}];
    EXPECT_EQ(chunk.offset(), from + bytes.size());
    bytes += chunk.data();
    into_->ends += chunk.end() ? 1 : 0;
    into_->error += chunk.error();
    into_->changed.notify_all();
    loop_->Post([done = std::move(done)] { done(true); });
  }
  void Finish() override {
    std::lock_guard<std::mutex> lock(into_->mutex);
    into_->finished = true;
    into_->changed.notify_all();
  }

 private:
  Collected* const into_;
  const std::shared_ptr<LoopInbox> loop_;
};

class TailTest : public FolderTest {
 protected:
  void Ask(std::vector<uint32_t> ranks, bool follow, bool ended, std::map<uint32_t, uint64_t> from = {}) {
    v1::TailRequest request;
    for (const auto& [rank, offset] : from) {
      v1::LogPosition* place = request.add_from();
      place->set_rank(rank);
      place->set_stream(v1::STREAM_STDOUT);
      place->set_offset(offset);
      got_.from[{rank, v1::STREAM_STDOUT}] = offset;
    }
    request.set_tail_id(1);
    request.set_job_id("c-1");
    for (uint32_t rank : ranks) request.add_ranks(rank);
    request.set_follow(follow);
    server_->Start(request, ended);
  }
  bool Await(const std::function<bool()>& ready) {
    std::unique_lock<std::mutex> lock(got_.mutex);
    return got_.changed.wait_for(lock, std::chrono::seconds(20), ready);
  }
  Collected got_;
  std::unique_ptr<TailServer> server_ =
      TailServer::Create("n1", dir_, [this](std::shared_ptr<LoopInbox> loop) {
        return std::make_unique<CollectingSink>(&got_, std::move(loop));
      });
};

TEST_F(TailTest, WholeFilesOfAnEndedAttempt) {
  const std::string big(300000, 'x');
  Write("c-1/attempt_0/rank_0.out", big);
  Write("c-1/attempt_0/rank_0.err", "");
  Write("c-1/attempt_0/rank_3.out", "three");
  Write("c-1/attempt_0/other", "no");
  Ask({}, true, true);
  ASSERT_TRUE(Await([&] { return got_.finished; }));
  EXPECT_EQ(got_.ends, 3);
  EXPECT_EQ(got_.bytes["0/1"], big);
  EXPECT_EQ(got_.bytes["3/1"], "three");
}

TEST_F(TailTest, FollowsFromBeforeTheFolderToTheEnd) {
  const AttemptKey key{JobId("c-1"), AttemptNo(0)};
  Ask({1}, true, false);
  Write("c-1/attempt_0/rank_1.out", "a");
  server_->AttemptStarted(key);
  ASSERT_TRUE(Await([&] { return got_.bytes["1/1"] == "a"; }));
  Write("c-1/attempt_0/rank_1.out", "b");
  ASSERT_TRUE(Await([&] { return got_.bytes["1/1"] == "ab"; }));
  Write("c-1/attempt_0/rank_1.err", "late file");
  ASSERT_TRUE(Await([&] { return got_.bytes["1/2"] == "late file"; }));
  Write("c-1/attempt_0/rank_1.out", "c");
  server_->AttemptEnded(key);
  ASSERT_TRUE(Await([&] { return got_.finished; }));
  EXPECT_EQ(got_.bytes["1/1"], "abc");
  EXPECT_EQ(got_.ends, 2);
}

TEST_F(TailTest, GoesOnFromAPlace) {
  const AttemptKey key{JobId("c-1"), AttemptNo(0)};
  Write("c-1/attempt_0/rank_0.out", "0123456789");
  Write("c-1/attempt_0/rank_0.err", "all of it");
  Write("c-1/attempt_0/rank_1.out", "had");
  Write("c-1/attempt_0/rank_2.out", "short");
  Ask({}, true, false, {{0, 7}, {1, 3}, {2, 5000}, {9, 1}});
  ASSERT_TRUE(Await([&] { return got_.bytes["0/1"] == "789"; }));
  Write("c-1/attempt_0/rank_0.out", "ab");
  Write("c-1/attempt_0/rank_1.out", " more");
  server_->AttemptEnded(key);
  ASSERT_TRUE(Await([&] { return got_.finished; }));
  EXPECT_EQ(got_.bytes["0/1"], "789ab");
  EXPECT_EQ(got_.bytes["0/2"], "all of it");
  EXPECT_EQ(got_.bytes["1/1"], " more");
  EXPECT_EQ(got_.bytes["2/1"], "");  // a place behind the end
  EXPECT_EQ(got_.error, "");
}

TEST_F(TailTest, SaysThatThereIsNothing) {
  Ask({}, false, true);
  ASSERT_TRUE(Await([&] { return got_.finished; }));
  EXPECT_EQ(got_.ends, 1);
  EXPECT_THAT(got_.error, HasSubstr("no logs of c-1"));
}

TEST_F(TailTest, LinksAreNotRead) {
  Write("secret", "s");
  Write("c-1/attempt_0/rank_0.err", "");
  std::filesystem::create_symlink(dir_ + "/secret", dir_ + "/c-1/attempt_0/rank_0.out");
  Ask({}, false, true);
  ASSERT_TRUE(Await([&] { return got_.finished; }));
  EXPECT_EQ(got_.bytes["0/1"], "");
  EXPECT_FALSE(got_.error.empty());
}

}  // namespace
}  // namespace dgxrun::agent
