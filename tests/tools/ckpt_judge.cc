// The judge of checkpoints as a program for tests: prints what it finds as JSON.
//
//   ckpt_judge [--deep] [--list] [--quiet-ms N] [--world N] [--limit N] [--stop N] PATH...
//
// Without --list each PATH is one checkpoint; with it, a folder of checkpoints. One JSON object per call:
// {"checkpoints": [{path, step, format, bytes, mtime_unix_ns, age_s, verdict, file, reason, missing, present,
// save_id}], "reads": {...}, "errors": [...]}.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "agent/ckpt/judge.h"
#include "agent/ckpt/merge.h"
#include "agent/ckpt/source.h"

namespace dgxrun::agent::ckpt {
namespace {

struct Arguments {
  bool list = false;
  JudgeOptions options;
  std::vector<std::string> paths;
};

bool Parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--deep") {
      arguments.options.deep = true;
    } else if (word == "--list") {
      arguments.list = true;
    } else if (word == "--quiet-ms" || word == "--world" || word == "--limit" || word == "--stop") {
      uint32_t number = 0;
      if (++i >= argc || !absl::SimpleAtoi(argv[i], &number)) return false;
      if (word == "--quiet-ms") arguments.options.quiet_time = absl::Milliseconds(number);
      if (word == "--world") arguments.options.world_sizes.push_back(number);
      if (word == "--limit") arguments.options.limit = number;
      if (word == "--stop") arguments.options.stop_after_complete = number;
    } else if (word.empty() || word[0] == '-') {
      return false;
    } else {
      arguments.paths.push_back(word);
    }
  }
  return !arguments.paths.empty();
}

nlohmann::json Facts(const google::protobuf::RepeatedPtrField<v1::FileFact>& facts) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::FileFact& fact : facts) list.push_back({{"name", fact.name()}, {"bytes", fact.bytes()}});
  return list;
}

nlohmann::json ToJson(const v1::CheckpointFinding& finding, absl::Time now) {
  const v1::Checkpoint& checkpoint = finding.checkpoint();
  return {{"path", checkpoint.path()},
          {"step", checkpoint.step()},
          {"format", checkpoint.format()},
          {"bytes", checkpoint.bytes()},
          {"mtime_unix_ns", checkpoint.mtime_unix_ns()},
          {"age_s", absl::ToDoubleSeconds(now - absl::FromUnixNanos(checkpoint.mtime_unix_ns()))},
          {"verdict", VerdictName(checkpoint.verdict())},
          {"file", checkpoint.file()},
          {"reason", checkpoint.reason()},
          {"missing", Facts(finding.missing())},
          {"present", Facts(finding.present())},
          {"save_id", finding.save_id()}};
}

void Add(Counts& sum, const Counts& counts) {
  sum.lists += counts.lists;
  sum.entries += counts.entries;
  sum.stats += counts.stats;
  sum.opens += counts.opens;
  sum.reads += counts.reads;
  sum.bytes += counts.bytes;
}

int Run(const Arguments& arguments) {
  nlohmann::json checkpoints = nlohmann::json::array(), errors = nlohmann::json::array();
  Counts counts;
  for (std::string path : arguments.paths) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    const std::string folder = arguments.list               ? path
                               : slash == std::string::npos ? "."
                               : slash == 0                 ? "/"
                                                            : path.substr(0, slash);
    absl::StatusOr<std::unique_ptr<Source>> source = OpenFolder(folder);
    if (!source.ok()) {
      errors.push_back(std::string(source.status().message()));
      continue;
    }
    std::vector<v1::CheckpointFinding> findings;
    if (arguments.list) {
      absl::StatusOr<std::vector<v1::CheckpointFinding>> listed =
          ListCheckpoints(**source, arguments.options);
      if (listed.ok()) findings = *std::move(listed);
      if (!listed.ok()) errors.push_back(std::string(listed.status().message()));
    } else {
      findings.push_back(Judge(**source, path.substr(slash + 1), arguments.options));
    }
    for (const v1::CheckpointFinding& finding : findings) {
      checkpoints.push_back(ToJson(finding, arguments.options.now));
    }
    Add(counts, (*source)->counts());
  }
  const nlohmann::json out = {{"checkpoints", checkpoints},
                              {"errors", errors},
                              {"reads",
                               {{"lists", counts.lists},
                                {"entries", counts.entries},
                                {"stats", counts.stats},
                                {"opens", counts.opens},
                                {"reads", counts.reads},
                                {"bytes", counts.bytes}}}};
  std::cout << out.dump(1) << "\n";
  return errors.empty() ? 0 : 1;
}

}  // namespace
}  // namespace dgxrun::agent::ckpt

int main(int argc, char** argv) {
  dgxrun::agent::ckpt::Arguments arguments;
  arguments.options.now = absl::Now();
  if (!dgxrun::agent::ckpt::Parse(argc, argv, arguments)) {
    std::cerr
        << "usage: ckpt_judge [--deep] [--list] [--quiet-ms N] [--world N] [--limit N] [--stop N] PATH...\n";
    return 2;
  }
  return dgxrun::agent::ckpt::Run(arguments);
}
