// Folders on a real disk with what no framework puts there: pipes, sockets, names of any bytes, very many
// files, times that cannot be. A judge answers, soon, and never waits for any of them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/tracker.h"
#include "tests/unit/ckpt_kit.h"

namespace dgxrun::agent::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OddFolder : public ::testing::Test {
 protected:
  OddFolder() {
    char name[] = "/tmp/ckpt-odd-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~OddFolder() override { std::filesystem::remove_all(path_); }

  std::string At(const std::string& name) const { return path_ + "/" + name; }
  void Put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(At(name)).parent_path());
    std::ofstream(At(name), std::ios::binary) << bytes;
  }
  void PutPipe(const std::string& name) const {
    std::filesystem::create_directories(std::filesystem::path(At(name)).parent_path());
    ASSERT_EQ(mkfifo(At(name).c_str(), 0600), 0);
  }
  void PutSocket(const std::string& name) const {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    At(name).copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    close(fd);
  }

  // "name step VERDICT", newest first.
  std::vector<std::string> List(absl::Duration quiet = absl::ZeroDuration()) const {
    auto source = OpenFolder(path_);
    JudgeOptions options;
    options.now = absl::Now();
    options.quiet_time = quiet;
    auto findings = ListCheckpoints(**source, options);
    EXPECT_TRUE(findings.ok()) << findings.status();
    std::vector<std::string> lines;
    if (!findings.ok()) return lines;
    for (const v1::CheckpointFinding& finding : *findings) {
      const v1::Checkpoint& one = finding.checkpoint();
      lines.push_back(absl::StrCat(one.path().substr(path_.size() + 1), " ", one.step(), " ",
                                   std::string(VerdictName(one.verdict()))));
    }
    return lines;
  }

  std::string path_;
};

const std::string& Weights4() {
  static const std::string* const bytes = new std::string(kit::Safetensors({{"w", 64}}));
  return *bytes;
}

TEST_F(OddFolder, PipesAndSocketsAreNotWaitedFor) {
  Put("step_1.safetensors", Weights4());
  PutPipe("step_2.safetensors");
  PutSocket("step_3.pt");
  Put("step_4/model.safetensors", Weights4());
  PutPipe("step_4/optimizer.pt");
  PutPipe("step_5/.metadata");
  PutPipe("checkpoint-6/trainer_state.json");
  Put("checkpoint-6/model.safetensors", Weights4());
  PutPipe("latest");
  PutPipe("latest_checkpointed_iteration.txt");
  EXPECT_THAT(List(), ElementsAre("checkpoint-6 6 CORRUPT", "step_5 5 CORRUPT", "step_4 4 CORRUPT",
                                  "step_1.safetensors 1 COMPLETE"));
  auto source = OpenFolder(path_);
  auto trackers = FindTrackers(**source, {});
  ASSERT_TRUE(trackers.ok());
  ASSERT_EQ(trackers->size(), 1U);
  EXPECT_EQ((*trackers)[0].state, TrackerState::kUnreadable);
}

TEST_F(OddFolder, OnePathThatIsAPipe) {
  PutPipe("step_2.pt");
  auto source = OpenFolder(path_);
  JudgeOptions options;
  options.now = absl::Now();
  const v1::Checkpoint found = Judge(**source, "step_2.pt", options).checkpoint();
  EXPECT_EQ(found.verdict(), v1::VERDICT_UNVERIFIED);
  EXPECT_THAT(found.reason(), HasSubstr("neither a file nor a folder"));
}

TEST_F(OddFolder, NamesOfAnyBytes) {
  Put("step_1.safetensors", Weights4());
  Put("step_2\nstep_9.safetensors", Weights4());
  Put("step_3\xff.safetensors", Weights4());
  Put("step_4/a\nb.safetensors", Weights4().substr(0, 20));
  EXPECT_THAT(List(), ElementsAre("step_2\nstep_9.safetensors 9 COMPLETE", "step_4 4 PARTIAL",
                                  "step_1.safetensors 1 COMPLETE"));
}

TEST_F(OddFolder, ManyFilesOfOneFolder) {
  // A thousand ranks that save a hundred times, a file each.
  const std::string any = kit::TorchFile();
  Put("any", any);
  for (int step = 1; step <= 100; ++step) {
    for (int rank = 0; rank < 1000; ++rank) {
      const std::string name = At(absl::StrCat("ckpt_", step, "_rank", rank, ".pt"));
      if (link(At("any").c_str(), name.c_str()) != 0) std::filesystem::copy_file(At("any"), name);
    }
  }
  ASSERT_EQ(unlink(At("ckpt_100_rank7.pt").c_str()), 0);
  auto source = OpenFolder(path_);
  JudgeOptions options;
  options.now = absl::Now();
  options.limit = 16;
  options.stop_after_complete = 2;
  auto findings = ListCheckpoints(**source, options);
  ASSERT_TRUE(findings.ok()) << findings.status();
  ASSERT_EQ(findings->size(), 3U);
  EXPECT_EQ((*findings)[0].checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ((*findings)[1].checkpoint().verdict(), v1::VERDICT_COMPLETE);
  EXPECT_EQ((*findings)[1].checkpoint().step(), 99);
  // Only the three are looked at: their ends and the step in each.
  EXPECT_LE((*source)->counts().opens, 3000U);
  EXPECT_LE((*source)->counts().reads, 3000U * 6);
}

TEST_F(OddFolder, ATimeInTheFutureIsNoSaveThatGoesOn) {
  Put("step_1.safetensors", Weights4().substr(0, 20));
  EXPECT_THAT(List(absl::Seconds(10)), ElementsAre("step_1.safetensors 1 WRITING"));
  const timespec hour_ahead[2] = {{time(nullptr) + 3600, 0}, {time(nullptr) + 3600, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, At("step_1.safetensors").c_str(), hour_ahead, 0), 0);
  EXPECT_THAT(List(absl::Seconds(10)), ElementsAre("step_1.safetensors 1 PARTIAL"));
}

TEST_F(OddFolder, AnIndexWithoutAnyShard) {
  Put("step_1/model.safetensors.index.json",
      R"({"metadata": {}, "weight_map": {"w": "model-00001-of-00002.safetensors"}})");
  Put("step_2/model.safetensors.index.json", R"({"metadata": {}, "weight_map": {"w": "../../etc/passwd"}})");
  Put("step_3/model.safetensors.index.json", R"({"metadata": {}, "weight_map": {"w": "/etc/passwd"}})");
  EXPECT_THAT(List(), ElementsAre("step_3 3 CORRUPT", "step_2 2 CORRUPT", "step_1 1 PARTIAL"));
}

TEST_F(OddFolder, HeadersThatClaimTooMuch) {
  Put("step_1.safetensors", kit::Le(uint64_t{1} << 62, 8) + "{}");
  Put("step_2.safetensors", kit::Le(uint64_t{90} << 20, 8) + std::string(1000, '{'));
  Put("step_3.safetensors", kit::Le(0, 8));
  for (const std::string& line : List()) EXPECT_THAT(line, Not(HasSubstr("COMPLETE")));
  EXPECT_EQ(List().size(), 3U);
}

TEST_F(OddFolder, WhatMayNotBeRead) {
  if (geteuid() == 0 && seteuid(65534) != 0) FAIL() << "cannot become an ordinary user";
  // mkdtemp's folder is root's: made again as the ordinary user.
  char name[] = "/tmp/ckpt-odd-XXXXXX";
  const std::string first = path_;
  path_ = mkdtemp(name);
  Put("step_1.safetensors", Weights4());
  Put("step_2.safetensors", Weights4());
  Put("step_3/model.safetensors", Weights4());
  chmod(At("step_2.safetensors").c_str(), 0);
  chmod(At("step_3").c_str(), 0);
  EXPECT_THAT(List(), ElementsAre("step_3 3 UNVERIFIED", "step_2.safetensors 2 UNVERIFIED",
                                  "step_1.safetensors 1 COMPLETE"));
  chmod(At("step_3").c_str(), 0700);
  std::filesystem::remove_all(path_);
  path_ = first;
  if (getuid() == 0) {
    EXPECT_EQ(seteuid(0), 0);
  }
}

}  // namespace
}  // namespace dgxrun::agent::ckpt
