#include "launcher/binding/cpu_list.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dgxrun {

absl::StatusOr<CpuList> ParseCpuList(absl::string_view text) {
  CpuList list;
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  if (stripped.empty()) return list;
  for (absl::string_view part : absl::StrSplit(stripped, ',')) {
    part = absl::StripAsciiWhitespace(part);
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    uint32_t first = 0;
    uint32_t last = 0;
    bool ok = absl::SimpleAtoi(ends[0], &first);
    last = first;
    if (ends.size() == 2) ok = ok && absl::SimpleAtoi(ends[1], &last);
    if (!ok || first > last || last > kMaxCpu) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is no number and no range like 0-15"));
    }
    for (uint32_t i = first; i <= last; ++i) list.push_back(i);
  }
  return Normalized(std::move(list));
}

std::string FormatCpuList(const CpuList& list) {
  std::string text;
  for (size_t i = 0; i < list.size();) {
    size_t j = i;
    while (j + 1 < list.size() && list[j + 1] == list[j] + 1) ++j;
    absl::StrAppend(&text, text.empty() ? "" : ",", list[i]);
    if (j > i) absl::StrAppend(&text, "-", list[j]);
    i = j + 1;
  }
  return text;
}

CpuList Normalized(CpuList list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

CpuList Intersection(const CpuList& a, const CpuList& b) {
  CpuList both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

CpuList Union(const CpuList& a, const CpuList& b) {
  CpuList either;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(either));
  return either;
}

bool Contains(const CpuList& list, uint32_t number) {
  return std::binary_search(list.begin(), list.end(), number);
}

CpuList ListOf(absl::string_view text) {
  absl::StatusOr<CpuList> list = ParseCpuList(text);
  return list.ok() ? *std::move(list) : CpuList();
}

}  // namespace dgxrun
