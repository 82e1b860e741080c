// What must hold for every input: a line on stderr and an abort, which libFuzzer takes for a finding.
#ifndef DGXRUN_TESTS_FUZZ_REQUIRE_H_
#define DGXRUN_TESTS_FUZZ_REQUIRE_H_

#include <cstdio>
#include <cstdlib>
#include <string>

namespace dgxrun {

inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: this must not be: %s\n", what.c_str());
  std::abort();
}

}  // namespace dgxrun

#endif  // DGXRUN_TESTS_FUZZ_REQUIRE_H_
