// The command line as values. Pure: words in, a Command or one line of error out.
//
// A subcommand is only the very first word; everything else is a launch. In a launch, what comes before
// the script is ours and must be known; the script and all that follows belong to the user's program and
// are not looked at. Long options may be spelled with "_" for "-", as torchrun's.
#ifndef DGXRUN_CLI_COMMAND_LINE_H_
#define DGXRUN_CLI_COMMAND_LINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/checkpoint_options.h"
#include "cli/peers_options.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::cli {

// Which of the caller's variables go along (--export).
struct ExportRule {
  bool all = true;                 // false: the minimal set (PATH, HOME, USER, LANG, ...)
  std::vector<std::string> names;  // passed on by name, even if the filter would hold them back
  std::vector<std::pair<std::string, std::string>> values;
};

struct LaunchOptions {
  uint32_t nodes = 0;           // 0: not given
  uint32_t ranks_per_node = 1;  // 0: all (one per GPU)
  bool module = false;          // `script` is a module
  bool no_python = false;       // `script` is any program
  v1::Device device = v1::DEVICE_AUTO;
  std::string cluster;  // name or file; empty: not given
  std::string name;
  absl::Duration grace = absl::Seconds(30);
  uint32_t max_restarts = 3;
  std::string ckpt_dir;
  std::vector<std::string> resume_args;
  CheckpointOptions checkpoints;
  ExportRule exports;
  bool log_all = false;
  std::optional<PeersOptions> peers;
  bool ranks_are_cpus = false;  // --nproc-per-node cpu: one rank per usable CPU
  bool detach = false;          // submit, and leave it running
  std::string script;
  std::vector<std::string> script_args;
};

struct StatusOptions {
  std::string job;  // id or name; empty: the latest
  std::string cluster;
  bool all = false;  // one line per job
  bool json = false;
};
struct NodesOptions {
  std::string cluster;
  bool json = false;
  std::string fence;  // the node that a person says is off; empty: list
};
struct LogsOptions {
  std::string job;
  std::string cluster;
  std::vector<uint32_t> ranks;  // empty: all
  bool follow = false;
  std::optional<uint32_t> attempt;
};
struct WhyOptions {
  std::string job;
  std::string cluster;
  bool json = false;
};
struct AttachOptions {
  std::string job;
  std::string cluster;
  bool log_all = false;
};
struct StopOptions {
  std::string job;
  std::string cluster;
  std::optional<absl::Duration> grace;
};
struct DevOptions {
  enum class What { kUp, kDown, kStatus };
  What what = What::kStatus;
  uint32_t nodes = 0;  // of kUp; 0: as many as there are, else 2
  bool json = false;
};
struct CkptOptions {
  enum class What { kLs, kVerify, kPin, kPrune };
  What what = What::kLs;
  std::vector<std::string>
      paths;          // kVerify: folders or checkpoints; kPin: folder, then names; else one folder
  bool deep = false;  // every byte is read
  bool json = false;
  bool remove = false;  // kPin: the pins go
  bool dry_run = false;
  uint32_t keep_last = 0;  // kPrune
  uint64_t keep_every = 0;
};
struct ClusterInitOptions {
  std::string dir;
  std::string name = "cluster";
  std::vector<std::string> hosts;  // names or addresses of the controller's machine; first: the one to dial
  std::vector<std::string> users;  // empty: the caller
};
struct ClusterCheckOptions {
  std::string cluster;  // name or file
};
struct ShowText {  // --help, --version
  std::string text;
};

using Command =
    std::variant<LaunchOptions, StatusOptions, NodesOptions, LogsOptions, WhyOptions, AttachOptions,
                 StopOptions, DevOptions, CkptOptions, ClusterInitOptions, ClusterCheckOptions, ShowText>;

// `words`: argv without argv[0]. Errors are InvalidArgument with one line for the user.
absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& words);

// "30s", "1m30s", "500ms", or plain seconds ("30", "0.5"); at most a day.
absl::StatusOr<absl::Duration> ParseDurationWord(const std::string& word);
// "0,2,8-15" -> ranks in ascending order, each once.
absl::StatusOr<std::vector<uint32_t>> ParseRankList(const std::string& word);
// "ALL", "NONE", "NAME,NAME=VALUE", "ALL,NAME=VALUE".
absl::StatusOr<ExportRule> ParseExport(const std::string& word);
// Splits as a POSIX shell does: blanks, '...', "..." and backslash. Nothing is expanded.
absl::StatusOr<std::vector<std::string>> SplitShellWords(const std::string& text);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_COMMAND_LINE_H_
