#include "cli/cluster_check.h"

#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/cluster_choice.h"
#include "cli/exit_codes.h"
#include "proto/rpc/credentials.h"

namespace dgxrun::cli {
namespace {

// `address`: "host:port", as the file was checked to have it.
absl::Status Resolve(const ClusterFile& file, const char* key, const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path, ": ", key, " = \"", address, "\": ", host, ": ", gai_strerror(error)));
  }
  freeaddrinfo(found);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckClusterFile(const ClusterFile& file) {
  const bool local = absl::StartsWith(file.controller, "unix:");
  if (!local) {
    if (absl::Status found = Resolve(file, "controller", file.controller); !found.ok()) return found;
  }
  if (!file.controller_options.listen.empty()) {
    absl::Status found = Resolve(file, "listen", file.controller_options.listen);
    if (!found.ok()) return found;
  }
  const TlsFiles tls{file.tls_ca, file.tls_cert, file.tls_key};
  if (tls.empty()) {
    if (local) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(file.path, ": ", file.controller,
                     " needs [tls] ca, cert and key; dgxrun cluster init DIR ", "makes certificates"));
  }
  if (auto credentials = ClientTls(tls); !credentials.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path, ": ", std::string(credentials.status().message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> CheckClusterCommand(const ClusterCheckOptions& options, const EnvMap& env,
                                        const Paths& paths) {
  auto found = FindCluster(options.cluster, env, paths);
  if (!found.ok()) return found.status();
  const ClusterFile& file = (*found)->file;  // one was asked for, so it is there or an error
  if (absl::Status right = CheckClusterFile(file); !right.ok()) return right;
  fputs(absl::StrCat("ok: ", file.path, ": cluster ", file.name, ", controller ", file.controller, "\n")
            .c_str(),
        stdout);
  return kExitOk;
}

}  // namespace dgxrun::cli
