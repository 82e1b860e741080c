#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "cli/console.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) abort();
    read_end.Reset(ends[0]);
    write_end.Reset(ends[1]);
    fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  }
  std::string Drain() {
    std::string text;
    char buffer[65536];
    for (ssize_t n; (n = read(read_end.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }
  UniqueFd read_end, write_end;
};

v1::OutputChunk Chunk(uint32_t rank, v1::Stream stream, uint64_t offset, const std::string& data) {
  v1::OutputChunk chunk;
  chunk.set_node("node1");
  chunk.set_rank(rank);
  chunk.set_stream(stream);
  chunk.set_offset(offset);
  chunk.set_data(data);
  return chunk;
}

TEST(Console, HistoryIsTheLastLinesAndCutsNoLine) {
  Pipe out, err;
  Console console(out.write_end.get(), err.write_end.get());
  console.BeginHistory();
  std::string text;
  for (int i = 0; i < 30; ++i) text += "line " + std::to_string(i) + "\n";
  v1::OutputChunk last = Chunk(0, v1::STREAM_STDOUT, 0, text + "half");
  last.set_end(true);
  console.OnChunk(last);
  console.OnChunk(Chunk(0, v1::STREAM_STDERR, 0, "e1\ne2\n"));
  v1::OutputChunk error;
  error.set_error("node1: was lost");
  console.OnChunk(error);
  console.Flush(true);
  EXPECT_EQ(out.Drain() + err.Drain(), "");
  console.EndHistory();
  console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 0, text + "half and half\n"));  // asked for from the start
  console.OnChunk(error);
  console.Flush(true);
  EXPECT_EQ(out.Drain(),
            "[node1:0] line 25\n[node1:0] line 26\n[node1:0] line 27\n[node1:0] line 28\n"
            "[node1:0] line 29\n[node1:0] half and half\n");
  EXPECT_THAT(err.Drain(), HasSubstr("[node1:0] e1\n[node1:0] e2\ndgxrun: output of "));
}

TEST(Console, AFullStdoutIsSaidOnce) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  Pipe err;
  Console console(full.get(), err.write_end.get());
  for (const char* data : {"one\n", "two\n"}) {
    console.OnChunk(Chunk(0, v1::STREAM_STDOUT, data[0] == 'o' ? 0 : 4, data));
    console.Flush(true);
  }
  EXPECT_EQ(console.out_error(), ENOSPC);
  EXPECT_FALSE(console.reader_gone());
  EXPECT_EQ(err.Drain(),
            "dgxrun: cannot write to stdout: No space left on device; dgxrun logs shows what is missing\n");
}

TEST(Console, LinesAreWholeAndGoToTheirStream) {
  Pipe out, err;
  Console console(out.write_end.get(), err.write_end.get());
  console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 0, "ste"));
  console.OnChunk(Chunk(1, v1::STREAM_STDOUT, 0, "loss 2\n"));
  console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 3, "p 1\nrest"));
  console.OnChunk(Chunk(0, v1::STREAM_STDERR, 0, "warning\n"));
  console.Notice("note");
  console.Flush(true);
  EXPECT_EQ(out.Drain(), "[node1:1] loss 2\n[node1:0] step 1\n");
  EXPECT_EQ(err.Drain(), "[node1:0] warning\ndgxrun: note\n");
  console.FinishLines();
  console.Flush(true);
  EXPECT_EQ(out.Drain(), "[node1:0] rest\n");
  EXPECT_TRUE(console.empty());
}

TEST(Console, AttemptsAreStreamsOfTheirOwn) {
  Pipe out, err;
  Console console(out.write_end.get(), err.write_end.get());
  console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 0, "a\n"));
  v1::OutputChunk second = Chunk(0, v1::STREAM_STDOUT, 0, "b\n");
  second.set_attempt(1);
  console.OnChunk(second);
  console.Flush(true);
  EXPECT_EQ(out.Drain(), "[node1:0] a\n[node1:0] b\n");
}

TEST(Console, ManyRanksAreQuietUnlessAskedFor) {
  for (const bool all : {false, true}) {
    Pipe out, err;
    Console console(out.write_end.get(), err.write_end.get());
    console.ShowRanks(Console::kQuietAbove + 1, all);
    console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 0, "zero\n"));
    console.OnChunk(Chunk(5, v1::STREAM_STDOUT, 0, "five\n"));
    console.Flush(true);
    EXPECT_EQ(out.Drain(), all ? "[node1:0] zero\n[node1:5] five\n" : "[node1:0] zero\n");
  }
}

TEST(Console, ASlowReaderBlocksNothingAndLosesNothing) {
  Pipe out, err;
  Console console(out.write_end.get(), err.write_end.get());
  const std::string line(1000, 'x');
  std::string text, expected;
  for (int i = 0; i < 500; ++i) {
    text += line + "\n";
    expected += "[node1:0] " + line + "\n";
  }
  console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 0, text));
  console.Flush(false);
  EXPECT_FALSE(console.empty());
  EXPECT_EQ(console.blocked_fd(), out.write_end.get());
  EXPECT_GT(console.waiting(), 0u);
  std::string seen;
  while (!console.empty()) {
    seen += out.Drain();
    console.Flush(false);
  }
  seen += out.Drain();
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(console.waiting(), 0u);
  EXPECT_EQ(console.blocked_fd(), -1);
}

// stdout and stderr may be one pipe (2>&1): a line that waits is not overtaken in the middle.
TEST(Console, OnePipeForBothKeepsTheOrder) {
  Pipe both;
  Console console(both.write_end.get(), both.write_end.get());
  std::string text, expected;
  for (int i = 0; i < 200; ++i) {
    const std::string line = "line " + std::to_string(i) + std::string(900, '.');
    text = line + "\n";
    console.OnChunk(Chunk(0, i % 2 == 0 ? v1::STREAM_STDOUT : v1::STREAM_STDERR, 0, ""));
    v1::OutputChunk chunk =
        Chunk(static_cast<uint32_t>(i), i % 2 == 0 ? v1::STREAM_STDOUT : v1::STREAM_STDERR, 0, text);
    console.OnChunk(chunk);
    expected += "[node1:" + std::to_string(i) + "] " + text;
  }
  std::string seen;
  while (!console.empty()) {
    console.Flush(false);
    seen += both.Drain();
  }
  EXPECT_EQ(seen, expected);
}

TEST(Console, ErrorsOfANodeAreSaidOnce) {
  Pipe out, err;
  Console console(out.write_end.get(), err.write_end.get());
  v1::OutputChunk chunk;
  chunk.set_node("node2");
  chunk.set_error("not connected");
  for (uint32_t rank = 0; rank < 3; ++rank) {
    chunk.set_rank(rank);
    console.OnChunk(chunk);
  }
  console.Flush(true);
  EXPECT_EQ(err.Drain(), "dgxrun: output of node2: not connected\n");
}

TEST(Console, AReaderThatWentAwayIsNoticed) {
  signal(SIGPIPE, SIG_IGN);
  Pipe out, err;
  Console console(out.write_end.get(), err.write_end.get());
  out.read_end.Reset();
  console.OnChunk(Chunk(0, v1::STREAM_STDOUT, 0, "x\n"));
  console.Flush(false);
  EXPECT_TRUE(console.reader_gone());
  EXPECT_TRUE(console.empty());
}

}  // namespace
}  // namespace dgxrun::cli
