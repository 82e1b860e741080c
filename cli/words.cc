#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/command_line.h"

namespace dgxrun::cli {
namespace {

constexpr double kMaxSeconds = 24 * 3600;  // no grace of more than a day is meant
constexpr uint32_t kMaxRank = 1 << 20;     // far above any job; keeps "0-4000000000" from eating memory

bool IsVariableName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

absl::StatusOr<absl::Duration> ParseDurationWord(const std::string& word) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(word, &seconds) && std::isfinite(seconds)) {
    if (std::abs(seconds) <= kMaxSeconds)
      duration = absl::Seconds(seconds);
    else
      duration = absl::InfiniteDuration();
  } else if (!absl::ParseDuration(word, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", word, "\" is not a duration; write 30s, 1m30s, 500ms or a number of seconds"));
  }
  if (duration < absl::ZeroDuration() || duration > absl::Seconds(kMaxSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is not between 0 and 24h"));
  }
  return duration;
}

absl::StatusOr<std::vector<uint32_t>> ParseRankList(const std::string& word) {
  std::set<uint32_t> ranks;
  for (absl::string_view part : absl::StrSplit(word, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    const bool range = part.find('-') != absl::string_view::npos;
    if (!absl::SimpleAtoi(ends.first, &first) || (range && !absl::SimpleAtoi(ends.second, &last))) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is not a list of ranks; write 3 or 0,2 or 0-7,9"));
    }
    if (!range) last = first;
    if (last < first || last >= kMaxRank) {
      return absl::InvalidArgumentError(absl::StrCat("\"", std::string(part), "\" is not a range of ranks"));
    }
    for (uint32_t r = first; r <= last; ++r) ranks.insert(r);
  }
  return std::vector<uint32_t>(ranks.begin(), ranks.end());
}

absl::StatusOr<ExportRule> ParseExport(const std::string& word) {
  ExportRule rule;
  rule.all = false;
  for (absl::string_view item : absl::StrSplit(word, ',')) {
    if (item == "ALL") {
      rule.all = true;
    } else if (item == "NONE") {
      continue;  // the minimal set is what is left without ALL
    } else if (const size_t equals = item.find('='); equals != absl::string_view::npos) {
      if (!IsVariableName(std::string(item.substr(0, equals)))) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", std::string(item.substr(0, equals)), "\" is not a variable name"));
      }
      rule.values.emplace_back(std::string(item.substr(0, equals)), std::string(item.substr(equals + 1)));
    } else if (IsVariableName(std::string(item))) {
      rule.names.emplace_back(item);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", std::string(item), "\" is not a variable name; write ALL, NONE, or NAME,NAME=VALUE"));
    }
  }
  return rule;
}

absl::StatusOr<std::vector<std::string>> SplitShellWords(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == '\'') {
      if (c == '\'')
        quote = 0;
      else
        word += c;
    } else if (c == '\\') {
      if (i + 1 == text.size()) return absl::InvalidArgumentError("a backslash at the end of the text");
      const char next = text[++i];
      // Within double quotes a backslash is itself unless it stands before one of these.
      if (quote == '"' && next != '"' && next != '\\' && next != '$' && next != '`') word += c;
      word += next;
      in_word = true;
    } else if (quote == '"') {
      if (c == '"')
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0)
    return absl::InvalidArgumentError(absl::StrCat("a ", std::string(1, quote), " is not closed"));
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace dgxrun::cli
