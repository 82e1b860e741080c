// A job's checkpoint folder in the agent's hands: what is found, put in order, watched and removed.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt_keep.h"
#include "agent/ckpt_resume.h"
#include "agent/ckpt_watch.h"
#include "agent/progress_watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dgxrun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

class CkptFolderTest : public ::testing::Test {
 protected:
  CkptFolderTest() {
    char name[] = "/tmp/dgxrun-ckpt-XXXXXX";
    dir_ = mkdtemp(name);
    folder_ = dir_ + "/ckpt";
    fs::create_directory(folder_);
    fd_.Reset(open(folder_.c_str(), O_RDONLY | O_DIRECTORY));
  }
  ~CkptFolderTest() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name, std::ios::trunc) << text;
  }
  std::string Read(const std::string& name) {
    std::ifstream file(folder_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A safetensors file that is complete as far as its structure says.
  static std::string Safetensors() {
    std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    return file + header + "12345678";
  }
  void Save(int64_t step) { Write(absl::StrCat("step_", step, ".safetensors"), Safetensors()); }
  std::string Path(const std::string& name) { return folder_ + "/" + name; }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  v1::Prepared Find(uint32_t attempt = 0) {
    v1::Prepare prepare;
    prepare.set_ckpt_dir(folder_);
    prepare.set_attempt(attempt);
    JudgeStop stop;
    v1::Prepared prepared;
    EXPECT_TRUE(FindCheckpoints(prepare, &stop, &prepared).ok());
    return prepared;
  }
  v1::Prepared Order(const std::string& resume, const std::vector<std::string>& aside) {
    v1::Prepare prepare;
    prepare.set_ckpt_dir(folder_);
    prepare.set_resume(resume == "none" ? resume : Path(resume));
    for (const std::string& name : aside) prepare.add_poisoned(name[0] == '/' ? name : Path(name));
    JudgeStop stop;
    v1::Prepared prepared;
    PutInOrder(prepare, &stop, &prepared);
    EXPECT_EQ(prepared.checkpoint().path(), prepare.resume());
    EXPECT_EQ(prepared.findings_size(), 0);
    return prepared;
  }

  std::string dir_, folder_;
  UniqueFd fd_;
};

TEST_F(CkptFolderTest, FindsNewestFirst) {
  EXPECT_EQ(Find().findings_size(), 0);
  Save(10);
  Save(20);
  Write("step_30.safetensors", Safetensors().substr(0, 40));
  const v1::Prepared prepared = Find();
  ASSERT_EQ(prepared.findings_size(), 3);
  EXPECT_EQ(prepared.findings(0).checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(prepared.checkpoint().path(), Path("step_20.safetensors"));
  fs::remove_all(folder_);
  EXPECT_EQ(Find().findings_size(), 0) << "no folder yet";
}

TEST_F(CkptFolderTest, OnlySomeAreListed) {
  for (int64_t step = 0; step < 40; ++step) Save(step);
  EXPECT_EQ(Find().findings_size(), static_cast<int>(kCompleteWanted));
  for (int64_t step = 0; step < 40; ++step) {
    Write(absl::StrCat("step_", step, ".safetensors"), Safetensors().substr(0, 40));
  }
  EXPECT_EQ(Find().findings_size(), static_cast<int>(kMaxFindings));
}

TEST_F(CkptFolderTest, AFileOrAFolderThatMayNotBeReadIsAnError) {
  v1::Prepare prepare;
  JudgeStop stop;
  v1::Prepared prepared;
  Write("file", "x");
  prepare.set_ckpt_dir(Path("file"));
  EXPECT_THAT(FindCheckpoints(prepare, &stop, &prepared).message(), HasSubstr("ckpt-dir " + Path("file")));
}

TEST_F(CkptFolderTest, MovesAsideNeverOverSomething) {
  Save(10);
  for (const char* file : {"checkpoint-20/model", "checkpoint-20.dgxrun-quarantine/model"}) Write(file, "x");
  EXPECT_THAT(Order("step_10.safetensors", {"checkpoint-20"}).notes(),
              ElementsAre(HasSubstr("checkpoint-20 is now checkpoint-20.dgxrun-quarantine.1")));
  EXPECT_THAT(Order("step_10.safetensors", {"checkpoint-20"}).notes(), IsEmpty()) << "done already";
  EXPECT_THAT(Names(), ElementsAre("checkpoint-20.dgxrun-quarantine", "checkpoint-20.dgxrun-quarantine.1",
                                   "step_10.safetensors"));
}

TEST_F(CkptFolderTest, NothingOutsideTheFolderAndNeverTheChosenOne) {
  Save(10);
  Write("../other", "x");
  Write("sub/inner", "x");
  const std::vector<std::string> names = {"step_10.safetensors", "../other", "sub/inner", dir_ + "/other",
                                          folder_};
  EXPECT_THAT(Order("step_10.safetensors", names).notes(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("step_10.safetensors", "sub"));
  EXPECT_TRUE(fs::exists(dir_ + "/other"));
}

TEST_F(CkptFolderTest, APointerIsReplacedAndTheOldOneKept) {
  Write("latest", "global_step9");
  ASSERT_TRUE(ReplacePointer(fd_.get(), "latest", "global_step7").ok());
  EXPECT_EQ(Read("latest"), "global_step7");
  EXPECT_EQ(Read("latest.bak"), "global_step9");
  fs::remove(Path("latest"));
  ASSERT_TRUE(ReplacePointer(fd_.get(), "latest", "global_step8").ok());
  EXPECT_EQ(Read("latest"), "global_step8");
  EXPECT_EQ(Read("latest.bak"), "global_step9");
  fs::remove(Path("latest"));
  fs::create_symlink("/etc/passwd", Path("latest"));
  ASSERT_TRUE(ReplacePointer(fd_.get(), "latest", "global_step8").ok());
  EXPECT_FALSE(fs::is_symlink(Path("latest")));
  EXPECT_TRUE(fs::is_symlink(Path("latest.bak")));
  EXPECT_THAT(Names(), ElementsAre("latest", "latest.bak")) << "no scratch file stays";
}

TEST_F(CkptFolderTest, AnEmptyMegatronTrackerWithoutACheckpointIsMovedAside) {
  Write("latest_checkpointed_iteration.txt", "");
  const v1::Prepared found = Find();
  EXPECT_EQ(found.findings_size(), 0);
  ASSERT_EQ(found.notes_size(), 1) << "so that the second question is asked";
  EXPECT_THAT(Order("none", {}).notes(), ElementsAre(HasSubstr("exit status 0")));
  EXPECT_THAT(Names(), ElementsAre("latest_checkpointed_iteration.txt.dgxrun-quarantine"));
}

TEST_F(CkptFolderTest, KeepsTheNewestMilestonesPinsAndWhatIsNamed) {
  for (int64_t step : {100, 150, 200, 250, 300, 350}) Save(step);
  Write("step_400.safetensors", "torn");
  ASSERT_TRUE(WritePins(fd_.get(), {"step_150.safetensors"}).ok());
  fs::create_symlink("step_250.safetensors", Path("last"));
  const KeepRule rule{1, 100};
  const auto planned = Prune(folder_, rule, absl::ZeroDuration(), /*dry_run=*/true);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->size(), 0u);  // 350 newest; 300, 200, 100 milestones; 250 linked; 150 pinned
  fs::remove(Path("last"));
  Write(".dgxrun-pruned-step_1/model", "left by a crash");
  const auto removed = Prune(folder_, rule, absl::ZeroDuration(), /*dry_run=*/false);
  ASSERT_TRUE(removed.ok()) << removed.status();
  ASSERT_EQ(removed->size(), 1u);
  EXPECT_EQ((*removed)[0].step(), 250);
  EXPECT_THAT(Names(), UnorderedElementsAre(".dgxrun-pins", "step_100.safetensors", "step_150.safetensors",
                                            "step_200.safetensors", "step_300.safetensors",
                                            "step_350.safetensors", "step_400.safetensors"));
  ASSERT_TRUE(WritePins(fd_.get(), {}).ok());
  ASSERT_TRUE(Prune(folder_, {0, 0}, absl::ZeroDuration(), false).ok());
  EXPECT_THAT(Names(), UnorderedElementsAre(".dgxrun-pins", "step_350.safetensors", "step_400.safetensors"))
      << "the newest complete one stays, and what is not complete is not ours to remove";
}

TEST_F(CkptFolderTest, FoldersAreRemovedWholeButNoPartOfAGroup) {
  v1::Checkpoint checkpoint;
  checkpoint.set_path(Path("step_5"));
  Write("step_5/a/b/file", "x");
  ASSERT_TRUE(RemoveCheckpoint(fd_.get(), checkpoint).ok());
  EXPECT_THAT(Names(), IsEmpty());
  Write("ep0-rank0.pt", "x");
  checkpoint.set_path(Path("ep0-rank0.pt"));
  checkpoint.set_bytes(2);  // of both ranks' files
  EXPECT_FALSE(RemoveCheckpoint(fd_.get(), checkpoint).ok());
  EXPECT_THAT(Names(), ElementsAre("ep0-rank0.pt"));
}

TEST_F(CkptFolderTest, WhatWasSavedAnewIsNotMovedAside) {
  Save(20);
  Save(30);
  v1::Prepare prepare;
  prepare.set_ckpt_dir(folder_);
  prepare.set_resume(Path("step_20.safetensors"));
  prepare.add_poisoned(Path("step_30.safetensors"));
  prepare.add_poisoned_mtime_unix_ns(absl::ToUnixNanos(absl::Now() - absl::Minutes(1)));
  JudgeStop stop;
  v1::Prepared prepared;
  PutInOrder(prepare, &stop, &prepared);
  EXPECT_THAT(prepared.notes(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("step_20.safetensors", "step_30.safetensors"));
  prepare.set_poisoned_mtime_unix_ns(0, absl::ToUnixNanos(absl::Now()));
  PutInOrder(prepare, &stop, &prepared);
  EXPECT_THAT(Names(), ElementsAre("step_20.safetensors", "step_30.safetensors.dgxrun-quarantine"));
}

class WatchTest : public CkptFolderTest {
 protected:
  CkptWatch Make(uint32_t keep_last = 0) {
    CkptWatchOptions options;
    options.folder = folder_;
    options.keep_last = keep_last;
    return CkptWatch(options);
  }
  static std::vector<int64_t> Steps(const v1::AttemptProgress& news) {
    std::vector<int64_t> steps;
    for (const auto& finding : news.checkpoints()) steps.push_back(finding.checkpoint().step());
    return steps;
  }
};

TEST_F(WatchTest, TellsWhatIsNewAndOnce) {
  Save(1);
  CkptWatch watch = Make();
  EXPECT_FALSE(watch.Look(absl::Now()).has_checkpoints()) << "it lay there before";
  Save(2);
  const v1::AttemptProgress news = watch.Look(absl::Now());
  EXPECT_THAT(Steps(news), ElementsAre(2));
  EXPECT_EQ(news.checkpoints(0).checkpoint().verdict(), v1::VERDICT_COMPLETE);
  EXPECT_GT(news.free_bytes(), 0u);
  EXPECT_FALSE(watch.Look(absl::Now()).has_checkpoints());
  // The same name once more.
  Save(2);
  const timespec times[2] = {{2000000000, 0}, {2000000000, 0}};
  utimensat(AT_FDCWD, Path("step_2.safetensors").c_str(), times, 0);
  EXPECT_THAT(Steps(watch.Look(absl::Now())), ElementsAre(2));
}

TEST_F(WatchTest, WhatIsBeingWrittenIsToldWhenItIsComplete) {
  CkptWatch watch = Make();
  watch.Look(absl::Now());
  Write("step_3.safetensors", Safetensors().substr(0, 40));
  EXPECT_FALSE(watch.Look(absl::Now()).has_checkpoints());
  Save(3);
  EXPECT_THAT(Steps(watch.Look(absl::Now())), ElementsAre(3));
  // One that stays torn is told once, as such, for other nodes may hold the rest.
  Write("step_4.safetensors", Safetensors().substr(0, 40));
  const v1::AttemptProgress torn = watch.Look(absl::Now() + absl::Minutes(1));
  ASSERT_THAT(Steps(torn), ElementsAre(4));
  EXPECT_EQ(torn.checkpoints(0).checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_FALSE(watch.Look(absl::Now() + absl::Minutes(2)).has_checkpoints());
}

TEST_F(WatchTest, AFolderThatComesLater) {
  fs::remove(folder_);
  CkptWatch watch = Make();
  EXPECT_FALSE(watch.Look(absl::Now()).has_checkpoints());
  fs::create_directory(folder_);
  Save(1);
  EXPECT_THAT(Steps(watch.Look(absl::Now())), ElementsAre(1));
}

TEST_F(WatchTest, KeepsSomeByTheRuleWhenToldTo) {
  CkptWatch watch = Make(/*keep_last=*/2);
  watch.Look(absl::Now());
  for (int64_t step = 1; step <= 4; ++step) Save(step);
  Write(".dgxrun-pins", "step_1.safetensors\n");
  EXPECT_THAT(watch.Look(absl::Now()).held(), ElementsAre("step_1.safetensors"));
  EXPECT_EQ(Names().size(), 5u) << "nothing goes without a word";
  v1::RemoveCheckpoints remove;
  remove.set_by_rule(true);
  const v1::AttemptProgress news = watch.Tidy(remove, absl::Now());
  EXPECT_THAT(news.removed(), ElementsAre(Path("step_2.safetensors")));
  EXPECT_TRUE(news.has_checkpoints());
  EXPECT_GT(news.free_bytes(), 0u);
  EXPECT_THAT(Names(), UnorderedElementsAre(".dgxrun-pins", "step_1.safetensors", "step_3.safetensors",
                                            "step_4.safetensors"));
  EXPECT_THAT(Make().Tidy(remove, absl::Now()).removed(), IsEmpty()) << "a job without --ckpt-keep";
}

TEST_F(WatchTest, RemovesFromAListOnlyWhatIsAsItWasTold) {
  CkptWatch watch = Make(/*keep_last=*/1);
  for (int64_t step = 1; step <= 5; ++step) Save(step);
  Write(".dgxrun-pins", "step_2.safetensors\n");
  Write("step_3.safetensors", Safetensors().substr(0, 40));
  fs::create_directory(dir_ + "/outside");
  Write("../outside/step_9.safetensors", Safetensors());
  v1::RemoveCheckpoints remove;
  const auto add = [&](const std::string& path, absl::Duration before = absl::ZeroDuration()) {
    v1::Checkpoint* told = remove.add_checkpoints();
    told->set_path(path);
    told->set_mtime_unix_ns(absl::ToUnixNanos(absl::Now() - before));
    told->set_bytes(Safetensors().size());
  };
  add(Path("step_1.safetensors"));
  add(Path("step_2.safetensors"));                    // pinned
  add(Path("step_3.safetensors"));                    // torn since
  add(Path("step_4.safetensors"), absl::Minutes(1));  // saved anew since
  add(Path("step_7.safetensors"));                    // gone
  add(dir_ + "/outside/step_9.safetensors");
  add(Path("../outside/step_9.safetensors"));
  EXPECT_THAT(watch.Tidy(remove, absl::Now()).removed(),
              ElementsAre(Path("step_1.safetensors"), Path("step_7.safetensors")));
  EXPECT_THAT(Names(), UnorderedElementsAre(".dgxrun-pins", "step_2.safetensors", "step_3.safetensors",
                                            "step_4.safetensors", "step_5.safetensors"));
  EXPECT_TRUE(fs::exists(dir_ + "/outside/step_9.safetensors"));
}

TEST_F(WatchTest, SaysWhatCannotBeRemoved) {
  CkptWatch watch = Make(/*keep_last=*/1);
  Save(1);
  v1::RemoveCheckpoints remove;
  v1::Checkpoint* told = remove.add_checkpoints();
  told->set_path(Path("step_1.safetensors"));
  told->set_mtime_unix_ns(absl::ToUnixNanos(absl::Now()));
  told->set_bytes(2 * Safetensors().size());  // of both ranks' files
  const v1::AttemptProgress news = watch.Tidy(remove, absl::Now());
  EXPECT_THAT(news.notes(), ElementsAre(HasSubstr("--ckpt-keep: step_1.safetensors is one of")));
  EXPECT_THAT(Names(), ElementsAre("step_1.safetensors"));
}

class StepsTest : public CkptFolderTest {
 protected:
  StepsTest() : inbox_(std::make_shared<LoopInbox>(&loop_)), tasks_(inbox_) {}
  ~StepsTest() override { inbox_->Close(); }
  std::unique_ptr<ProgressWatch> Make() {
    return std::make_unique<ProgressWatch>(&loop_, &tasks_, dir_ + "/run", OwnerPolicy{.single_user = true},
                                           [this](v1::AttemptProgress news) { told_.push_back(news); });
  }
  static v1::ShimStart Start() {
    v1::ShimStart start;
    start.mutable_plan()->add_ranks()->set_rank(2);
    start.mutable_plan()->add_ranks()->set_rank(3);
    return start;
  }
  static void Say(const v1::RankPlan& rank, const std::string& text) {
    ASSERT_EQ(rank.env(0).name(), kProgressVariable);
    std::ofstream(rank.env(0).value(), std::ios::in) << text;
  }

  const AttemptKey key_{JobId("job-1"), AttemptNo(0)};
  EventLoop loop_;
  std::shared_ptr<LoopInbox> inbox_;
  FileTasks tasks_;
  std::vector<v1::AttemptProgress> told_;
};

TEST_F(StepsTest, TheSlowestRankCounts) {
  auto watch = Make();
  v1::ShimStart start = Start();
  OwnerIds owner;
  owner.uid = geteuid();
  owner.gid = getegid();
  watch->Begin(key_, owner, &start);
  watch->ReadSteps(key_);
  EXPECT_THAT(told_, IsEmpty());
  Say(start.plan().ranks(0), "120                  100\n");
  watch->ReadSteps(key_);
  Say(start.plan().ranks(1), "110");
  watch->ReadSteps(key_);
  watch->ReadSteps(key_);
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_[0].step(), 120);
  EXPECT_EQ(told_[0].first_step(), 100);
  EXPECT_EQ(told_[1].step(), 110);
  EXPECT_EQ(told_[1].first_step(), 100);
  EXPECT_EQ(told_[1].job_id(), "job-1");

  told_.clear();
  watch = Make();  // a later agent
  watch->Restore({key_});
  watch->ReadSteps(key_);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].step(), 110);
  watch->End(key_);
  EXPECT_FALSE(fs::exists(dir_ + "/run.steps"));
}

TEST_F(StepsTest, NonsenseIsIgnoredAndStaleFoldersGo) {
  auto watch = Make();
  v1::ShimStart start = Start();
  watch->Begin(key_, OwnerIds{"", geteuid(), getegid(), {}}, &start);
  for (const char* text : {"x", "", "99999999999999999999999", "-", "1 x"}) {
    Say(start.plan().ranks(0), text);
    watch->ReadSteps(key_);
  }
  EXPECT_THAT(told_, IsEmpty());
  watch = Make();
  watch->Restore({});
  EXPECT_FALSE(fs::exists(dir_ + "/run.steps/job-1.0"));
}

}  // namespace
}  // namespace dgxrun::agent
