// The parsers beneath the judge, each with bad data, and its pure parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "agent/ckpt/folder_source.h"
#include "agent/ckpt/format.h"
#include "agent/ckpt/json_scan.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/names.h"
#include "agent/ckpt/pickle.h"
#include "agent/ckpt/reshard.h"
#include "agent/ckpt/safetensors.h"
#include "agent/ckpt/siblings.h"
#include "agent/ckpt/tracker.h"
#include "agent/ckpt/zip.h"
#include "tests/unit/ckpt_kit.h"

namespace dgxrun::agent::ckpt {
namespace {

using kit::MemorySource;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<File> FileOf(MemorySource& source, std::string bytes) {
  source.Put("f", std::move(bytes));
  return *source.Open("f");
}

// ---- paths and the real file system

TEST(Path, StaysBeneath) {
  for (const char* good : {"a", "a/b", ".metadata", "a..b", "..."}) EXPECT_TRUE(StaysBeneath(good)) << good;
  for (const char* bad : {"", "/a", "..", "a/..", "../a", "a//b", "a/", "./a", "a/./b"}) {
    EXPECT_FALSE(StaysBeneath(bad)) << bad;
  }
  EXPECT_FALSE(StaysBeneath(std::string_view("a\0b", 3)));
  EXPECT_FALSE(StaysBeneath(std::string(5000, 'a')));
}

class Folder : public ::testing::TestWithParam<bool> {
 protected:
  Folder() {
    char name[] = "/tmp/dgxrun_ckpt_XXXXXX";
    path_ = mkdtemp(name);
    std::filesystem::create_directories(path_ + "/root/sub");
    std::ofstream(path_ + "/outside") << "secret";
    std::ofstream(path_ + "/root/sub/file") << "hello";
    std::filesystem::create_symlink("../../outside", path_ + "/root/sub/link");
    std::filesystem::create_directory_symlink("..", path_ + "/root/up");
    source_ = *OpenFolderWith(path_ + "/root", GetParam());
  }
  ~Folder() override { std::filesystem::remove_all(path_); }
  std::string path_;
  std::unique_ptr<Source> source_;
};

TEST_P(Folder, ReadsWhatLiesBeneathAndCounts) {
  absl::StatusOr<FileInfo> info = source_->Stat("sub/file");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->type, FileType::kFile);
  EXPECT_EQ(info->bytes, 5U);
  EXPECT_GT(info->mtime_ns, 0);
  absl::StatusOr<std::unique_ptr<File>> file = source_->Open("sub/file");
  ASSERT_TRUE(file.ok());
  char buffer[3];
  ASSERT_TRUE((*file)->ReadAt(1, buffer, 3).ok());
  EXPECT_EQ(std::string(buffer, 3), "ell");
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadAt(3, buffer, 3)));
  absl::StatusOr<std::vector<Entry>> entries = source_->List("sub");
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->size(), 2U);
  EXPECT_EQ(source_->counts().opens, 1U);
  EXPECT_EQ(source_->counts().reads, 2U);
  EXPECT_EQ(source_->counts().bytes, 6U);
  EXPECT_EQ(source_->counts().entries, 2U);
}

TEST_P(Folder, NoWayOut) {
  EXPECT_TRUE(absl::IsPermissionDenied(source_->Open("../outside").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(source_->Open("sub/../../outside").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(source_->Open("sub/link").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(source_->Open("up/outside").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(source_->List("up").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(source_->Stat("/etc/passwd").status()));
  EXPECT_EQ(source_->Stat("sub/link")->type, FileType::kLink);
  EXPECT_EQ(*source_->ReadLink("sub/link"), "../../outside");
}

TEST_P(Folder, PipesDoNotBlock) {
  ASSERT_EQ(mkfifo((path_ + "/root/pipe").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(source_->Open("pipe").status()));
  EXPECT_EQ(source_->Stat("pipe")->type, FileType::kOther);
  EXPECT_TRUE(absl::IsNotFound(source_->Open("nothing").status()));
}

TEST_P(Folder, ABudgetEndsIt) {
  source_->SetBudget({.calls = 2});
  EXPECT_TRUE(source_->Stat("sub").ok());
  EXPECT_TRUE(source_->Stat("sub").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(source_->Stat("sub").status()));
  source_->SetBudget({});
  EXPECT_TRUE(source_->Stat("sub").ok());
  source_->Stop();
  EXPECT_TRUE(absl::IsCancelled(source_->Stat("sub").status()));
}

INSTANTIATE_TEST_SUITE_P(Ways, Folder, ::testing::Bool());

TEST(OpenFolder, SaysWhatIsWrong) {
  EXPECT_TRUE(absl::IsNotFound(OpenFolder("/nonexistent/x").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenFolder("/etc/passwd").status()));
}

// ---- zip

TEST(Zip, EveryTruncationIsFound) {
  for (const bool zip64 : {true, false}) {
    const std::string whole = kit::Zip({{"a/data.pkl", "abc"}, {"a/data/0", std::string(200, 'x')}}, zip64);
    MemorySource source;
    absl::StatusOr<ZipArchive> archive = FindZip(*FileOf(source, whole), whole.size());
    ASSERT_TRUE(archive.ok()) << archive.status();
    EXPECT_EQ(archive->begin, 0U);
    EXPECT_EQ(archive->members, 2U);
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(FindZip(*FileOf(source, whole.substr(0, size)), size).ok()) << size;
    }
  }
}

TEST(Zip, MembersAndTheirChecksums) {
  MemorySource source;
  const std::string whole = kit::Zip({{"a/data.pkl", "abc"}, {"a/data/0", std::string(5000, 'x')}});
  std::unique_ptr<File> file = FileOf(source, whole);
  const ZipArchive archive = *FindZip(*file, whole.size());
  absl::StatusOr<std::vector<ZipMember>> members = ReadZipDirectory(*file, archive);
  ASSERT_TRUE(members.ok()) << members.status();
  EXPECT_EQ(*ReadZipMember(*file, archive, (*members)[0], 100), "abc");
  EXPECT_TRUE(absl::IsResourceExhausted(ReadZipMember(*file, archive, (*members)[1], 100).status()));
  EXPECT_TRUE(CheckZipCrcs(*file, archive, *members).ok());
  std::string hole = whole;
  hole.replace(2000, 512, std::string(512, '\0'));
  file = FileOf(source, hole);
  EXPECT_THAT(std::string(CheckZipCrcs(*file, archive, *members).message()), HasSubstr("a/data/0"));
  // A writer that stores no checksums.
  std::string plain = kit::Zip({{"a/data/0", std::string(5000, 'x')}}, true, /*with_crc=*/false);
  file = FileOf(source, plain);
  const ZipArchive unchecked = *FindZip(*file, plain.size());
  EXPECT_TRUE(CheckZipCrcs(*file, unchecked, *ReadZipDirectory(*file, unchecked)).ok());
}

TEST(Zip, ArchivesOneAfterAnother) {
  const std::string one = kit::Zip({{"a/data.pkl", "1"}}), two = kit::Zip({{"a/data.pkl", "22"}});
  MemorySource source;
  std::unique_ptr<File> file = FileOf(source, one + two);
  absl::StatusOr<ZipArchive> last = FindZip(*file, one.size() + two.size());
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last->begin, one.size());
  EXPECT_EQ(FindZip(*file, last->begin)->begin, 0U);
  EXPECT_EQ(*ReadZipMember(*file, *last, (*ReadZipDirectory(*file, *last))[0], 10), "22");
}

// Bad bytes anywhere in the structure never crash, and never make a member that lies outside.
TEST(Zip, DamagedStructure) {
  const std::string whole = kit::Zip({{"a/data.pkl", "abc"}, {"a/data/0", std::string(50, 'x')}});
  MemorySource source;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '\xff', '\x7f'}) {
      std::string bad = whole;
      bad[at] = byte;
      std::unique_ptr<File> file = FileOf(source, bad);
      absl::StatusOr<ZipArchive> archive = FindZip(*file, bad.size());
      if (!archive.ok()) continue;
      absl::StatusOr<std::vector<ZipMember>> members = ReadZipDirectory(*file, *archive);
      if (!members.ok()) continue;
      for (const ZipMember& member : *members) EXPECT_LE(member.header + member.bytes, bad.size());
      CheckZipCrcs(*file, *archive, *members).IgnoreError();
    }
  }
}

// ---- pickle

TEST(Pickle, Values) {
  using namespace kit;
  const std::string bytes = Pickled(PDict({{PText("n"), PInt(-5)},
                                           {PText("big"), PInt(int64_t{1} << 40)},
                                           {PText("none"), PNone()},
                                           {PText("t"), PTuple({PInt(1), PText("x")})},
                                           {PText("n"), PInt(7)}}));
  absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(bytes);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const Pickle::Value root = (*pickle)->root();
  EXPECT_EQ(root.Get("n").AsInt(), 7);
  EXPECT_EQ(root.Get("big").AsInt(), int64_t{1} << 40);
  EXPECT_EQ(root.Get("none").kind(), PickleKind::kNone);
  EXPECT_EQ(root.Get("t").At(1).AsText(), "x");
  EXPECT_TRUE(root.Get("t").At(2).absent());
  EXPECT_TRUE(root.Get("nothing").Get("at all").absent());
  EXPECT_EQ((*pickle)->bytes_used(), bytes.size());
}

TEST(Pickle, NothingIsCalled) {
  // What Python would run as os.system("touch /tmp/x").
  const std::string bytes =
      kit::Pickled(kit::PGlobal("os", "system") + kit::PTuple({kit::PText("touch /tmp/x")}) + "R");
  absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(bytes);
  ASSERT_TRUE(pickle.ok());
  EXPECT_EQ((*pickle)->root().kind(), PickleKind::kObject);
  EXPECT_EQ((*pickle)->root().ClassName(), "os.system");
  EXPECT_EQ((*pickle)->root().args().At(0).AsText(), "touch /tmp/x");
}

TEST(Pickle, EveryTruncationIsAnError) {
  const std::string bytes = kit::DcpMetadata(kit::TwoShards());
  ASSERT_TRUE(Pickle::Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(Pickle::Parse(bytes.substr(0, size)).ok()) << size;
}

TEST(Pickle, BadOpcodesAndStacks) {
  for (const std::string& bad :
       {std::string("."), std::string("t."), std::string("}u."), std::string("(u."), std::string("R."),
        std::string("h\x05."), std::string("\x80\x09N."), std::string("N(Na."), std::string("\xff."),
        std::string("NNs."), std::string("b."), std::string("Nb."), std::string("]N(s."),
        std::string("\x93."), std::string("NN\x93."), std::string("(1."),
        std::string("X\xff\xff\xff\xff"
                    "a."),
        std::string("}NNNu.")}) {
    EXPECT_FALSE(Pickle::Parse(bad).ok()) << testing::PrintToString(bad);
  }
}

TEST(Pickle, DepthAndCycles) {
  // A list in a list, 50,000 deep; and one that contains itself.
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += "](";
  for (int i = 0; i < 50'000; ++i) deep += "e";
  ASSERT_TRUE(Pickle::Parse(deep + ".").ok());
  const std::string cycle = std::string("]q\0h\0a.", 7);
  absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(cycle);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ((*pickle)->root().At(0).At(0).At(0).size(), 1U);
}

TEST(Pickle, Caps) {
  std::string many = "(";
  for (int i = 0; i < 2000; ++i) many += "K\x01";
  many += "t.";
  EXPECT_TRUE(Pickle::Parse(many).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Pickle::Parse(many, {.values = 1000}).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(Pickle::Parse(many, {.words = 1000}).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(Pickle::Parse(std::string("Nr\xff\xff\xff\x7f.", 7)).status()));
}

// ---- JSON

std::vector<std::string> Scan(std::string_view json, absl::Status* status = nullptr) {
  std::vector<std::string> seen;
  absl::Status scanned =
      ScanJson(json, [&seen](const std::vector<std::string>& keys, const JsonScalar& scalar) {
        std::string line;
        for (const std::string& key : keys) line += key + "/";
        line += scalar.text.has_value()      ? std::string(*scalar.text)
                : scalar.integer.has_value() ? std::to_string(*scalar.integer)
                                             : "-";
        seen.push_back(line);
        return true;
      });
  if (status != nullptr) {
    *status = scanned;
  } else {
    EXPECT_TRUE(scanned.ok()) << json << " " << scanned;
  }
  return seen;
}

TEST(Json, Scalars) {
  EXPECT_THAT(
      Scan(R"({"a": 1, "b": {"c": [2.0, "x\u00e9\n", {"d": NaN}], "e": -Infinity}, "f": {}, "g": []})"),
      ElementsAre("a/1", "b/c//2", "b/c//x\xc3\xa9\n", "b/c//d/-", "b/e/-"));
  EXPECT_THAT(Scan("\"\\ud83d\\ude00\""), ElementsAre("\xf0\x9f\x98\x80"));
  EXPECT_THAT(Scan("1.5e400"), ElementsAre("-"));
}

TEST(Json, Wrong) {
  for (const char* bad : {"", "{", "[1,", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1 2]", "{} x", "nul", "\"a",
                          "+1", "{\"a\":1", "\"\\x\"", "\"\\u12\"", "--1", "01x"}) {
    absl::Status status;
    Scan(bad, &status);
    EXPECT_FALSE(status.ok()) << bad;
  }
  absl::Status status;
  Scan(std::string(1'000'000, '['), &status);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
}

// ---- safetensors

TEST(SafetensorsHeader, SizesAndOverlaps) {
  MemorySource source;
  const std::string good = kit::Safetensors({{"w", 512}, {"b", 64}});
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(*FileOf(source, good));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->end, good.size());
  EXPECT_EQ(header->tensors.size(), 2U);
  const uint64_t data = header->data;
  for (size_t size = 0; size < data; ++size) {
    EXPECT_TRUE(absl::IsOutOfRange(ReadSafetensorsHeader(*FileOf(source, good.substr(0, size))).status()))
        << size;
  }
  auto with = [&source](const std::string& json) {
    return ReadSafetensorsHeader(*FileOf(source, kit::Le(json.size(), 8) + json)).status();
  };
  EXPECT_TRUE(absl::IsDataLoss(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})")));
  EXPECT_TRUE(absl::IsDataLoss(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}})")));
  EXPECT_TRUE(absl::IsDataLoss(with(R"({"a":{"dtype":"F32","data_offsets":[0]}})")));
  EXPECT_TRUE(absl::IsDataLoss(with(R"([1])")));
  EXPECT_TRUE(absl::IsDataLoss(with(std::string(64, '\0'))));
  EXPECT_TRUE(
      absl::IsDataLoss(ReadSafetensorsHeader(*FileOf(source, kit::Le(200'000'000, 8) + "{}")).status()));
  EXPECT_TRUE(with("{}").ok());
}

// ---- trackers

TEST(Tracker, Parse) {
  auto state = [](TrackerKind kind, std::optional<std::string_view> text) {
    return ParseTracker(kind, text).state;
  };
  EXPECT_EQ(state(TrackerKind::kMegatron, std::nullopt), TrackerState::kAbsent);
  EXPECT_EQ(state(TrackerKind::kMegatron, ""), TrackerState::kEmpty);
  EXPECT_EQ(state(TrackerKind::kMegatron, " \n"), TrackerState::kEmpty);
  EXPECT_EQ(state(TrackerKind::kMegatron, std::string_view("\0\0", 2)), TrackerState::kUnreadable);
  EXPECT_EQ(state(TrackerKind::kMegatron, "12x"), TrackerState::kUnreadable);
  EXPECT_EQ(state(TrackerKind::kMegatron, std::string(5000, '1')), TrackerState::kUnreadable);
  EXPECT_EQ(ParseTracker(TrackerKind::kMegatron, "300\n").target, "iter_0000300");
  EXPECT_EQ(ParseTracker(TrackerKind::kMegatron, "12345678").target, "iter_12345678");
  EXPECT_EQ(ParseTracker(TrackerKind::kMegatron, "release").target, "release");
  EXPECT_EQ(ParseTracker(TrackerKind::kDeepSpeed, "global_step10").target, "global_step10");
  EXPECT_EQ(state(TrackerKind::kDeepSpeed, "../evil"), TrackerState::kUnreadable);
  EXPECT_EQ(state(TrackerKind::kDeepSpeed, "a/b"), TrackerState::kUnreadable);
  EXPECT_EQ(state(TrackerKind::kDeepSpeed, std::string(300, 'a')), TrackerState::kUnreadable);
}

v1::Checkpoint Named(const std::string& path, std::string_view format) {
  v1::Checkpoint checkpoint;
  checkpoint.set_path(path);
  checkpoint.set_format(std::string(format));
  return checkpoint;
}

TEST(Tracker, WhatShouldBeDone) {
  const v1::Checkpoint iter = Named("/c/iter_0000200", kMegatronDist);
  using Action = TrackerRepair::Action;
  auto repair = [](std::optional<std::string_view> text, const v1::Checkpoint* chosen) {
    return RepairOf(ParseTracker(TrackerKind::kMegatron, text), chosen);
  };
  EXPECT_EQ(repair("200", &iter).action, Action::kNone);
  EXPECT_EQ(repair("", &iter).action, Action::kWrite);
  EXPECT_EQ(repair("", &iter).text, "200");
  EXPECT_THAT(repair("", &iter).reason, HasSubstr("status 0"));
  EXPECT_EQ(repair("300", &iter).action, Action::kWrite);
  EXPECT_EQ(repair(std::nullopt, &iter).action, Action::kWrite);
  EXPECT_EQ(repair("", nullptr).action, Action::kMoveAside);
  EXPECT_EQ(repair(std::nullopt, nullptr).action, Action::kNone);
  EXPECT_EQ(repair("300", nullptr).action, Action::kNone);
  // A checkpoint that no such tracker can name.
  const v1::Checkpoint other = Named("/c/checkpoint-5", kTrainer);
  EXPECT_EQ(repair("", &other).action, Action::kNone);
  EXPECT_EQ(TrackerText(TrackerKind::kMegatron, Named("/c/iter_200", kMegatron)), std::nullopt);
  EXPECT_EQ(TrackerText(TrackerKind::kDeepSpeed, Named("/c/tag", kDeepSpeed)), "tag");
}

// ---- names

TEST(Names, Steps) {
  const std::pair<const char*, int64_t> kCases[] = {{"step_200.pt", 200},
                                                    {"epoch=3-step=400.ckpt", 400},
                                                    {"epoch=3-step=400-v1.ckpt", 400},
                                                    {"checkpoint-500", 500},
                                                    {"iter_0000300", 300},
                                                    {"global_step10", 10},
                                                    {"last.ckpt", -1},
                                                    {"ckpt.500", 500},
                                                    {"ckpt_100_rank0.pt", 100},
                                                    {"ep1-ba100-rank2.pt", 100},
                                                    {"rank0_step7.pt", 7},
                                                    {"model_step_9-00001-of-00004.safetensors", 9},
                                                    {"model-00001-of-00004.safetensors", -1},
                                                    {"99999999999999999999.pt", -1},
                                                    {"m--val_loss=1.2-step=10-last", 10}};
  for (const auto& [name, step] : kCases) EXPECT_EQ(StepOfName(name), step) << name;
}

TEST(Names, WhatMayBeACheckpoint) {
  for (const char* bad : {"", ".hidden", "a.tmp", "a.partial", "checkpoint-5.dgxrun-quarantine",
                          "checkpoint-5.dgxrun-quarantine.2", "tmp-checkpoint-5", "x-unfinished"}) {
    EXPECT_FALSE(MayBeCheckpoint(bad)) << bad;
  }
  for (const char* good : {"a", "checkpoint-5", "x.dgxrun-quarantine-no.pt"})
    EXPECT_TRUE(MayBeCheckpoint(good)) << good;
}

TEST(Names, Parts) {
  EXPECT_EQ(ParsePartName("c_5_rank12.pt")->number, 12);
  EXPECT_EQ(ParsePartName("c_5_rank12.pt")->group, "c_5_rank*.pt");
  EXPECT_EQ(ParsePartName("m-00003-of-00004.bin")->of, 4);
  EXPECT_EQ(ParsePartName("frank5.pt"), std::nullopt);
  EXPECT_EQ(ParsePartName("step_5.pt"), std::nullopt);
  EXPECT_EQ(PartNameOf("m-00003-of-00004.bin", 1), "m-00001-of-00004.bin");
  EXPECT_EQ(PartNameOf("c_5_rank2.pt", 0), "c_5_rank0.pt");
}

// ---- joining nodes

v1::CheckpointFinding Finding(const std::string& path, v1::Verdict verdict, std::vector<std::string> missing,
                              std::vector<std::pair<std::string, uint64_t>> present) {
  v1::CheckpointFinding finding;
  finding.mutable_checkpoint()->set_path(path);
  finding.mutable_checkpoint()->set_step(StepOfName(path));
  finding.mutable_checkpoint()->set_verdict(verdict);
  for (const std::string& name : missing) {
    v1::FileFact& fact = *finding.add_missing();
    fact.set_name(name);
    fact.set_bytes(100);
  }
  if (!missing.empty()) finding.mutable_checkpoint()->set_file(missing[0]);
  for (const auto& [name, bytes] : present) {
    v1::FileFact& fact = *finding.add_present();
    fact.set_name(name);
    fact.set_bytes(bytes);
  }
  return finding;
}

v1::Verdict Merged(const std::vector<v1::CheckpointFinding>& nodes) {
  std::vector<std::vector<v1::CheckpointFinding>> per_node;
  for (const v1::CheckpointFinding& node : nodes) per_node.push_back({node});
  const std::vector<v1::CheckpointFinding> merged = MergeFindings(per_node);
  EXPECT_EQ(merged.size(), 1U);
  // The order of the nodes does not matter.
  std::vector<std::vector<v1::CheckpointFinding>> reversed(per_node.rbegin(), per_node.rend());
  EXPECT_EQ(MergeFindings(reversed)[0].checkpoint().verdict(), merged[0].checkpoint().verdict());
  return merged[0].checkpoint().verdict();
}

TEST(Merge, UnsharedFolders) {
  const auto partial = v1::VERDICT_PARTIAL;
  const auto first =
      Finding("/c/step-1", partial, {"__1_0.distcp"}, {{".metadata", 9}, {"__0_0.distcp", 100}});
  const auto second = Finding("/c/step-1", partial, {".metadata"}, {{"__1_0.distcp", 100}});
  auto tall = second;
  tall.mutable_missing(0)->set_bytes(0);
  EXPECT_EQ(Merged({first, tall}), v1::VERDICT_COMPLETE);
  const auto cut = Finding("/c/step-1", partial, {".metadata"}, {{"__1_0.distcp", 99}});
  EXPECT_EQ(Merged({first, cut}), partial);
  EXPECT_EQ(Merged({first, first}), partial);  // shared, and the shard is nowhere
  EXPECT_EQ(Merged({tall, tall}), partial);    // nobody has the metadata
  auto damaged = Finding("/c/step-1", partial, {}, {});
  damaged.mutable_checkpoint()->set_file("__1_0.distcp");
  EXPECT_EQ(Merged({first, damaged}), partial);
  EXPECT_EQ(Merged({first, Finding("/c/step-1", v1::VERDICT_CORRUPT, {}, {})}), v1::VERDICT_CORRUPT);
}

TEST(Merge, OneNodeHasAll) {
  const auto all = Finding("/c/step-1", v1::VERDICT_COMPLETE, {}, {});
  EXPECT_EQ(Merged({all}), v1::VERDICT_COMPLETE);
  EXPECT_EQ(Merged({all, all}), v1::VERDICT_COMPLETE);
  EXPECT_EQ(Merged({all, Finding("/c/step-1", v1::VERDICT_PARTIAL, {".metadata"}, {})}),
            v1::VERDICT_COMPLETE);
  EXPECT_EQ(Merged({all, Finding("/c/step-1", v1::VERDICT_WRITING, {}, {})}), v1::VERDICT_WRITING);
}

TEST(Merge, TwoSaves) {
  auto first = Finding("/c/step-1", v1::VERDICT_COMPLETE, {}, {});
  auto second = first;
  first.set_save_id("a");
  second.set_save_id("b");
  EXPECT_EQ(Merged({first, second}), v1::VERDICT_CORRUPT);
}

TEST(Merge, NewestFirst) {
  const auto one = Finding("/c/step-1", v1::VERDICT_COMPLETE, {}, {});
  const auto two = Finding("/c/step-2", v1::VERDICT_COMPLETE, {}, {});
  const std::vector<v1::CheckpointFinding> merged = MergeFindings({{one}, {two, one}});
  ASSERT_EQ(merged.size(), 2U);
  EXPECT_EQ(merged[0].checkpoint().step(), 2);
}

TEST(Merge, BytesOfAllNodes) {
  auto first = Finding("/c/step-1", v1::VERDICT_PARTIAL, {"b"}, {{"a", 100}});
  first.mutable_checkpoint()->set_bytes(100);
  auto second = Finding("/c/step-1", v1::VERDICT_PARTIAL, {"a"}, {{"b", 250}});
  second.mutable_checkpoint()->set_bytes(250);
  const auto merged = MergeFindings({{first}, {second}});
  EXPECT_EQ(merged[0].checkpoint().verdict(), v1::VERDICT_COMPLETE);
  EXPECT_EQ(merged[0].checkpoint().bytes(), 350U);
}

// ---- what other checkpoints tell

Listed Like(int64_t step, std::vector<std::string> names) {
  Listed listed;
  listed.finding = Finding("/c/step_" + std::to_string(step), v1::VERDICT_COMPLETE, {}, {});
  listed.names = std::move(names);
  return listed;
}

TEST(Siblings, AFileThatAnOlderOneHas) {
  std::vector<Listed> listed = {Like(3, {"a"}), Like(2, {"a", "b"}), Like(1, {"a", "b"})};
  CompareSiblings(listed);
  EXPECT_EQ(listed[0].finding.checkpoint().verdict(), v1::VERDICT_PARTIAL);
  EXPECT_EQ(listed[0].finding.checkpoint().file(), "b");
  EXPECT_EQ(listed[1].finding.checkpoint().verdict(), v1::VERDICT_COMPLETE);
}

TEST(Siblings, TheScriptHasChanged) {
  std::vector<Listed> listed = {Like(4, {"a"}), Like(3, {"a"}), Like(2, {"a", "b"})};
  CompareSiblings(listed);
  EXPECT_EQ(listed[0].finding.checkpoint().verdict(), v1::VERDICT_COMPLETE);
  listed = {Like(4, {"a", "b"}), Like(3, {"a"})};  // grown
  CompareSiblings(listed);
  EXPECT_EQ(listed[1].finding.checkpoint().verdict(), v1::VERDICT_COMPLETE);
}

// ---- other world sizes

TEST(Reshard, EveryFormatHasAnAnswer) {
  for (const std::string_view format :
       {kTorch, kTorchLegacy, kSafetensors, kTrainer, kTrainerDeepSpeed, kTrainerFsdp, kAccelerate,
        kAccelerateDeepSpeed, kAccelerateFsdp, kLightning, kLightningSharded, kLightningDeepSpeed, kDcp,
        kDeepSpeed, kDeepSpeedUniversal, kMegatron, kMegatronDist, kMegatronDcp, kNemo}) {
    const ReshardAnswer answer = CanLoadAtOtherWorldSize(format);
    EXPECT_EQ(answer.reason.find("not known"),
              format == kTorch || format == kTorchLegacy ? answer.reason.find("not") : std::string::npos)
        << format;
    EXPECT_EQ(answer.answer == Reshard::kNo,
              format.find("deepspeed") != format.npos && format != kDeepSpeedUniversal)
        << format;
  }
  EXPECT_EQ(CanLoadAtOtherWorldSize("").answer, Reshard::kNotKnown);
  EXPECT_EQ(CanLoadAtOtherWorldSize("dcp").answer, Reshard::kYes);
}

}  // namespace
}  // namespace dgxrun::agent::ckpt
