#include "cli/launch_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "proto/ids.h"

namespace dgxrun::cli {
namespace {

constexpr std::array kSessionPrefixes = {"SSH_", "XDG_", "DBUS_"};
constexpr std::array kLauncherPrefixes = {"SLURM_", "DGXRUN_", "TORCHELASTIC_", "PET_"};
const std::set<std::string>& SessionNames() {
  static const std::set<std::string> kNames = {"HOSTNAME", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
                                               "_",        "SHLVL",   "OLDPWD"};
  return kNames;
}
const std::set<std::string>& LauncherNames() {
  static const std::set<std::string> kNames = {
      "RANK",      "LOCAL_RANK", "WORLD_SIZE",      "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
      "ROLE_NAME", "ROLE_RANK",  "ROLE_WORLD_SIZE", "MASTER_ADDR",      "MASTER_PORT"};
  return kNames;
}
const std::set<std::string>& MinimalNames() {
  static const std::set<std::string> kNames = {"PATH", "HOME", "USER", "LOGNAME", "SHELL",
                                               "LANG", "TZ",   "TERM", "TMPDIR",  "PWD"};
  return kNames;
}

template <class Prefixes>
bool HasPrefix(const std::string& name, const Prefixes& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return absl::StartsWith(name, prefix); });
}
bool IsLaunchers(const std::string& name) {
  return HasPrefix(name, kLauncherPrefixes) || LauncherNames().count(name) > 0;
}
bool IsSessions(const std::string& name) {
  return HasPrefix(name, kSessionPrefixes) || SessionNames().count(name) > 0;
}

bool IsExecutableFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string Absolute(const std::string& path, const std::string& cwd) {
  return absl::StartsWith(path, "/") ? path : absl::StrCat(cwd, "/", path);
}

// The first executable `name` in PATH, absolute; empty: none.
std::string FindInPath(const std::string& name, const EnvMap& env, const std::string& cwd) {
  for (absl::string_view folder : absl::StrSplit(Get(env, "PATH"), ':')) {
    const std::string path =
        Absolute(absl::StrCat(folder.empty() ? "." : std::string(folder), "/", name), cwd);
    if (IsExecutableFile(path)) return path;
  }
  return "";
}

absl::StatusOr<std::string> FindPython(const EnvMap& env, const std::string& cwd) {
  if (const std::string given = Get(env, "PYTHON_EXEC"); !given.empty()) {
    const std::string path =
        given.find('/') == std::string::npos ? FindInPath(given, env, cwd) : Absolute(given, cwd);
    if (path.empty() || !IsExecutableFile(path)) {
      return absl::FailedPreconditionError(absl::StrCat("PYTHON_EXEC=", given, " is no executable file"));
    }
    return path;
  }
  for (const char* root : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string folder = Get(env, root);
    if (!folder.empty() && IsExecutableFile(folder + "/bin/python")) return folder + "/bin/python";
  }
  for (const char* name : {"python3", "python"}) {
    if (std::string path = FindInPath(name, env, cwd); !path.empty()) return path;
  }
  return absl::FailedPreconditionError(
      "no python in the active environment and none in PATH; set PYTHON_EXEC, or use --no-python");
}

absl::Status CheckScript(const std::string& typed, const std::string& path, bool execute, const EnvMap& env,
                         const std::string& cwd) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const std::string program =
        typed.find('/') == std::string::npos ? FindInPath(typed, env, cwd) : std::string();
    if (!program.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("no script ", typed, " in ", cwd,
                                                        "; to run the program ", program,
                                                        ": dgxrun --no-python ", typed));
    }
    return absl::FailedPreconditionError(absl::StrCat("script ", path, " does not exist"));
  }
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat("script ", path, " is not a file"));
  if (access(path.c_str(), R_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("script ", path, " cannot be read"));
  }
  if (execute && access(path.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("script ", path, " is not executable; chmod +x it, or name it .py for Python"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankCommand> ProgramCommand(const LaunchOptions& options, const EnvMap& env,
                                           const std::string& cwd, bool check) {
  RankCommand command;
  const std::string& typed = options.script;
  command.argv = {typed};
  if (check) {
    const bool path = typed.find('/') != std::string::npos;
    const std::string found = path ? Absolute(typed, cwd) : FindInPath(typed, env, cwd);
    if (found.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("program ", typed, " is not in PATH"));
    }
    struct stat info;
    if (path && stat(found.c_str(), &info) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("program ", found, " does not exist"));
    }
    if (!IsExecutableFile(found)) {
      return absl::FailedPreconditionError(absl::StrCat("program ", found, " is not executable"));
    }
  }
  return command;
}

}  // namespace

absl::StatusOr<RankCommand> BuildRankCommand(const LaunchOptions& options, const EnvMap& env,
                                             const std::string& cwd, bool check) {
  RankCommand command;
  if (options.no_python) {
    auto program = ProgramCommand(options, env, cwd, check);
    if (!program.ok()) return program.status();
    command = *std::move(program);
  } else if (options.module || absl::EndsWith(options.script, ".py")) {
    if (!options.module) {
      command.script = Absolute(options.script, cwd);
      if (check) {
        absl::Status script = CheckScript(options.script, command.script, /*execute=*/false, env, cwd);
        if (!script.ok()) return script;
      }
    }
    auto python = FindPython(env, cwd);
    if (!python.ok()) return python.status();
    command.argv = {*std::move(python), "-u"};
    if (options.module) command.argv.push_back("-m");
    command.argv.push_back(options.script);
  } else {
    command.script = Absolute(options.script, cwd);
    if (check) {
      absl::Status script = CheckScript(options.script, command.script, /*execute=*/true, env, cwd);
      if (!script.ok()) return script;
    }
    // Without a slash, exec would look it up in PATH.
    command.argv = {options.script.find('/') == std::string::npos ? "./" + options.script : options.script};
  }
  command.argv.insert(command.argv.end(), options.script_args.begin(), options.script_args.end());
  return command;
}

v1::Environment FilterEnvironment(const EnvMap& env, const ExportRule& rule) {
  std::map<std::string, std::string> kept;
  for (const auto& [name, value] : env) {
    if (IsLaunchers(name) || name.empty()) continue;
    const bool named = std::find(rule.names.begin(), rule.names.end(), name) != rule.names.end();
    const bool wanted =
        rule.all ? !IsSessions(name) : MinimalNames().count(name) > 0 || absl::StartsWith(name, "LC_");
    if (named || wanted) kept[name] = value;
  }
  for (const auto& [name, value] : rule.values) {
    if (!IsLaunchers(name)) kept[name] = value;
  }
  v1::Environment environment;
  for (const auto& [name, value] : kept) {
    v1::EnvVar* var = environment.add_vars();
    var->set_name(name);
    var->set_value(value);
  }
  return environment;
}

absl::StatusOr<v1::JobSpec> BuildSpec(const LaunchOptions& options, const EnvMap& env, const std::string& cwd,
                                      bool local) {
  auto command = BuildRankCommand(options, env, cwd, local);
  if (!command.ok()) return command.status();
  v1::JobSpec spec;
  // The controller names a job after its script or program; of a module it would see the interpreter only.
  spec.set_name(options.name.empty() && options.module && IsValidName(options.script) ? options.script
                                                                                      : options.name);
  spec.set_nodes(std::max(options.nodes, 1u));
  spec.set_ranks_per_node(options.ranks_per_node);
  spec.set_device(options.device);
  for (const std::string& word : command->argv) spec.add_argv(word);
  spec.set_script(command->script);
  spec.set_cwd(cwd);
  spec.set_grace_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(options.grace)));
  spec.set_max_restarts(options.max_restarts);
  if (!options.ckpt_dir.empty()) spec.set_ckpt_dir(Absolute(options.ckpt_dir, cwd));
  for (const std::string& word : options.resume_args) spec.add_resume_args(word);
  *spec.mutable_ckpt() = options.checkpoints.policy;
  spec.set_min_nodes(options.checkpoints.min_nodes);
  return spec;
}

bool IsSecretName(const std::string& name) {
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const char* mark : {"TOKEN", "KEY", "SECRET", "PASS"}) {
    if (absl::StrContains(upper, mark)) return true;
  }
  return false;
}

std::vector<std::string> RedactWords(const std::vector<std::string>& words) {
  std::vector<std::string> shown;
  bool hide_next = false;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (hide_next && !absl::StartsWith(word, "-")) {
      shown.push_back("***");
      hide_next = false;
      continue;
    }
    hide_next = false;
    if (equals != std::string::npos && equals > 0 && IsSecretName(word.substr(0, equals))) {
      shown.push_back(word.substr(0, equals + 1) + "***");
      continue;
    }
    // "--hf-token abc": whole parts of the name only, so that --tokenizer and --num-tokens stay readable.
    if (equals == std::string::npos && absl::StartsWith(word, "--")) {
      for (absl::string_view part : absl::StrSplit(word, absl::ByAnyChar("-_"))) {
        for (const char* mark : {"token", "key", "secret", "pass", "password", "passwd", "apikey"}) {
          hide_next |= absl::EqualsIgnoreCase(part, mark);
        }
      }
    }
    shown.push_back(word);
  }
  return shown;
}

}  // namespace dgxrun::cli
