#include <random>
#include <string>
#include <vector>

#include "cli/line_assembler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dgxrun::cli {
namespace {

using ::testing::ElementsAre;

struct Lines {
  std::vector<std::string> all;
  LineAssembler::Sink sink() {
    return [this](std::string_view line) { all.emplace_back(line); };
  }
};

TEST(LineAssembler, PiecesBecomeWholeLines) {
  Lines lines;
  LineAssembler a;
  a.Add(0, "ab", lines.sink());
  EXPECT_TRUE(lines.all.empty());
  a.Add(2, "c\nde", lines.sink());
  a.Add(6, "\n\n", lines.sink());
  EXPECT_THAT(lines.all, ElementsAre("abc", "de", ""));
  a.Add(8, "tail", lines.sink());
  a.Finish(lines.sink());
  a.Finish(lines.sink());
  EXPECT_THAT(lines.all, ElementsAre("abc", "de", "", "tail"));
}

TEST(LineAssembler, CarriageReturnEndsALine) {
  Lines lines;
  LineAssembler a;
  a.Add(0, "10%\r20%\r", lines.sink());
  a.Add(8, "\nwin\r\nx\n", lines.sink());
  EXPECT_THAT(lines.all, ElementsAre("10%", "20%", "win", "x"));
}

TEST(LineAssembler, LongLinesAreCutAtTheLimit) {
  Lines lines;
  LineAssembler a(4);
  a.Add(0, "abcdefghi\nxy\nabcd\nabcde", lines.sink());
  a.Finish(lines.sink());
  EXPECT_THAT(lines.all, ElementsAre("abcd", "efgh", "i", "xy", "abcd", "abcd", "e"));
}

TEST(LineAssembler, WhatWasSeenIsDroppedAndAGapIsSaid) {
  Lines lines;
  LineAssembler a;
  a.Add(0, "one\ntwo\n", lines.sink());
  a.Add(0, "one\ntwo\nthree\n", lines.sink());  // after a reconnect it begins anew
  a.Add(4, "two\n", lines.sink());
  EXPECT_EQ(a.next_offset(), 14u);
  a.Add(20, "four\n", lines.sink());
  EXPECT_THAT(lines.all, ElementsAre("one", "two", "three", "[6 bytes are missing here]", "four"));
}

// However a text is cut, the lines are the same.
TEST(LineAssembler, CutsDoNotMatter) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "ab\n\r\n\r"[random() % 6];
    Lines whole, cut;
    LineAssembler a(8), b(8);
    a.Add(0, text, whole.sink());
    a.Finish(whole.sink());
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 7;
      b.Add(at, std::string_view(text).substr(at, n), cut.sink());
      at += n;
    }
    b.Finish(cut.sink());
    ASSERT_EQ(whole.all, cut.all) << "round " << round;
  }
}

}  // namespace
}  // namespace dgxrun::cli
