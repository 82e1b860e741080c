// Text from files and file names is bytes; a proto string must be UTF-8.
#ifndef DGXRUN_AGENT_UTF8_H_
#define DGXRUN_AGENT_UTF8_H_

#include <string>
#include <string_view>

namespace dgxrun::agent {

bool IsUtf8(std::string_view text);
// Every byte that belongs to no valid character becomes U+FFFD; NUL and other control characters but tab
// become '?', so that a terminal shows what a rank wrote and does not obey it.
std::string ToPrintable(std::string_view text);

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_UTF8_H_
