// Where dgxrun keeps things of the calling user. Pure: environment and facts in, paths out; nothing is made.
//
//   state folder   $DGXRUN_STATE_DIR, else ${XDG_STATE_HOME:-~/.local/state}/dgxrun
//     local/<job>/   logs of a local job (attempt_<k>/...), status.pb, control (path of its socket)
//     dev/           the dev cluster
//   run folder     $DGXRUN_RUN_DIR, else /run/dgxrun (root), else /tmp/dgxrun-UID; where that is no tmpfs
//                  and /dev/shm is one, /dev/shm/dgxrun-UID. Sockets and shims' files; gone at a reboot
//   user's files   ${XDG_CONFIG_HOME:-~/.config}/dgxrun/cluster.toml and NAME.toml
//   system's       /etc/dgxrun/
#ifndef DGXRUN_CLI_PATHS_H_
#define DGXRUN_CLI_PATHS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dgxrun::cli {

using EnvMap = std::map<std::string, std::string>;

struct Paths {
  std::string state_dir;
  std::string run_dir;
  std::string user_config;    // folder
  std::string system_config;  // folder

  std::string local_dir() const { return state_dir + "/local"; }
  std::string dev_dir() const { return state_dir + "/dev"; }
};

// Errors: neither DGXRUN_STATE_DIR nor HOME is set; a relative path in one of the variables.
absl::StatusOr<Paths> FindPaths(const EnvMap& env, uid_t uid,
                                const std::function<bool(const std::string&)>& on_tmpfs);
// Whether `path`, or its nearest folder that exists, lies on a tmpfs.
bool OnTmpfs(const std::string& path);

// This process's environment. A name that comes twice keeps its first value, as getenv does.
EnvMap ProcessEnvironment();
std::string Get(const EnvMap& env, const std::string& name);  // "" when unset

// Makes `path` and its parents; new folders get `mode`. Errors name the folder.
absl::Status MakeFolders(const std::string& path, mode_t mode);
// As MakeFolders(0700), and refuses a folder that belongs to somebody else: run folders lie in /tmp.
absl::Status MakePrivateFolder(const std::string& path);
// Write, then rename. Mode 0600.
absl::Status WriteFileAtomically(const std::string& path, const std::string& bytes);
// The same without a wait for the disk: ext4 writes a file out at once when it takes another's place by a
// rename, but not when the two are exchanged. A power cut may lose what was written in the last seconds.
absl::Status WriteFileQuickly(const std::string& path, const std::string& bytes);
absl::StatusOr<std::string> ReadFile(const std::string& path);  // NotFound names it
// Names in a folder, but "." and ".."; none when it cannot be read.
std::vector<std::string> ListFolder(const std::string& path);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_PATHS_H_
