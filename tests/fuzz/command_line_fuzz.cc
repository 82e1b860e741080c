// Command lines: words in, a command or one line of error out. Lines of the input are the words. The parsers
// of single words (ids, names, durations, ranks, exports, shell words) get the first of them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_split.h"
#include "cli/command_line.h"
#include "cli/launch_command.h"
#include "proto/ids.h"
#include "tests/fuzz/require.h"

namespace dgxrun::cli {
namespace {

void RequireOneLine(const absl::Status& status) {
  Require(!status.message().empty(), "an error without a word");
}

void ParseWord(const std::string& word) {
  if (IsValidName(word)) {
    Require(word.size() <= kMaxNameLength, "a long name");
    Require(word.find('/') == std::string::npos && word.find('\0') == std::string::npos,
            "a name with a path");
  }
  const absl::StatusOr<absl::Duration> duration = ParseDurationWord(word);
  if (duration.ok()) {
    Require(*duration >= absl::ZeroDuration() && *duration <= absl::Hours(24), "a time out of bounds");
  }
  const absl::StatusOr<std::vector<uint32_t>> ranks = ParseRankList(word);
  if (ranks.ok()) {
    for (size_t i = 1; i < ranks->size(); ++i) Require((*ranks)[i - 1] < (*ranks)[i], "ranks out of order");
  }
  if (!ParseExport(word).ok()) RequireOneLine(ParseExport(word).status());
  if (!SplitShellWords(word).ok()) RequireOneLine(SplitShellWords(word).status());
}

}  // namespace
}  // namespace dgxrun::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // argv has no NUL in a word.
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(absl::string_view("\n\0", 2)));
  dgxrun::cli::ParseWord(words[0]);
  const absl::StatusOr<dgxrun::cli::Command> command = dgxrun::cli::ParseCommandLine(words);
  if (!command.ok()) dgxrun::cli::RequireOneLine(command.status());
  if (command.ok() && std::holds_alternative<dgxrun::cli::LaunchOptions>(*command)) {
    const auto& launch = std::get<dgxrun::cli::LaunchOptions>(*command);
    dgxrun::Require(!launch.script.empty(), "a launch of nothing");
    dgxrun::Require(launch.script_args.size() < words.size(), "more words than there were");
  }
  dgxrun::Require(dgxrun::cli::RedactWords(words).size() == words.size(), "redaction keeps the words apart");
  return 0;
}
