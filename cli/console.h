// What a person sees of the ranks: whole lines with the prefix "[node:rank] ", stdout to stdout and stderr
// to stderr, and lines of dgxrun itself with "dgxrun: " on stderr.
//
// Nothing here blocks on a pipe whose reader is slow: what does not fit waits in a queue, in order over
// both streams (they may be one pipe), and blocked_fd() says what to wait for. Above kQuietAbove ranks only
// rank 0 is shown unless all are asked for; what a failing rank wrote last comes with the verdict.
//
// Between BeginHistory and EndHistory lines are kept rather than shown, and then the last of each stream are:
// so a client that comes later shows how things stand.
#ifndef DGXRUN_CLI_CONSOLE_H_
#define DGXRUN_CLI_CONSOLE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "cli/line_assembler.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::cli {

class Console {
 public:
  static constexpr uint32_t kQuietAbove = 16;  // more ranks than that bury what matters
  // Waiting bytes from which on the owner should stop reading more.
  static constexpr size_t kEnoughWaiting = 1 << 20;

  Console(int out_fd, int err_fd);

  void ShowRanks(uint32_t world_size, bool all) { only_rank_0_ = world_size > kQuietAbove && !all; }
  bool only_rank_0() const { return only_rank_0_; }

  void BeginHistory() { history_ = true; }
  // Shows some kHistoryLines lines: of each stream that has any, the last ones.
  void EndHistory();
  static constexpr size_t kHistoryLines = 10;
  void OnChunk(const v1::OutputChunk& chunk);
  // Gives out lines that have no end yet.
  void FinishLines();
  void Notice(std::string_view text);  // one line of dgxrun's own

  // Writes what can be written now; all of it with `wait`.
  void Flush(bool wait);
  bool empty() const { return queue_.empty(); }
  size_t waiting() const { return waiting_; }
  // The fd to wait for before the next Flush; -1: none.
  int blocked_fd() const;
  bool reader_gone() const { return reader_gone_; }  // EPIPE: nobody reads what we write
  // errno of a write to stdout that failed for another reason (a full disk); 0: none. It was said on stderr.
  int out_error() const { return out_error_; }

 private:
  struct Target {
    int fd = -1;
    bool may_block = false;  // a pipe, socket or terminal: ask poll before a write
  };
  struct Source {
    LineAssembler lines;
    std::string prefix;
    std::deque<std::string> history;  // whole lines with prefix and end
  };
  using SourceKey = std::tuple<uint32_t, uint32_t, int>;  // attempt, rank, stream

  void Put(int which, std::string bytes);
  const Target& TargetOf(int which) const { return which == 1 ? out_ : err_; }

  Target out_, err_;
  bool only_rank_0_ = false;
  bool reader_gone_ = false;
  bool history_ = false;
  int out_error_ = 0;
  std::map<SourceKey, Source> sources_;
  std::map<std::tuple<std::string, std::string>, bool> errors_said_;
  std::deque<std::pair<int, std::string>> queue_;  // 1 stdout, 2 stderr; in the order they were said
  size_t waiting_ = 0;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_CONSOLE_H_
