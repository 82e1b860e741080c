// The controller's log after a crash and after a disk's error: what a crash cut short is cut off and told,
// what was damaged in the middle stops the start, and nothing in between: no confirmed row is ever lost
// without a word.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "controller/record_log.h"
#include "controller/wal_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/controller_temp_dir.h"

namespace dgxrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRows = 6;
constexpr size_t kWalHeader = 32, kFrame = 24 + 4096;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Write(const std::string& path, const std::string& data) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << data;
}

struct Opened {
  absl::Status status;
  std::vector<std::string> rows;
  std::string cut;
};

class WalTest : public ::testing::Test {
 protected:
  // A log as a SIGKILL leaves it, with one commit for each row.
  WalTest() {
    absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Open(dir_ / "log.db", true);
    EXPECT_TRUE(log.ok()) << log.status();
    for (int i = 0; i < kRows; ++i) {
      EXPECT_TRUE((*log)->Append({{1, JobId("j-1"), std::string(100, static_cast<char>('a' + i))}}).ok());
      ends_.push_back(std::filesystem::file_size(dir_ / "log.db-wal"));
    }
    db_ = Read(dir_ / "log.db");
    wal_ = Read(dir_ / "log.db-wal");
  }

  Opened OpenWith(const std::string& db, const std::string& wal) {
    const std::string path = crash_ / "log.db";
    Write(path, db);
    if (wal.empty()) std::filesystem::remove(path + "-wal");
    if (!wal.empty()) Write(path + "-wal", wal);
    Opened opened;
    absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Open(path, /*durable=*/false);  // quicker
    opened.status = log.status();
    if (!log.ok()) return opened;
    opened.cut = (*log)->CutTail();
    opened.status = (*log)->Replay([&](const LogRow& row) {
      opened.rows.push_back(row.bytes.substr(0, 1));
      return absl::OkStatus();
    });
    return opened;
  }

  static size_t NextFrame(size_t at) {
    return at < kWalHeader ? kWalHeader : kWalHeader + ((at - kWalHeader) / kFrame + 1) * kFrame;
  }

  static std::vector<std::string> FirstRows(size_t count) {
    std::vector<std::string> rows;
    for (size_t i = 0; i < count; ++i) rows.emplace_back(1, static_cast<char>('a' + i));
    return rows;
  }

  TempDir dir_, crash_;
  std::vector<size_t> ends_;  // of each commit, in the WAL
  std::string db_, wal_;
};

TEST_F(WalTest, WhatAKillLeavesIsWhole) {
  const Opened opened = OpenWith(db_, wal_);
  EXPECT_TRUE(opened.status.ok()) << opened.status;
  EXPECT_EQ(opened.rows, FirstRows(kRows));
  EXPECT_EQ(opened.cut, "");
}

TEST_F(WalTest, ATailCutAnywhereIsCutAndTold) {
  for (size_t size = kWalHeader + 1; size < wal_.size(); size += 401) {
    const Opened opened = OpenWith(db_, wal_.substr(0, size));
    ASSERT_TRUE(opened.status.ok()) << size << ": " << opened.status;
    const auto whole = static_cast<size_t>(
        std::count_if(ends_.begin(), ends_.end(), [&](size_t end) { return end <= size; }));
    EXPECT_EQ(opened.rows, FirstRows(whole)) << size;
    const size_t from = whole == 0 ? 0 : ends_[whole - 1];
    // Less than the frame's own generation is not known to be of it.
    if (size >= std::max(from, kWalHeader) + 16 && whole > 0) {
      EXPECT_THAT(opened.cut, HasSubstr(absl::StrCat("offset ", from, " on"))) << size;
    }
  }
}

// Pages of the last commit may come to the disk in any order.
TEST_F(WalTest, ALastCommitOfWhichAPageIsMissingIsCutAndTold) {
  for (size_t frame = ends_[kRows - 2]; frame < wal_.size(); frame += kFrame) {
    std::string torn = wal_;
    std::fill_n(torn.begin() + static_cast<std::ptrdiff_t>(frame), kFrame, '\0');
    const Opened opened = OpenWith(db_, torn);
    ASSERT_TRUE(opened.status.ok()) << opened.status;
    EXPECT_EQ(opened.rows, FirstRows(kRows - 1));
  }
}

TEST_F(WalTest, DamageAnywhereIsNeverSilent) {
  int stopped = 0, cut = 0;
  // Each byte of the header, every third of a frame's, and some of its page.
  const auto step = [](size_t at) -> size_t {
    return at < kWalHeader ? 1 : (at - kWalHeader) % kFrame < 24 ? 3 : 509;
  };
  for (size_t at = 0; at < wal_.size(); at += std::min(step(at), NextFrame(at) - at)) {
    std::string damaged = wal_;
    damaged[at] = static_cast<char>(~damaged[at]);
    const Opened opened = OpenWith(db_, damaged);
    if (!opened.status.ok()) {
      ++stopped;
      EXPECT_EQ(opened.status.code(), absl::StatusCode::kDataLoss);
      const size_t frame = at < kWalHeader ? 0 : kWalHeader + (at - kWalHeader) / kFrame * kFrame;
      EXPECT_THAT(std::string(opened.status.message()),
                  HasSubstr(absl::StrCat(crash_ / "log.db-wal", ": is damaged at offset ", frame, ",")));
      EXPECT_EQ(Read(crash_ / "log.db-wal"), damaged) << "what a person needs to look at is still there";
      continue;
    }
    if (opened.rows == FirstRows(kRows)) continue;
    ++cut;
    EXPECT_GE(at, ends_[kRows - 2]) << "only the last commit can be taken for a torn one";
    EXPECT_EQ(opened.rows, FirstRows(kRows - 1));
    EXPECT_NE(opened.cut, "") << at;
  }
  EXPECT_GT(stopped, 100);
  EXPECT_GT(cut, 0);
}

TEST_F(WalTest, WhatAnEarlierLifeOfTheFileLeftIsNoTail) {
  // A clean end folds the file; a long run begins it anew in place, over what is there.
  TempDir dir;
  absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Open(dir / "log.db", true);
  ASSERT_TRUE(log.ok());
  const std::string large(40'000, 'x');
  size_t largest = 0, size = 0;
  int rows = 0;
  // Until the file no longer grows, and some commits into its next life.
  for (int after = 0; after < 3; ++rows) {
    ASSERT_TRUE((*log)->Append({{1, JobId("j-1"), large}}).ok());
    size = std::filesystem::file_size(dir / "log.db-wal");
    if (size == largest) ++after;
    largest = size;
  }
  Write(crash_ / "log.db", Read(dir / "log.db"));
  Write(crash_ / "log.db-wal", Read(dir / "log.db-wal"));
  absl::StatusOr<std::unique_ptr<RecordLog>> after = RecordLog::Open(crash_ / "log.db", true);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ((*after)->CutTail(), "");
  int replayed = 0;
  EXPECT_TRUE((*after)
                  ->Replay([&](const LogRow&) {
                    ++replayed;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(replayed, rows);
}

TEST_F(WalTest, DamageOfTheFileItselfIsNeverSilent) {
  std::string db;
  {
    absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Open(dir_ / "other.db", true);
    ASSERT_TRUE(log.ok());
    for (int i = 0; i < kRows; ++i) {
      ASSERT_TRUE((*log)->Append({{1, JobId("j-1"), std::string(2000, static_cast<char>('a' + i))}}).ok());
    }
    ASSERT_TRUE((*log)->Replay([](const LogRow&) { return absl::OkStatus(); }).ok());
  }
  db = Read(dir_ / "other.db");
  int stopped = 0;
  for (size_t at = 0; at < db.size(); at += 307) {
    std::string damaged = db;
    damaged[at] = static_cast<char>(~damaged[at]);
    const Opened opened = OpenWith(damaged, "");
    if (opened.status.ok()) {
      EXPECT_EQ(opened.rows, FirstRows(kRows)) << at;
    } else {
      ++stopped;
      EXPECT_THAT(std::string(opened.status.message()), HasSubstr(crash_ / "log.db")) << at;
    }
  }
  EXPECT_GT(stopped, 20);
}

}  // namespace
}  // namespace dgxrun
