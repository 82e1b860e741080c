// Cluster files: any text is either a file whose values keep their promises or one error that says where.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "launcher/base/cluster_file.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<dgxrun::ClusterFile> file = dgxrun::ParseClusterFile(text, "/etc/dgxrun/fuzz.toml");
  if (!file.ok()) {
    dgxrun::Require(absl::StartsWith(file.status().message(), "/etc/dgxrun/fuzz.toml:"),
                    "an error without its place: " + file.status().ToString());
    return 0;
  }
  dgxrun::Require(file->path == "/etc/dgxrun/fuzz.toml", "the path is the file's");
  dgxrun::Require(file->agent.port_low <= file->agent.port_high, "a port range that runs backwards");
  dgxrun::Require(file->agent.port_high <= 65535, "a port above 65535");
  dgxrun::Require(file->heartbeat_ms > 0, "no time between two heartbeats");
  dgxrun::Require(file->node_lease_ms > 0 && file->isolation_timeout_ms > 0, "a lease of no time");
  return 0;
}
