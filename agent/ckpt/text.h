// Text from parts. absl::StrCat does not take std::string_view with the abseil of Debian 12.
#ifndef DGXRUN_AGENT_CKPT_TEXT_H_
#define DGXRUN_AGENT_CKPT_TEXT_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace dgxrun::agent::ckpt {

inline std::string Cat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view part : parts) text += part;
  return text;
}

inline std::string Str(uint64_t number) { return std::to_string(number); }

// A number in decimal digits alone, from begin to end of the text; nullopt: anything else, or more than 18
// digits.
inline std::optional<int64_t> ParseDigits(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t number = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  return number;
}

// "abc123def" with prefix "abc" and suffix "def" -> 123.
inline std::optional<int64_t> NumberBetween(std::string_view text, std::string_view prefix,
                                            std::string_view suffix) {
  if (text.size() < prefix.size() + suffix.size() || !text.starts_with(prefix) || !text.ends_with(suffix)) {
    return std::nullopt;
  }
  return ParseDigits(text.substr(prefix.size(), text.size() - prefix.size() - suffix.size()));
}

}  // namespace dgxrun::agent::ckpt

#endif  // DGXRUN_AGENT_CKPT_TEXT_H_
