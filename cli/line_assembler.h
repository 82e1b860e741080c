// Whole lines out of the bytes of one stream of one rank. Pure.
//
// A line ends with "\n", "\r\n" or a lone "\r" (a progress bar redraws itself with "\r": each state is a
// line here). A line longer than kMaxLine is given out in pieces of that size. Bytes are addressed: the
// caller says at which offset they stand, so that after a reconnect what was seen already is dropped, and
// a gap becomes a line that says how much is missing.
#ifndef DGXRUN_CLI_LINE_ASSEMBLER_H_
#define DGXRUN_CLI_LINE_ASSEMBLER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dgxrun::cli {

class LineAssembler {
 public:
  // What a terminal still takes as one line, and what one write() to a pipe may carry.
  static constexpr size_t kMaxLine = 64 * 1024;

  using Sink = std::function<void(std::string_view line)>;  // without its end

  explicit LineAssembler(size_t max_line = kMaxLine) : max_line_(max_line) {}

  // `offset`: of data's first byte in the stream.
  void Add(uint64_t offset, std::string_view data, const Sink& sink);
  // The stream has ended: gives out what has no line end.
  void Finish(const Sink& sink);

  uint64_t next_offset() const { return next_offset_; }

 private:
  void Append(std::string_view data, const Sink& sink);

  size_t max_line_;
  std::string partial_;
  bool after_cr_ = false;  // the last byte was "\r": a "\n" now belongs to it
  uint64_t next_offset_ = 0;
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LINE_ASSEMBLER_H_
