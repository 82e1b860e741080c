#include "cli/console.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dgxrun::cli {
namespace {

// A pipe that poll calls writable has room for this much (PIPE_BUF), so such a write never blocks.
constexpr size_t kSafeWrite = 4096;
// Neighbouring lines of one stream share a write up to this size.
constexpr size_t kMaxJoined = 64 * 1024;

bool MayBlock(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return false;
  return S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || isatty(fd) == 1;
}

bool Writable(int fd, bool wait) {
  pollfd entry = {fd, POLLOUT, 0};
  for (;;) {
    const int n = poll(&entry, 1, wait ? -1 : 0);
    if (n < 0 && errno == EINTR) continue;
    return n > 0;  // also on POLLERR: the write then says EPIPE
  }
}

}  // namespace

Console::Console(int out_fd, int err_fd) {
  out_ = {out_fd, MayBlock(out_fd)};
  err_ = {err_fd, MayBlock(err_fd)};
}

void Console::OnChunk(const v1::OutputChunk& chunk) {
  if (!chunk.error().empty()) {
    if (history_) return;  // who follows after that hears it again
    // Once per node and text: with many ranks the same folder is missing many times.
    if (errors_said_.emplace(std::make_tuple(chunk.node(), chunk.error()), true).second) {
      Notice(absl::StrCat("output of ", chunk.node(), ": ", chunk.error()));
    }
    return;
  }
  if (only_rank_0_ && chunk.rank() != 0) return;
  const int which = chunk.stream() == v1::STREAM_STDERR ? 2 : 1;
  Source& source = sources_[{chunk.attempt(), chunk.rank(), which}];
  if (source.prefix.empty()) source.prefix = absl::StrCat("[", chunk.node(), ":", chunk.rank(), "] ");
  std::string text;
  const auto sink = [&](std::string_view line) {
    text.append(source.prefix);
    text.append(line);
    text += '\n';
  };
  if (history_) {
    // A line that is being written is not cut: its rest comes later.
    source.lines.Add(chunk.offset(), chunk.data(), [&](std::string_view line) {
      source.history.push_back(absl::StrCat(source.prefix, std::string(line), "\n"));
      if (source.history.size() > kHistoryLines) source.history.pop_front();
    });
    return;
  }
  if (!chunk.data().empty() || chunk.gap() > 0) source.lines.Add(chunk.offset(), chunk.data(), sink);
  if (chunk.end()) source.lines.Finish(sink);
  if (!text.empty()) Put(which, std::move(text));
}

void Console::EndHistory() {
  history_ = false;
  size_t streams = 0;
  for (const auto& [key, source] : sources_) streams += source.history.empty() ? 0 : 1;
  const size_t each = std::max<size_t>(1, kHistoryLines / std::max<size_t>(1, streams));
  for (auto& [key, source] : sources_) {
    while (source.history.size() > each) source.history.pop_front();
    for (std::string& line : source.history) Put(std::get<2>(key), std::move(line));
    source.history.clear();
  }
}

void Console::FinishLines() {
  for (auto& [key, source] : sources_) {
    const std::string& prefix = source.prefix;
    std::string text;
    source.lines.Finish([&text, &prefix](std::string_view line) {
      text.append(prefix);
      text.append(line);
      text += '\n';
    });
    if (!text.empty()) Put(std::get<2>(key), std::move(text));
  }
}

void Console::Notice(std::string_view text) { Put(2, absl::StrCat("dgxrun: ", std::string(text), "\n")); }

void Console::Put(int which, std::string bytes) {
  if (reader_gone_) return;
  waiting_ += bytes.size();
  if (!queue_.empty() && queue_.back().first == which &&
      queue_.back().second.size() + bytes.size() <= kMaxJoined) {
    queue_.back().second += bytes;
  } else {
    queue_.emplace_back(which, std::move(bytes));
  }
}

int Console::blocked_fd() const {
  if (queue_.empty()) return -1;
  const Target& target = TargetOf(queue_.front().first);
  return target.may_block ? target.fd : -1;
}

void Console::Flush(bool wait) {
  while (!queue_.empty()) {
    auto& [which, bytes] = queue_.front();
    const Target& target = TargetOf(which);
    size_t done = 0;
    while (done < bytes.size()) {
      if (target.may_block && !Writable(target.fd, wait)) break;
      const size_t want = target.may_block ? std::min(bytes.size() - done, kSafeWrite) : bytes.size() - done;
      const ssize_t n = write(target.fd, bytes.data() + done, want);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (n < 0 && errno == EAGAIN) {  // somebody made our terminal non-blocking
        if (!wait) break;
        Writable(target.fd, true);
      } else if (n < 0 && errno != EINTR) {
        // EPIPE, or a full disk: this output goes nowhere any more; the files have it all.
        const int error = errno;
        reader_gone_ = reader_gone_ || error == EPIPE;
        done = bytes.size();
        if (which == 1 && error != EPIPE && out_error_ == 0) {
          out_error_ = error;
          Notice(absl::StrCat("cannot write to stdout: ", strerror(error),
                              "; dgxrun logs shows what is missing"));
        }
      }
    }
    waiting_ -= done;
    if (done < bytes.size()) {
      bytes.erase(0, done);
      return;
    }
    queue_.pop_front();
    if (reader_gone_) {
      queue_.clear();
      waiting_ = 0;
    }
  }
}

}  // namespace dgxrun::cli
