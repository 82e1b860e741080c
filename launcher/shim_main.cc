// dgxrun-shim: guard and shim of one attempt on one node. Started by an agent (shim_start.h), never by hand.
//
//   dgxrun-shim guard --run-dir DIR --agent-fd N [--hold N,N...] [--terminal]
#include <stdio.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "launcher/guard.h"

namespace {

constexpr int kUsage = 64;

bool ParseHeld(const std::string& text, std::vector<int>* fds) {
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int fd;
    if (!absl::SimpleAtoi(part, &fd)) return false;
    fds->push_back(fd);
  }
  return true;
}

bool Parse(int argc, char** argv, dgxrun::GuardOptions* options) {
  if (argc < 2 || std::string(argv[1]) != "guard") return false;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--terminal") {
      options->terminal = true;
      continue;
    }
    if (++i == argc) return false;
    if (word == "--run-dir") {
      options->run_dir = argv[i];
    } else if (word == "--agent-fd") {
      if (!absl::SimpleAtoi(argv[i], &options->agent_fd)) return false;
    } else if (word != "--hold" || !ParseHeld(argv[i], &options->held_ports)) {
      return false;
    }
  }
  return !options->run_dir.empty() && options->agent_fd >= 0;
}

}  // namespace

int main(int argc, char** argv) {
  dgxrun::GuardOptions options;
  if (!Parse(argc, argv, &options)) {
    if (argc == 2 && std::string(argv[1]) == "--version") {
      printf("dgxrun-shim %s\n", DGXRUN_VERSION);
      return 0;
    }
    fprintf(stderr, "dgxrun-shim %s is started by dgxrun-agent and dgxrun, not by hand\n", DGXRUN_VERSION);
    return kUsage;
  }
  return dgxrun::RunGuard(options);
}
