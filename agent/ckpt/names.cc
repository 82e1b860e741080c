#include "agent/ckpt/names.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

constexpr std::string_view kDataExtensions[] = {".pt",          ".pth", ".ckpt", ".bin",
                                                ".safetensors", ".npz", ".pkl"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view WithoutExtension(std::string_view name) {
  // What follows the last dot is an extension if it holds a letter: "ckpt.500" has none.
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return name;
  const std::string_view extension = name.substr(dot + 1);
  const bool letter =
      std::any_of(extension.begin(), extension.end(), [](char c) { return absl::ascii_isalpha(c); });
  return letter ? name.substr(0, dot) : name;
}

// Where the number of a part lies: its digits in `name`.
struct Place {
  size_t begin = 0;
  size_t end = 0;
  int64_t of = 0;
};

std::optional<Place> FindOf(std::string_view name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return std::nullopt;
  size_t begin = of;
  while (begin > 0 && IsDigit(name[begin - 1])) --begin;
  size_t end = of + 4;
  while (end < name.size() && IsDigit(name[end])) ++end;
  const std::optional<int64_t> total = ParseDigits(name.substr(of + 4, end - of - 4));
  if (begin == of || !total.has_value() || *total == 0) return std::nullopt;
  return Place{begin, of, *total};
}

std::optional<Place> FindRank(std::string_view name) {
  for (size_t at = name.rfind("rank"); at != std::string_view::npos && at != 0;
       at = name.rfind("rank", at - 1)) {
    if (absl::ascii_isalnum(name[at - 1])) continue;  // "frank", and so on
    size_t begin = at + 4;
    if (begin < name.size() && (name[begin] == '_' || name[begin] == '-' || name[begin] == '=')) ++begin;
    size_t end = begin;
    while (end < name.size() && IsDigit(name[end])) ++end;
    if (end > begin) return Place{begin, end, 0};
  }
  if (name.starts_with("rank")) {
    size_t begin = 4;
    if (begin < name.size() && (name[begin] == '_' || name[begin] == '-')) ++begin;
    size_t end = begin;
    while (end < name.size() && IsDigit(name[end])) ++end;
    if (end > begin) return Place{begin, end, 0};
  }
  return std::nullopt;
}

std::optional<Place> FindPart(std::string_view name) {
  const std::optional<Place> of = FindOf(name);
  return of.has_value() ? of : FindRank(name);
}

int64_t LastNumber(std::string_view text) {
  while (!text.empty() && !IsDigit(text.back())) text.remove_suffix(1);
  size_t begin = text.size();
  while (begin > 0 && IsDigit(text[begin - 1])) --begin;
  return ParseDigits(text.substr(begin)).value_or(-1);
}

}  // namespace

bool HasDataExtension(std::string_view path) {
  return std::any_of(std::begin(kDataExtensions), std::end(kDataExtensions),
                     [path](std::string_view end) { return path.ends_with(end); });
}

std::optional<PartName> ParsePartName(std::string_view name) {
  const std::optional<Place> place = FindPart(name);
  if (!place.has_value()) return std::nullopt;
  const std::optional<int64_t> number = ParseDigits(name.substr(place->begin, place->end - place->begin));
  if (!number.has_value()) return std::nullopt;
  return PartName{Cat({name.substr(0, place->begin), "*", name.substr(place->end)}), *number, place->of};
}

std::string PartNameOf(std::string_view like, int64_t number) {
  const std::optional<Place> place = FindPart(like);
  if (!place.has_value()) return std::string(like);
  const size_t width = place->end - place->begin;
  std::string digits = std::to_string(number);
  while (digits.size() < width && width > 1) digits.insert(digits.begin(), '0');
  return Cat({like.substr(0, place->begin), digits, like.substr(place->end)});
}

bool MayBeCheckpoint(std::string_view name) {
  if (name.empty() || name[0] == '.') return false;
  if (name.ends_with(".tmp") || name.ends_with(".partial") || name.ends_with("-unfinished")) return false;
  if (name.starts_with("tmp-checkpoint-")) return false;
  const size_t aside = name.find(kQuarantineSuffix);
  if (aside == std::string_view::npos) return true;
  const std::string_view rest = name.substr(aside + kQuarantineSuffix.size());
  return !(rest.empty() || (rest[0] == '.' && ParseDigits(rest.substr(1)).has_value()));
}

int64_t StepOfName(std::string_view name) {
  // Lightning's metrics are "name=value", also after the step.
  const size_t step = name.rfind("step=");
  if (step != std::string_view::npos && (step == 0 || !absl::ascii_isalpha(name[step - 1]))) {
    size_t end = step + 5;
    while (end < name.size() && IsDigit(name[end])) ++end;
    const std::optional<int64_t> number = ParseDigits(name.substr(step + 5, end - step - 5));
    if (number.has_value()) return *number;
  }
  name = WithoutExtension(name);
  const std::optional<Place> part = FindPart(name);
  if (!part.has_value()) return LastNumber(name);
  const int64_t before = LastNumber(name.substr(0, part->begin));
  return before >= 0 || part->of > 0 ? before : LastNumber(name.substr(part->end));
}

}  // namespace dgxrun::agent::ckpt
