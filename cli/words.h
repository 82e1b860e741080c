// Small pure text parsers of the command line: see command_line.h for what they accept. Here: the nearest
// word for an error message.
#ifndef DGXRUN_CLI_WORDS_H_
#define DGXRUN_CLI_WORDS_H_

#include <string>
#include <string_view>
#include <vector>

namespace dgxrun::cli {

// The candidate with the smallest edit distance to `word`, or "" when none is near enough to be meant
// (a distance of more than 2, or more than half of the word).
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_WORDS_H_
