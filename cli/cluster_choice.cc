#include "cli/cluster_choice.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dgxrun::cli {
namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

absl::StatusOr<std::optional<ClusterChoice>> Read(const std::string& path, bool asked_for) {
  auto file = ReadClusterFile(path);
  if (!file.ok()) {
    // A file that cannot be used is a matter of configuration, not of the command line.
    return absl::FailedPreconditionError(file.status().message());
  }
  return ClusterChoice{*std::move(file), asked_for};
}

absl::StatusOr<std::string> FileOf(const std::string& asked, const Paths& paths) {
  if (absl::StrContains(asked, "/") || absl::EndsWith(asked, ".toml")) {
    if (!Exists(asked))
      return absl::FailedPreconditionError(absl::StrCat("cluster file ", asked, " does not exist"));
    return asked;
  }
  std::vector<std::string> looked;
  for (const std::string& folder : {paths.user_config, paths.system_config}) {
    if (folder.empty()) continue;
    looked.push_back(absl::StrCat(folder, "/", asked, ".toml"));
    if (Exists(looked.back())) return looked.back();
  }
  if (asked == "dev") {
    if (Exists(DevClusterFile(paths))) return DevClusterFile(paths);
    return absl::FailedPreconditionError("the dev cluster is not up; dgxrun dev up -n 2 starts one");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no cluster ", asked, ": looked for ", absl::StrJoin(looked, " and ")));
}

}  // namespace

std::string DevClusterFile(const Paths& paths) { return paths.dev_dir() + "/cluster.toml"; }

absl::StatusOr<std::optional<ClusterChoice>> FindCluster(const std::string& asked, const EnvMap& env,
                                                         const Paths& paths) {
  const std::string wanted = asked.empty() ? Get(env, "DGXRUN_CLUSTER") : asked;
  if (!wanted.empty()) {
    auto path = FileOf(wanted, paths);
    if (!path.ok()) return path.status();
    return Read(*path, /*asked_for=*/true);
  }
  for (const std::string& folder : {paths.user_config, paths.system_config}) {
    const std::string path = folder + "/cluster.toml";
    if (!folder.empty() && Exists(path)) return Read(path, /*asked_for=*/false);
  }
  if (Exists(DevClusterFile(paths))) return Read(DevClusterFile(paths), /*asked_for=*/false);
  return std::optional<ClusterChoice>();
}

absl::StatusOr<ClusterChoice> NeedCluster(const std::string& asked, const EnvMap& env, const Paths& paths,
                                          uint32_t nodes) {
  auto found = FindCluster(asked, env, paths);
  if (!found.ok()) return found.status();
  if (found->has_value()) return **std::move(found);
  return absl::FailedPreconditionError(
      absl::StrCat("no cluster to run on: start one here (dgxrun dev up -n ", std::max(nodes, 1u),
                   "), name one (--cluster, DGXRUN_CLUSTER, ",
                   paths.user_config.empty() ? "" : paths.user_config + "/cluster.toml, ",
                   paths.system_config, "/cluster.toml), or leave out -n to run on this machine"));
}

}  // namespace dgxrun::cli
