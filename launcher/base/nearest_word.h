// The word that was meant, for messages about one that is not known.
#ifndef DGXRUN_LAUNCHER_BASE_NEAREST_WORD_H_
#define DGXRUN_LAUNCHER_BASE_NEAREST_WORD_H_

#include <string>
#include <string_view>
#include <vector>

namespace dgxrun {

// The candidate with the smallest edit distance to `word`, or "" when none is near enough to be meant
// (a distance of more than 2, or more than half of the word).
std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BASE_NEAREST_WORD_H_
