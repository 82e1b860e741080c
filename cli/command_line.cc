#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/help.h"
#include "cli/words.h"
#include "proto/ids.h"

namespace dgxrun::cli {
namespace {

constexpr uint32_t kMaxNodes = 100000;  // far above any cluster; catches a typing slip
constexpr uint32_t kMaxRanksPerNode = 4096;
constexpr uint32_t kMaxRestartLimit = 1000000;
constexpr uint32_t kMaxDevNodes = 64;  // processes on one machine

const std::vector<std::string>& Subcommands() {
  static const std::vector<std::string> kNames = {"status", "nodes", "logs",    "why",  "stop",
                                                  "run",    "dev",   "cluster", "help", "version"};
  return kNames;
}

absl::Status Usage(const std::string& text) { return absl::InvalidArgumentError(text); }

// One CLI11 parser. CLI11 reads the options; where they end, and what an unknown one may have meant, is
// found here first, since a launch must not look past the script.
class OptionSet {
 public:
  OptionSet() { app_.set_help_flag(); }

  void Flag(const std::string& names, bool* into) { app_.add_flag(names, *into); }
  void Value(const std::string& names, std::string* into) {
    app_.add_option(names, *into)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  void Values(const std::string& names, std::vector<std::string>* into) {
    app_.add_option(names, *into)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  void Positionals(std::vector<std::string>* into) { positionals_ = into; }
  bool given(const std::string& name) const { return app_.count(name) > 0; }

  // Parses `words`; with `first_only` the first positional and all after it go to `rest` unseen.
  absl::Status Parse(const std::vector<std::string>& words, std::vector<std::string>* rest) {
    std::vector<std::string> ours;
    size_t i = 0;
    while (i < words.size()) {
      std::string word = words[i];
      if (word == "--") {
        if (rest != nullptr) {
          rest->assign(words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end());
          break;
        }
        ++i;
        continue;
      }
      if (word.size() < 2 || word[0] != '-') {
        if (rest != nullptr) {
          rest->assign(words.begin() + static_cast<ptrdiff_t>(i), words.end());
          break;
        }
        positionals_->push_back(word);
        ++i;
        continue;
      }
      absl::Status taken = TakeOption(words, &i, std::move(word), &ours);
      if (!taken.ok()) return taken;
    }
    std::reverse(ours.begin(), ours.end());  // CLI11 takes the words last first
    try {
      app_.parse(std::move(ours));
    } catch (const CLI::ParseError& error) {
      return Usage(error.what());
    }
    return absl::OkStatus();
  }

 private:
  // Moves the option at words[*i], and its value, to `ours`.
  absl::Status TakeOption(const std::vector<std::string>& words, size_t* i, std::string word,
                          std::vector<std::string>* ours) {
    std::string name = word;
    bool value_inside = false;
    if (absl::StartsWith(word, "--")) {
      const size_t equals = word.find('=');
      value_inside = equals != std::string::npos;
      name = word.substr(0, equals);
      std::replace(name.begin(), name.end(), '_', '-');
      word = name + (value_inside ? word.substr(equals) : "");
    } else {
      name = word.substr(0, 2);
      value_inside = word.size() > 2;
    }
    const CLI::Option* option = app_.get_option_no_throw(name);
    if (option == nullptr) return Unknown(name);
    const bool takes_value = option->get_items_expected_max() > 0;
    if (takes_value && !value_inside) {
      if (*i + 1 >= words.size()) return Usage(absl::StrCat(name, " needs a value"));
      ours->push_back(word);
      ours->push_back(words[*i + 1]);
      *i += 2;
      return absl::OkStatus();
    }
    if (!takes_value && value_inside) return Usage(absl::StrCat(name, " takes no value"));
    ours->push_back(word);
    *i += 1;
    return absl::OkStatus();
  }

  absl::Status Unknown(const std::string& name) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app_.get_options()) {
      for (const std::string& n : option->get_lnames()) known.push_back("--" + n);
      for (const std::string& n : option->get_snames()) known.push_back("-" + n);
    }
    const std::string nearest = name.size() > 2 ? NearestWord(name, known) : "";
    return Usage(absl::StrCat(
        "unknown option ", name,
        nearest.empty() ? "; dgxrun --help lists them" : absl::StrCat("; did you mean ", nearest, "?")));
  }

  CLI::App app_;
  std::vector<std::string>* positionals_ = nullptr;
};

absl::StatusOr<uint32_t> Number(const std::string& option, const std::string& word, uint32_t low,
                                uint32_t high) {
  uint32_t value = 0;
  if (!absl::SimpleAtoi(word, &value) || value < low || value > high) {
    return Usage(absl::StrCat(option, " ", word, ": not a number from ", low, " to ", high));
  }
  return value;
}

absl::Status InOption(const std::string& option, const absl::Status& status) {
  return Usage(absl::StrCat(option, ": ", std::string(status.message())));
}

// Texts of a launch as typed; empty: not given.
struct LaunchWords {
  std::string nodes, ranks, device, grace, restarts, resume, exports;
};

absl::Status ConvertLaunch(const LaunchWords& words, LaunchOptions* options) {
  if (!words.nodes.empty()) {
    auto nodes = Number("-n", words.nodes, 1, kMaxNodes);
    if (!nodes.ok()) return nodes.status();
    options->nodes = *nodes;
  }
  if (words.ranks == "all") {
    options->ranks_per_node = 0;
  } else if (!words.ranks.empty()) {
    auto ranks = Number("-g", words.ranks, 1, kMaxRanksPerNode);
    if (!ranks.ok()) return Usage(absl::StrCat(std::string(ranks.status().message()), ", or \"all\""));
    options->ranks_per_node = *ranks;
  }
  if (!words.restarts.empty()) {
    auto restarts = Number("--max-restarts", words.restarts, 0, kMaxRestartLimit);
    if (!restarts.ok()) return restarts.status();
    options->max_restarts = *restarts;
  }
  if (words.device == "gpu") {
    options->device = v1::DEVICE_GPU;
  } else if (words.device == "cpu") {
    options->device = v1::DEVICE_CPU;
  } else if (!words.device.empty() && words.device != "auto") {
    return Usage(absl::StrCat("--device ", words.device, ": write auto, gpu or cpu"));
  }
  if (!words.grace.empty()) {
    auto grace = ParseDurationWord(words.grace);
    if (!grace.ok()) return InOption("--grace", grace.status());
    options->grace = *grace;
  }
  if (!words.resume.empty()) {
    auto split = SplitShellWords(words.resume);
    if (!split.ok()) return InOption("--resume-arg", split.status());
    options->resume_args = *std::move(split);
  }
  if (!words.exports.empty()) {
    auto rule = ParseExport(words.exports);
    if (!rule.ok()) return InOption("--export", rule.status());
    options->exports = *std::move(rule);
  }
  return absl::OkStatus();
}

absl::Status CheckLaunch(const LaunchOptions& options) {
  if (options.module && options.no_python) return Usage("-m and --no-python exclude each other");
  if (!options.name.empty() && !IsValidName(options.name)) {
    return Usage(absl::StrCat("--name ", options.name, ": letters, digits, \".\", \"_\" and \"-\", at most ",
                              kMaxNameLength));
  }
  if (!options.resume_args.empty() && options.ckpt_dir.empty()) {
    return Usage("--resume-arg needs --ckpt-dir, the folder in which checkpoints are found");
  }
  return absl::OkStatus();
}

absl::StatusOr<Command> ParseLaunch(const std::vector<std::string>& words, bool first_word_free) {
  LaunchOptions options;
  LaunchWords text;
  bool help = false, version = false;
  OptionSet set;
  set.Value("-n,-N,--nodes", &text.nodes);
  set.Value("-g,--gpus-per-node,--nproc-per-node", &text.ranks);
  set.Flag("-m,--module", &options.module);
  set.Flag("--no-python", &options.no_python);
  set.Value("--device", &text.device);
  set.Value("--cluster", &options.cluster);
  set.Value("--name", &options.name);
  set.Value("--grace", &text.grace);
  set.Value("--max-restarts", &text.restarts);
  set.Value("--ckpt-dir", &options.ckpt_dir);
  set.Value("--resume-arg", &text.resume);
  set.Value("--export", &text.exports);
  set.Flag("--log-all", &options.log_all);
  set.Flag("-h,--help", &help);
  set.Flag("--version", &version);
  std::vector<std::string> rest;
  if (absl::Status parsed = set.Parse(words, &rest); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("")};
  if (version) return ShowText{VersionText()};
  if (absl::Status converted = ConvertLaunch(text, &options); !converted.ok()) return converted;
  if (rest.empty()) {
    return Usage(options.module ? "-m needs the name of a module"
                                : "no script given; dgxrun [options] script.py [args...], or dgxrun --help");
  }
  options.script = rest.front();
  options.script_args.assign(rest.begin() + 1, rest.end());
  if (options.script.empty()) return Usage("the script's name is empty");
  // `dgxrun -g 2 staus`: not a file, so say what may have been meant where that is likely.
  if (first_word_free && words.size() == 1 && options.script.find_first_of("./") == std::string::npos) {
    const std::string nearest = NearestWord(options.script, Subcommands());
    if (!nearest.empty()) {
      return Usage(absl::StrCat("no subcommand ", options.script, "; did you mean ", nearest,
                                "? (a program of that name: dgxrun --no-python ", options.script, ")"));
    }
  }
  if (absl::Status checked = CheckLaunch(options); !checked.ok()) return checked;
  return options;
}

// Takes the one optional JOB of a subcommand.
absl::Status TakeJob(const std::string& command, const std::vector<std::string>& positionals,
                     std::string* job) {
  if (positionals.size() > 1) {
    return Usage(absl::StrCat("dgxrun ", command, " takes one job, not ", positionals.size()));
  }
  if (positionals.empty()) return absl::OkStatus();
  if (!IsValidName(positionals[0])) {
    return Usage(absl::StrCat("\"", positionals[0], "\" is neither a job's id nor a name"));
  }
  *job = positionals[0];
  return absl::OkStatus();
}

absl::StatusOr<Command> ParseStatus(const std::vector<std::string>& words) {
  StatusOptions options;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Flag("--all", &options.all);
  set.Flag("--json", &options.json);
  set.Value("--cluster", &options.cluster);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("status")};
  if (absl::Status job = TakeJob("status", positionals, &options.job); !job.ok()) return job;
  if (options.all && !options.job.empty()) return Usage("--all lists every job; leave out the job");
  return options;
}

absl::StatusOr<Command> ParseNodes(const std::vector<std::string>& words) {
  NodesOptions options;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Flag("--json", &options.json);
  set.Value("--cluster", &options.cluster);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("nodes")};
  if (!positionals.empty()) return Usage(absl::StrCat("dgxrun nodes takes no \"", positionals[0], "\""));
  return options;
}

absl::StatusOr<Command> ParseLogs(const std::vector<std::string>& words) {
  LogsOptions options;
  std::string ranks, attempt;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Value("-r,--ranks", &ranks);
  set.Flag("-f,--follow", &options.follow);
  set.Value("--attempt", &attempt);
  set.Value("--cluster", &options.cluster);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("logs")};
  if (absl::Status job = TakeJob("logs", positionals, &options.job); !job.ok()) return job;
  if (!ranks.empty()) {
    auto list = ParseRankList(ranks);
    if (!list.ok()) return InOption("-r", list.status());
    options.ranks = *std::move(list);
  }
  if (!attempt.empty()) {
    auto number = Number("--attempt", attempt, 0, kMaxRestartLimit);
    if (!number.ok()) return number.status();
    options.attempt = *number;
  }
  return options;
}

absl::StatusOr<Command> ParseWhy(const std::vector<std::string>& words) {
  WhyOptions options;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Flag("--json", &options.json);
  set.Value("--cluster", &options.cluster);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("why")};
  if (absl::Status job = TakeJob("why", positionals, &options.job); !job.ok()) return job;
  return options;
}

absl::StatusOr<Command> ParseStop(const std::vector<std::string>& words) {
  StopOptions options;
  std::string grace;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Value("--grace", &grace);
  set.Value("--cluster", &options.cluster);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("stop")};
  if (absl::Status job = TakeJob("stop", positionals, &options.job); !job.ok()) return job;
  if (!grace.empty()) {
    auto duration = ParseDurationWord(grace);
    if (!duration.ok()) return InOption("--grace", duration.status());
    options.grace = *duration;
  }
  return options;
}

absl::StatusOr<Command> ParseDev(const std::vector<std::string>& words) {
  DevOptions options;
  std::string nodes;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Value("-n,-N,--nodes", &nodes);
  set.Flag("--json", &options.json);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("dev")};
  if (positionals.size() != 1) return Usage("write dgxrun dev up, dgxrun dev down or dgxrun dev status");
  if (positionals[0] == "up") {
    options.what = DevOptions::What::kUp;
  } else if (positionals[0] == "down") {
    options.what = DevOptions::What::kDown;
  } else if (positionals[0] != "status") {
    return Usage(absl::StrCat("no dgxrun dev ", positionals[0], "; write up, down or status"));
  }
  if (!nodes.empty()) {
    if (options.what != DevOptions::What::kUp) return Usage("-n belongs to dgxrun dev up");
    auto number = Number("-n", nodes, 1, kMaxDevNodes);
    if (!number.ok()) return number.status();
    options.nodes = *number;
  }
  return options;
}

absl::StatusOr<Command> ParseCluster(const std::vector<std::string>& words) {
  ClusterInitOptions options;
  bool help = false;
  std::vector<std::string> positionals;
  OptionSet set;
  set.Value("--name", &options.name);
  set.Values("--host", &options.hosts);
  set.Values("--user", &options.users);
  set.Flag("-h,--help", &help);
  set.Positionals(&positionals);
  if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
  if (help) return ShowText{HelpText("cluster")};
  if (positionals.size() != 2 || positionals[0] != "init") return Usage("write dgxrun cluster init DIR");
  options.dir = positionals[1];
  if (!IsValidName(options.name)) return Usage(absl::StrCat("--name ", options.name, ": not a valid name"));
  for (const std::string& user : options.users) {
    if (!IsValidName(user)) return Usage(absl::StrCat("--user ", user, ": not a valid account name"));
  }
  return options;
}

}  // namespace

absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& words) {
  if (words.empty()) {
    return Usage("no script given; dgxrun [options] script.py [args...], or dgxrun --help");
  }
  const std::string& first = words[0];
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (first == "status") return ParseStatus(rest);
  if (first == "nodes") return ParseNodes(rest);
  if (first == "logs") return ParseLogs(rest);
  if (first == "why") return ParseWhy(rest);
  if (first == "stop") return ParseStop(rest);
  if (first == "dev") return ParseDev(rest);
  if (first == "cluster") return ParseCluster(rest);
  if (first == "version") return ShowText{VersionText()};
  if (first == "help") return ShowText{HelpText(rest.empty() ? "" : rest[0])};
  if (first == "run") return ParseLaunch(rest, /*first_word_free=*/false);
  return ParseLaunch(words, /*first_word_free=*/true);
}

}  // namespace dgxrun::cli
