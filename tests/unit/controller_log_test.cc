#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "controller/environment_store.h"
#include "controller/record_log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sqlite3.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<RecordLog> MustOpen(const std::string& path) {
  absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Open(path, true);
  EXPECT_TRUE(log.ok()) << log.status();
  return log.ok() ? *std::move(log) : nullptr;
}

std::vector<std::string> Rows(RecordLog& log) {
  std::vector<std::string> rows;
  EXPECT_TRUE(log.Replay([&](const LogRow& row) {
                   rows.push_back(row.job.str() + ":" + row.bytes);
                   return absl::OkStatus();
                 })
                  .ok());
  return rows;
}

LogRow Row(const std::string& job, const std::string& bytes) { return {1, JobId(job), bytes}; }

TEST(RecordLog, RowsComeBackInOrder) {
  TempDir dir;
  {
    auto log = MustOpen(dir / "log.db");
    ASSERT_TRUE(log->Append({Row("", "a"), Row("j-1", "b")}).ok());
    ASSERT_TRUE(log->Append({Row("j-1", std::string("\0x", 2))}).ok());
  }
  auto log = MustOpen(dir / "log.db");
  EXPECT_THAT(Rows(*log), ElementsAre(":a", "j-1:b", "j-1:" + std::string("\0x", 2)));
  struct stat info;
  ASSERT_EQ(stat((dir / "log.db").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(RecordLog, ASecondControllerIsToldSo) {
  TempDir dir;
  auto log = MustOpen(dir / "log.db");
  absl::StatusOr<std::unique_ptr<RecordLog>> second = RecordLog::Open(dir / "log.db", true);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another controller uses this log"));
}

// A crash in the middle of a write: files as they were at that moment, the last commit cut short.
TEST(RecordLog, ATornTailIsDropped) {
  TempDir dir, crash;
  auto log = MustOpen(dir / "log.db");
  ASSERT_TRUE(log->Append({Row("", "a")}).ok());
  ASSERT_TRUE(log->Append({Row("", "b")}).ok());
  for (const char* name : {"log.db", "log.db-wal"}) std::filesystem::copy_file(dir / name, crash / name);
  const auto size = std::filesystem::file_size(crash / "log.db-wal");
  std::filesystem::resize_file(crash / "log.db-wal", size - 100);
  auto after = MustOpen(crash / "log.db");
  EXPECT_THAT(Rows(*after), ElementsAre(":a"));
  ASSERT_TRUE(after->Append({Row("", "c")}).ok());
  EXPECT_THAT(Rows(*after), ElementsAre(":a", ":c"));
}

TEST(RecordLog, ADamagedRowIsNamed) {
  TempDir dir;
  const std::string path = dir / "log.db";
  ASSERT_TRUE(MustOpen(path)->Append({Row("", "a"), Row("j-1", "attempt placed"), Row("", "c")}).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "UPDATE log SET bytes = x'00' WHERE seq = 2", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  absl::Status status = MustOpen(path)->Replay([](const LogRow&) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": row 2 of the log (job j-1) is damaged"));
}

TEST(RecordLog, ADamagedFileIsNamed) {
  TempDir dir;
  std::ofstream(dir / "log.db") << std::string(8192, 'x');
  absl::Status status = RecordLog::Open(dir / "log.db", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir / "log.db"));
}

TEST(RecordLog, AnOlderBinaryDoesNotTouchANewerFile) {
  TempDir dir;
  MustOpen(dir / "log.db").reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir / "log.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(std::string(RecordLog::Open(dir / "log.db", true).status().message()),
              HasSubstr("newer dgxrun"));
}

ArchivedJob Ended(uint64_t number, const std::string& name) {
  ArchivedJob job;
  job.id = JobId("j-" + std::to_string(number));
  job.number = number;
  job.name = name;
  job.owner_uid = 7;
  job.key = "key" + std::to_string(number);
  job.status = "status" + std::to_string(number);
  return job;
}

TEST(RecordLog, AnArchivedJobLeavesOneRow) {
  TempDir dir;
  auto log = MustOpen(dir / "log.db");
  ASSERT_TRUE(log->Append({Row("", "a"), Row("j-1", "b"), Row("j-2", "c"), Row("j-1", "d")}).ok());
  ASSERT_TRUE(log->Archive(Ended(1, "train"), Row("j-1", "archived 1"), 100).ok());
  EXPECT_THAT(Rows(*log), ElementsAre(":a", "j-2:c", ":archived 1"));
  ASSERT_TRUE(log->Archive(Ended(2, "train"), Row("j-2", "archived 2"), 100).ok());
  EXPECT_EQ((**log->ArchivedById(JobId("j-1"))).status, "status1");
  EXPECT_EQ((**log->ArchivedByName("train")).number, 2u);
  EXPECT_EQ((**log->ArchivedByKey(7, "key1")).number, 1u);
  EXPECT_FALSE((*log->ArchivedByKey(8, "key1")).has_value());
  EXPECT_EQ(log->NewestArchived(7, 1)->front().number, 2u);
  EXPECT_TRUE(log->NewestArchived(8, 1)->empty());
  EXPECT_EQ(log->NewestArchived(std::nullopt, 9)->size(), 2u);
}

TEST(RecordLog, TheHighestNumberOutlivesTheTrimming) {
  TempDir dir;
  auto log = MustOpen(dir / "log.db");
  for (uint64_t number : {9, 1, 2, 3}) {
    ASSERT_TRUE(log->Archive(Ended(number, "x"), Row("", "a" + std::to_string(number)), 2).ok());
  }
  EXPECT_THAT(Rows(*log), ElementsAre(":a9", ":a2", ":a3"));
}

TEST(RecordLog, NetworkFileSystemsAreKnown) {
  EXPECT_STREQ(NetworkFileSystemName(0x6969), "NFS");
  EXPECT_STREQ(NetworkFileSystemName(0x0BD00BD0), "Lustre");
  EXPECT_STREQ(NetworkFileSystemName(static_cast<int32_t>(0xFF534D42)), "CIFS");
  EXPECT_EQ(NetworkFileSystemName(0xEF53), nullptr);  // ext4
}

// Fills the disk under `log`, checks what is said, and goes on once `make_room` has run.
void FillAndGoOn(const std::string& path, absl::StatusCode code, const std::string& what,
                 const std::function<void()>& make_room) {
  auto log = MustOpen(path);
  ASSERT_TRUE(log->Append({Row("", "a")}).ok());
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = log->Append({Row("", std::string(16384, 'x'))});
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + what));
  const size_t before = Rows(*log).size();
  make_room();
  EXPECT_TRUE(log->Append({Row("", "b")}).ok());
  EXPECT_EQ(Rows(*log).size(), before + 1);
}

TEST(RecordLog, AFullDiskIsSaidAndGetsOver) {
  TempDir dir;
  const std::string disk = dir / "disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  // Who may not mount has the file size limit instead: a disk that takes no more, with another errno.
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=256k") == 0) {
    FillAndGoOn(disk + "/log.db", absl::StatusCode::kResourceExhausted, ": the disk is full",
                [&] { ASSERT_EQ(mount("none", disk.c_str(), "tmpfs", MS_REMOUNT, "size=4m"), 0); });
    umount2(disk.c_str(), MNT_DETACH);
  }
  signal(SIGXFSZ, SIG_IGN);
  rlimit whole;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &whole), 0);
  rlimit little = whole;
  little.rlim_cur = 256 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  FillAndGoOn(dir / "log.db", absl::StatusCode::kUnavailable,
              ": cannot be read or written: ", [&] { ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &whole), 0); });
}

TEST(EnvironmentStore, BlobsArePrivateAndOrphansGo) {
  TempDir dir;
  EnvironmentStore store(dir / "env", true);
  ASSERT_TRUE(store.MakeFolder().ok());
  ASSERT_TRUE(store.Write(JobId("j-1"), "secret").ok());
  ASSERT_TRUE(store.Write(JobId("j-1"), "secret2").ok());
  ASSERT_TRUE(store.Write(JobId("j-2"), "").ok());
  EXPECT_EQ(*store.Read(JobId("j-1")), "secret2");
  struct stat info;
  ASSERT_EQ(stat((dir / "env/j-1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((dir / "env").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  store.DeleteAllBut({JobId("j-1")});
  EXPECT_FALSE(store.Read(JobId("j-2")).ok());
  store.Delete(JobId("j-1"));
  EXPECT_TRUE(std::filesystem::is_empty(dir / "env"));
}

}  // namespace
}  // namespace dgxrun
