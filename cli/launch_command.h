// From launch options to what a job is: the complete command of a rank, and the environment that goes
// along. Reads the file system only to find the interpreter and, for a local job, to check the script.
#ifndef DGXRUN_CLI_LAUNCH_COMMAND_H_
#define DGXRUN_CLI_LAUNCH_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "cli/paths.h"
#include "dgxrun/v1/job.pb.h"

namespace dgxrun::cli {

struct RankCommand {
  std::vector<std::string> argv;
  std::string script;  // absolute; the file that must exist on each node. Empty with -m and --no-python
};

// `check`: a local job, so what is missing here is an error here (FailedPrecondition, naming the file). In
// a cluster the nodes check it as the owner, since files need not exist where dgxrun is typed.
//
// The interpreter is $PYTHON_EXEC, else $VIRTUAL_ENV/bin/python, $CONDA_PREFIX/bin/python, python3 or python
// in PATH: absolute, but with symlinks kept, since a venv is found by the path of its python. Argv keeps
// the script as it was typed.
absl::StatusOr<RankCommand> BuildRankCommand(const LaunchOptions& options, const EnvMap& env,
                                             const std::string& cwd, bool check);

// The variables that go along. Held back unless named by --export: what describes the caller's host and
// session (HOSTNAME, SSH_*, DISPLAY, XDG_*, DBUS_*), and always: foreign SLURM_* and DGXRUN_*, and the
// variables that a launcher gives its ranks (RANK, WORLD_SIZE, MASTER_*, TORCHELASTIC_*, PET_*, ...).
v1::Environment FilterEnvironment(const EnvMap& env, const ExportRule& rule);

// Everything of the spec that the options say; owner, env_names and env_sha256 are the controller's.
absl::StatusOr<v1::JobSpec> BuildSpec(const LaunchOptions& options, const EnvMap& env, const std::string& cwd,
                                      bool local);

// Whether values of a variable of this name are printed as ***.
bool IsSecretName(const std::string& name);
// argv for people: values of NAME=VALUE words and of --name VALUE pairs with secret names become ***.
std::vector<std::string> RedactWords(const std::vector<std::string>& words);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_LAUNCH_COMMAND_H_
