#include "agent/rank_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/owner_files.h"
#include "agent/utf8.h"
#include "nlohmann/json.hpp"

namespace dgxrun::agent {
namespace {

// The last `limit` bytes of a regular file; `cut` when there are more before.
std::string ReadEnd(const std::string& root, const std::string& name, size_t limit, bool* cut) {
  // O_NONBLOCK: an owner may have put a FIFO there.
  absl::StatusOr<UniqueFd> fd = OpenBeneath(root, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat st;
  if (!fd.ok() || fstat(fd->get(), &st) != 0 || !S_ISREG(st.st_mode)) return "";
  const off_t begin = std::max<off_t>(0, st.st_size - static_cast<off_t>(limit));
  *cut = begin > 0;
  std::string bytes(static_cast<size_t>(st.st_size - begin), '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n =
        pread(fd->get(), bytes.data() + got, bytes.size() - got, begin + static_cast<off_t>(got));
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

}  // namespace

std::vector<std::string> LastLines(std::string_view bytes, bool cut) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < bytes.size()) {
    const size_t end = std::min(bytes.find_first_of("\r\n", begin), bytes.size());
    lines.push_back(ToPrintable(bytes.substr(begin, end - begin)));
    begin = end + 1;
    if (end + 1 < bytes.size() && bytes[end] == '\r' && bytes[end + 1] == '\n') ++begin;
  }
  if (cut && lines.size() > 1) lines.erase(lines.begin());
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  // Bytes that became U+FFFD have grown.
  size_t total = 0;
  for (const std::string& line : lines) total += line.size();
  while (total > kTailBytes && lines.size() > 1) {
    total -= lines.front().size();
    lines.erase(lines.begin());
  }
  return lines;
}

std::string ErrorMessage(const std::string& json) {
  const nlohmann::json root = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return "";
  auto message = root.find("message");
  if (message == root.end()) return "";
  if (message->is_object()) {
    auto inner = message->find("message");
    if (inner == message->end() || !inner->is_string()) return "";
    return ToPrintable(inner->get_ref<const std::string&>().substr(0, kTailBytes));
  }
  if (!message->is_string()) return "";
  return ToPrintable(message->get_ref<const std::string&>().substr(0, kTailBytes));
}

void ExplainExit(const std::string& log_root, const std::string& folder, v1::RankReport* rank) {
  bool cut = false;
  const std::string bytes =
      ReadEnd(log_root, absl::StrCat(folder, "/rank_", rank->rank(), ".err"), kTailBytes, &cut);
  const std::vector<std::string> lines = LastLines(bytes, cut);
  if (!lines.empty()) {
    rank->clear_stderr_tail();
    for (const std::string& line : lines) rank->add_stderr_tail(line);
  }
  const std::string json =
      ReadEnd(log_root, absl::StrCat(folder, "/rank_", rank->rank(), ".error.json"), kMaxErrorFile, &cut);
  if (std::string message = ErrorMessage(json); !message.empty()) rank->set_error_message(std::move(message));
}

}  // namespace dgxrun::agent
