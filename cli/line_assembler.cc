#include "cli/line_assembler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dgxrun::cli {

void LineAssembler::Add(uint64_t offset, std::string_view data, const Sink& sink) {
  if (offset > next_offset_) {
    Finish(sink);
    sink(absl::StrCat("[", offset - next_offset_, " bytes are missing here]"));
    next_offset_ = offset;
  }
  const uint64_t seen = std::min<uint64_t>(next_offset_ - offset, data.size());
  data.remove_prefix(seen);
  next_offset_ += data.size();
  Append(data, sink);
}

void LineAssembler::Append(std::string_view data, const Sink& sink) {
  while (!data.empty()) {
    if (after_cr_ && data[0] == '\n') {
      after_cr_ = false;
      data.remove_prefix(1);
      continue;
    }
    after_cr_ = false;
    const size_t end = data.find_first_of("\r\n");
    const size_t room = max_line_ - partial_.size();
    const size_t take = std::min(std::min(end, data.size()), room);
    const bool complete = take == end;
    if (partial_.empty() && complete) {
      sink(data.substr(0, take));
    } else {
      partial_.append(data.substr(0, take));
      if (complete || partial_.size() == max_line_) {
        sink(partial_);
        partial_.clear();
      }
    }
    if (complete) {
      after_cr_ = data[take] == '\r';
      data.remove_prefix(take + 1);
    } else {
      data.remove_prefix(take);
    }
  }
}

void LineAssembler::Finish(const Sink& sink) {
  after_cr_ = false;
  if (partial_.empty()) return;
  sink(partial_);
  partial_.clear();
}

}  // namespace dgxrun::cli
