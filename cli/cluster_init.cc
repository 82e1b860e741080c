#include "cli/cluster_init.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/certificates.h"
#include "cli/paths.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {
namespace {

constexpr int kPort = 7450;  // written into the first files; any other will do

// The name that clients check in the controller's certificate, whatever address they dial. Equal to
// kControllerName of proto/rpc/credentials.h, which this file must not include: it links no gRPC.
constexpr char kControllerAlternativeName[] = "dgxrun-controller";
constexpr char kAgentAlternativeName[] = "dgxrun-agent";

// Never replaces a file: O_EXCL.
absl::Status WriteNew(const std::string& path, const std::string& bytes, mode_t mode) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid() || write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return absl::FailedPreconditionError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status WritePair(const std::string& stem, EVP_PKEY* key, X509* cert) {
  auto key_pem = KeyPem(key);
  if (!key_pem.ok()) return key_pem.status();
  auto cert_pem = CertificatePem(cert);
  if (!cert_pem.ok()) return cert_pem.status();
  if (absl::Status written = WriteNew(stem + ".key", *key_pem, 0600); !written.ok()) return written;
  return WriteNew(stem + ".crt", *cert_pem, 0644);
}

absl::Status RefuseExisting(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    struct stat info;
    if (lstat(path.c_str(), &info) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " exists; nothing is overwritten: choose another folder or remove it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHost(const std::string& host) {
  const bool bad = host.empty() || host.find_first_of(" \t,;\"\\/") != std::string::npos;
  if (bad)
    return absl::InvalidArgumentError(absl::StrCat("\"", host, "\" is neither a host name nor an address"));
  return absl::OkStatus();
}

std::string HostPort(const std::string& host) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", kPort)
                                             : absl::StrCat("[", host, "]:", kPort);
}

std::string Head(const std::string& role, const std::string& name, const std::string& controller) {
  return absl::StrCat("# ", role, "\n[cluster]\nname = \"", name, "\"\ncontroller = \"", controller,
                      "\"\n\n");
}
std::string Tls(const std::string& stem) {
  return absl::StrCat("[tls]   # relative paths start at this file's folder\nca = \"ca.crt\"\ncert = \"",
                      stem, ".crt\"\nkey = \"", stem, ".key\"\n");
}

}  // namespace

absl::Status MakeClusterCertificates(const std::string& dir, const std::vector<std::string>& hosts,
                                     const std::vector<std::string>& users) {
  for (const std::string& host : hosts) {
    if (absl::Status ok = CheckHost(host); !ok.ok()) return ok;
  }
  std::vector<std::pair<std::string, CertificateRequest>> leaves;
  CertificateRequest controller{.common_name = "controller", .is_server = true};
  controller.alternative_names = {kControllerAlternativeName};
  controller.alternative_names.insert(controller.alternative_names.end(), hosts.begin(), hosts.end());
  leaves.emplace_back("controller", controller);
  // Agents bear witness to each other, so each is a server too.
  CertificateRequest agent{.common_name = "agent", .is_server = true};
  agent.alternative_names = {kAgentAlternativeName};
  leaves.emplace_back("agent", agent);
  for (const std::string& user : users)
    leaves.emplace_back("user-" + user, CertificateRequest{.common_name = "user:" + user});

  std::vector<std::string> paths = {dir + "/ca.key", dir + "/ca.crt"};
  for (const auto& [stem, request] : leaves) {
    paths.push_back(absl::StrCat(dir, "/", stem, ".key"));
    paths.push_back(absl::StrCat(dir, "/", stem, ".crt"));
  }
  if (absl::Status fresh = RefuseExisting(paths); !fresh.ok()) return fresh;
  if (absl::Status made = MakeFolders(dir, 0700); !made.ok()) return made;

  auto ca_key = MakeKey();
  if (!ca_key.ok()) return ca_key.status();
  const CertificateRequest authority{.common_name = "dgxrun cluster authority", .is_ca = true};
  auto ca = MakeCertificate(authority, ca_key->get(), nullptr, nullptr);
  if (!ca.ok()) return ca.status();
  if (absl::Status written = WritePair(dir + "/ca", ca_key->get(), ca->get()); !written.ok()) return written;
  for (const auto& [stem, request] : leaves) {
    auto key = MakeKey();
    if (!key.ok()) return key.status();
    auto cert = MakeCertificate(request, key->get(), ca->get(), ca_key->get());
    if (!cert.ok()) return cert.status();
    absl::Status written = WritePair(absl::StrCat(dir, "/", stem), key->get(), cert->get());
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InitCluster(const std::string& dir, const std::string& name,
                                        const std::vector<std::string>& hosts,
                                        const std::vector<std::string>& users) {
  if (hosts.empty()) return absl::InvalidArgumentError("give the controller's name or address: --host NAME");
  if (users.empty()) return absl::InvalidArgumentError("give an account: --user NAME");
  const std::string files[] = {dir + "/controller.toml", dir + "/agent.toml", dir + "/cluster.toml"};
  if (absl::Status fresh = RefuseExisting({files[0], files[1], files[2]}); !fresh.ok()) return fresh;
  if (absl::Status made = MakeClusterCertificates(dir, hosts, users); !made.ok()) return made;

  const std::string dialled = HostPort(hosts[0]);
  const std::string controller = absl::StrCat(
      Head("For dgxrun-controller.", name, dialled),
      "[controller]\nstate_dir = \"/var/lib/dgxrun/controller\"   # the log; a local disk, never NFS\n",
      "listen = \"0.0.0.0:", kPort, "\"\n\n", Tls("controller"));
  const std::string agent = absl::StrCat(
      Head("For dgxrun-agent, the same on every node.", name, dialled),
      "[agent]\nstate_dir = \"/var/lib/dgxrun/agent\"\nrun_dir = \"/run/dgxrun/jobs\"   # a tmpfs\n",
      "log_dir = \"/var/log/dgxrun\"\n\n", Tls("agent"));
  const std::string client = absl::StrCat(
      Head(absl::StrCat("For users: ~/.config/dgxrun/cluster.toml or /etc/dgxrun/cluster.toml, with "
                        "the user's own certificate."),
           name, dialled),
      Tls("user-" + users[0]));
  const std::string texts[] = {controller, agent, client};
  for (size_t i = 0; i < 3; ++i) {
    if (absl::Status written = WriteNew(files[i], texts[i], 0644); !written.ok()) return written;
  }
  return absl::StrCat("made ", dir, ": ca.key stays here, and away from the nodes\n",
                      "  controller's machine: ca.crt controller.{crt,key,toml}; dgxrun-controller --config ",
                      "controller.toml\n",
                      "  every node:           ca.crt agent.{crt,key,toml}; dgxrun-agent --config ",
                      "agent.toml\n", "  user ", users[0], ":  ca.crt user-", users[0],
                      ".{crt,key} and cluster.toml as ~/.config/dgxrun/cluster.toml\n");
}

}  // namespace dgxrun::cli
