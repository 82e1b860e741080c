#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/help.h"
#include "launcher/base/nearest_word.h"
#include "proto/ids.h"

namespace dgxrun::cli {
namespace {

constexpr uint32_t kMaxNodes = 100000;  // far above any cluster; catches a typing slip
constexpr uint32_t kMaxRanksPerNode = 4096;
constexpr uint32_t kMaxRestartLimit = 1000000;
constexpr uint32_t kMaxDevNodes = 64;  // processes on one machine

const std::vector<std::string>& Subcommands() {
  static const std::vector<std::string> kNames = {"status", "nodes", "logs", "why",     "attach", "stop",
                                                  "run",    "dev",   "ckpt", "cluster", "help",   "version"};
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
      if (words[*i + 1].empty()) return Empty(name);
      ours->push_back(word);
      ours->push_back(words[*i + 1]);
      *i += 2;
      return absl::OkStatus();
    }
    if (!takes_value && value_inside) return Usage(absl::StrCat(name, " takes no value"));
    if (takes_value && word.size() == name.size() + 1 && word.back() == '=') return Empty(name);
    ours->push_back(word);
    *i += 1;
    return absl::OkStatus();
  }

  // Mostly a shell variable that is not set: to go on as if the option were not there would hide it.
  static absl::Status Empty(const std::string& name) {
    return Usage(absl::StrCat(name, " needs a value; it is empty"));
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
  std::string nodes, nnodes, ranks, device, grace, restarts, resume, exports;
  PeersWords peers;
  CheckpointWords checkpoints;
};

// What torchrun's words mean here.
absl::Status ConvertTorchrun(const LaunchWords& words, LaunchOptions* options) {
  auto peers = ParsePeers(words.peers);
  if (!peers.ok()) return peers.status();
  options->peers = *std::move(peers);
  if (!words.nnodes.empty()) {
    auto word = NodesWord(words.nnodes);
    if (!word.ok()) return word.status();
    auto nodes = Number("--nnodes", *word, 1, kMaxNodes);
    if (!nodes.ok()) return nodes.status();
    // One node and no endpoint: torchrun's way to say "here".
    if (*nodes > 1 || options->peers.has_value()) options->nodes = *nodes;
  }
  if (words.ranks == "gpu" || words.ranks == "auto") {
    options->ranks_per_node = 0;
    if (words.ranks == "gpu" && words.device.empty()) options->device = v1::DEVICE_GPU;
  } else if (words.ranks == "cpu") {
    options->ranks_are_cpus = true;
    options->device = v1::DEVICE_CPU;
  }
  return absl::OkStatus();
}

absl::Status ConvertLaunch(const LaunchWords& words, LaunchOptions* options) {
  if (!words.nodes.empty()) {
    auto nodes = Number("-n", words.nodes, 1, kMaxNodes);
    if (!nodes.ok()) return nodes.status();
    options->nodes = *nodes;
  }
  if (words.ranks == "all") {
    options->ranks_per_node = 0;
  } else if (!words.ranks.empty() && words.ranks != "gpu" && words.ranks != "auto" && words.ranks != "cpu") {
    auto ranks = Number("-g", words.ranks, 1, kMaxRanksPerNode);
    if (!ranks.ok()) return Usage(absl::StrCat(std::string(ranks.status().message()), ", or \"all\""));
    options->ranks_per_node = *ranks;
  }
  if (absl::Status torchrun = ConvertTorchrun(words, options); !torchrun.ok()) return torchrun;
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
  auto checkpoints = ParseCheckpointWords(words.checkpoints, options->ckpt_dir);
  if (!checkpoints.ok()) return checkpoints.status();
  options->checkpoints = *std::move(checkpoints);
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
  if (options.peers && (options.detach || !options.cluster.empty())) {
    return Usage(
        absl::StrCat(options.detach ? "--detach" : "--cluster",
                     " and --rdzv-endpoint exclude each other: the commands of the nodes are the job"));
  }
  if (options.detach && options.nodes == 0 && options.cluster.empty()) {
    return Usage(
        "--detach needs a cluster (-n or --cluster): a job of this machine alone ends with its dgxrun; "
        "dgxrun dev up starts a cluster here");
  }
  if (options.checkpoints.min_nodes > 0) {
    if (options.peers) return Usage("--elastic and --rdzv-endpoint exclude each other");
    if (options.checkpoints.min_nodes > std::max(options.nodes, 1u)) {
      return Usage(absl::StrCat("--elastic ", options.checkpoints.min_nodes, ": more than the ",
                                std::max(options.nodes, 1u), " of -n"));
    }
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
  set.Value("--nnodes", &text.nnodes);
  set.Value("--rdzv-endpoint", &text.peers.endpoint);
  set.Value("--rdzv-id", &text.peers.rdzv_id);
  set.Value("--rdzv-backend", &text.peers.backend);
  set.Value("--node-rank", &text.peers.node_rank);
  set.Value("--orphan-timeout", &text.peers.orphan_timeout);
  set.Value("--join-timeout", &text.peers.join_timeout);
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
  set.Value("--on-reset", &text.checkpoints.on_reset);
  set.Value("--last-step", &text.checkpoints.last_step);
  set.Value("--ckpt-keep", &text.checkpoints.keep);
  set.Value("--elastic", &text.checkpoints.elastic);
  set.Value("--export", &text.exports);
  set.Flag("--log-all", &options.log_all);
  set.Flag("--detach", &options.detach);
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

// The frame of a subcommand: its options, --help, and what stands beside the options.
class Subcommand {
 public:
  explicit Subcommand(std::string name) : name_(std::move(name)) {
    set.Flag("-h,--help", &help_);
    set.Positionals(&positionals);
  }
  Subcommand& Json(bool* into) {
    set.Flag("--json", into);
    return *this;
  }
  Subcommand& Cluster(std::string* into) {
    set.Value("--cluster", into);
    return *this;
  }

  // Takes the words apart and then calls `finish`, which checks them and gives the command. With `job`, the
  // one word beside the options is a job's id or name.
  absl::StatusOr<Command> Parse(const std::vector<std::string>& words, std::string* job,
                                const std::function<absl::StatusOr<Command>()>& finish) {
    if (absl::Status parsed = set.Parse(words, nullptr); !parsed.ok()) return parsed;
    if (help_) return ShowText{HelpText(name_)};
    if (job != nullptr) {
      if (absl::Status taken = TakeJob(job); !taken.ok()) return taken;
    }
    return finish();
  }

  OptionSet set;
  std::vector<std::string> positionals;

 private:
  absl::Status TakeJob(std::string* job) {
    if (positionals.size() > 1) {
      return Usage(absl::StrCat("dgxrun ", name_, " takes one job, not ", positionals.size()));
    }
    if (positionals.empty()) return absl::OkStatus();
    if (!IsValidName(positionals[0])) {
      return Usage(absl::StrCat("\"", positionals[0], "\" is neither a job's id nor a name"));
    }
    *job = positionals[0];
    return absl::OkStatus();
  }

  std::string name_;
  bool help_ = false;
};

absl::StatusOr<Command> ParseStatus(const std::vector<std::string>& words) {
  StatusOptions options;
  Subcommand sub("status");
  sub.Json(&options.json).Cluster(&options.cluster).set.Flag("--all", &options.all);
  return sub.Parse(words, &options.job, [&]() -> absl::StatusOr<Command> {
    if (options.all && !options.job.empty()) return Usage("--all lists every job; leave out the job");
    return options;
  });
}

absl::StatusOr<Command> ParseNodes(const std::vector<std::string>& words) {
  NodesOptions options;
  Subcommand sub("nodes");
  bool is_off = false;
  sub.Json(&options.json).Cluster(&options.cluster).set.Flag("--is-off", &is_off);
  return sub.Parse(words, nullptr, [&]() -> absl::StatusOr<Command> {
    if (sub.positionals.empty()) {
      if (is_off) return Usage("--is-off belongs to dgxrun nodes fence NODE --is-off");
      return options;
    }
    if (sub.positionals[0] != "fence") {
      return Usage(
          absl::StrCat("dgxrun nodes takes no \"", sub.positionals[0], "\" (known: fence NODE --is-off)"));
    }
    if (sub.positionals.size() != 2) return Usage("dgxrun nodes fence needs one NODE");
    if (!is_off) {
      return Usage(
          absl::StrCat("dgxrun nodes fence ", sub.positionals[1],
                       " lets its jobs start elsewhere: look that the machine is off, then add --is-off"));
    }
    options.fence = sub.positionals[1];
    return options;
  });
}

absl::StatusOr<Command> ParseLogs(const std::vector<std::string>& words) {
  LogsOptions options;
  std::string ranks, attempt;
  Subcommand sub("logs");
  sub.Cluster(&options.cluster).set.Flag("-f,--follow", &options.follow);
  sub.set.Value("-r,--ranks", &ranks);
  sub.set.Value("--attempt", &attempt);
  return sub.Parse(words, &options.job, [&]() -> absl::StatusOr<Command> {
    if (sub.set.given("--ranks")) {
      auto list = ParseRankList(ranks);
      if (!list.ok()) return InOption("-r", list.status());
      options.ranks = *std::move(list);
    }
    if (sub.set.given("--attempt")) {
      auto number = Number("--attempt", attempt, 0, kMaxRestartLimit);
      if (!number.ok()) return number.status();
      options.attempt = *number;
    }
    return options;
  });
}

absl::StatusOr<Command> ParseWhy(const std::vector<std::string>& words) {
  WhyOptions options;
  Subcommand sub("why");
  sub.Json(&options.json).Cluster(&options.cluster);
  return sub.Parse(words, &options.job, [&]() -> absl::StatusOr<Command> { return options; });
}

absl::StatusOr<Command> ParseAttach(const std::vector<std::string>& words) {
  AttachOptions options;
  Subcommand sub("attach");
  sub.Cluster(&options.cluster).set.Flag("--log-all", &options.log_all);
  return sub.Parse(words, &options.job, [&]() -> absl::StatusOr<Command> { return options; });
}

absl::StatusOr<Command> ParseStop(const std::vector<std::string>& words) {
  StopOptions options;
  std::string grace;
  Subcommand sub("stop");
  sub.Cluster(&options.cluster).set.Value("--grace", &grace);
  return sub.Parse(words, &options.job, [&]() -> absl::StatusOr<Command> {
    if (sub.set.given("--grace")) {
      auto duration = ParseDurationWord(grace);
      if (!duration.ok()) return InOption("--grace", duration.status());
      options.grace = *duration;
    }
    return options;
  });
}

absl::StatusOr<Command> ParseDev(const std::vector<std::string>& words) {
  DevOptions options;
  std::string nodes;
  Subcommand sub("dev");
  sub.Json(&options.json).set.Value("-n,-N,--nodes", &nodes);
  return sub.Parse(words, nullptr, [&]() -> absl::StatusOr<Command> {
    if (sub.positionals.size() != 1) {
      return Usage("write dgxrun dev up, dgxrun dev down or dgxrun dev status");
    }
    const std::string& what = sub.positionals[0];
    if (what == "up") {
      options.what = DevOptions::What::kUp;
    } else if (what == "down") {
      options.what = DevOptions::What::kDown;
    } else if (what != "status") {
      return Usage(absl::StrCat("no dgxrun dev ", what, "; write up, down or status"));
    }
    if (sub.set.given("--nodes")) {
      if (options.what != DevOptions::What::kUp) return Usage("-n belongs to dgxrun dev up");
      auto number = Number("-n", nodes, 1, kMaxDevNodes);
      if (!number.ok()) return number.status();
      options.nodes = *number;
    }
    return options;
  });
}

absl::Status FinishPrune(const std::string& last, const std::string& every, CkptOptions* options) {
  if (last.empty())
    return Usage("dgxrun ckpt prune needs --keep-last N, the number of newest ones that stay");
  v1::CheckpointPolicy policy;
  const std::string rule = every.empty() ? last : absl::StrCat(last, ",", every);
  if (last.find(',') != std::string::npos || !ParseKeep(rule, &policy).ok()) {
    return Usage("--keep-last and --keep-every take a number from 1");
  }
  options->keep_last = policy.keep_last();
  options->keep_every = policy.keep_every();
  return absl::OkStatus();
}

absl::StatusOr<Command> ParseCkpt(const std::vector<std::string>& words) {
  CkptOptions options;
  std::string last, every;
  Subcommand sub("ckpt");
  sub.Json(&options.json).set.Flag("--deep", &options.deep);
  sub.set.Flag("--dry-run", &options.dry_run);
  sub.set.Flag("--remove", &options.remove);
  sub.set.Value("--keep-last", &last);
  sub.set.Value("--keep-every", &every);
  return sub.Parse(words, nullptr, [&]() -> absl::StatusOr<Command> {
    static const std::map<std::string, CkptOptions::What> kWhats = {{"ls", CkptOptions::What::kLs},
                                                                    {"verify", CkptOptions::What::kVerify},
                                                                    {"pin", CkptOptions::What::kPin},
                                                                    {"prune", CkptOptions::What::kPrune}};
    const auto what = kWhats.find(sub.positionals.empty() ? "" : sub.positionals[0]);
    if (what == kWhats.end() || sub.positionals.size() < 2) {
      return Usage("write dgxrun ckpt ls|verify|pin|prune DIR");
    }
    options.what = what->second;
    options.paths.assign(sub.positionals.begin() + 1, sub.positionals.end());
    const bool pin = options.what == CkptOptions::What::kPin,
               prune = options.what == CkptOptions::What::kPrune;
    const bool many = pin || options.what == CkptOptions::What::kVerify;
    if (!many && options.paths.size() > 1)
      return Usage(absl::StrCat("dgxrun ckpt ", what->first, " takes one folder"));
    if (options.remove && !pin) return Usage("--remove belongs to dgxrun ckpt pin");
    if (!prune && (options.dry_run || !last.empty() || !every.empty())) {
      return Usage("--keep-last, --keep-every and --dry-run belong to dgxrun ckpt prune");
    }
    if (options.deep && (pin || prune)) return Usage("--deep belongs to dgxrun ckpt ls and verify");
    if (prune) {
      if (absl::Status rule = FinishPrune(last, every, &options); !rule.ok()) return rule;
    }
    return options;
  });
}

absl::StatusOr<Command> FinishInit(ClusterInitOptions options) {
  if (!IsValidName(options.name)) return Usage(absl::StrCat("--name ", options.name, ": not a valid name"));
  for (const std::string& user : options.users) {
    if (!IsValidName(user)) return Usage(absl::StrCat("--user ", user, ": not a valid account name"));
  }
  return options;
}

absl::StatusOr<Command> ParseCluster(const std::vector<std::string>& words) {
  ClusterInitOptions init;
  Subcommand sub("cluster");
  sub.set.Value("--name", &init.name);
  sub.set.Values("--host", &init.hosts);
  sub.set.Values("--user", &init.users);
  return sub.Parse(words, nullptr, [&]() -> absl::StatusOr<Command> {
    const std::string what = sub.positionals.empty() ? "" : sub.positionals[0];
    if (sub.positionals.size() != 2 || (what != "init" && what != "check")) {
      return Usage("write dgxrun cluster init DIR or dgxrun cluster check NAME|FILE");
    }
    if (what == "check") {
      for (const char* option : {"--name", "--host", "--user"}) {
        if (sub.set.given(option)) return Usage(absl::StrCat(option, " belongs to dgxrun cluster init"));
      }
      return ClusterCheckOptions{sub.positionals[1]};
    }
    init.dir = sub.positionals[1];
    if (init.dir.empty()) return Usage("the folder's name is empty");
    return FinishInit(std::move(init));
  });
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
  if (first == "attach") return ParseAttach(rest);
  if (first == "dev") return ParseDev(rest);
  if (first == "ckpt") return ParseCkpt(rest);
  if (first == "cluster") return ParseCluster(rest);
  if (first == "version") return ShowText{VersionText()};
  if (first == "help") return ShowText{HelpText(rest.empty() ? "" : rest[0])};
  if (first == "run") return ParseLaunch(rest, /*first_word_free=*/false);
  return ParseLaunch(words, /*first_word_free=*/true);
}

}  // namespace dgxrun::cli
