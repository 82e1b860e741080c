// One TOML file per cluster, read by the controller, the agents and the CLI alike; each takes the parts
// that concern it. Errors are "file:line:col: message" with the nearest right key.
//
//   [cluster]     name, controller ("host:port" or "unix:/path")
//   [controller]  state_dir, listen, unix_socket, any_user
//   [agent]       name, state_dir, run_dir, log_dir, gpus (declared count), allow_root, port_range, address,
//                 witness_port
//   [tls]         ca, cert, key            paths; relative ones start at the file's own folder
//   [timeouts]    heartbeat_ms, node_lease_ms, isolation_timeout_ms, orphan_timeout_ms
//   [nccl]        any NCCL_* as lower-case key without the prefix, or env = { NAME = "value" }
#ifndef DGXRUN_LAUNCHER_BASE_CLUSTER_FILE_H_
#define DGXRUN_LAUNCHER_BASE_CLUSTER_FILE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace dgxrun {

struct ClusterFile {
  std::string path;  // absolute, of the file itself
  std::string name;
  std::string controller;  // what clients and agents dial

  struct {
    std::string state_dir, listen, unix_socket;
    bool any_user = false;
  } controller_options;

  struct {
    std::string name, state_dir, run_dir, log_dir, address;
    int declared_gpus = -1;  // -1: what the machine has
    bool allow_root = false;
    uint32_t port_low = 0, port_high = 0;
    uint32_t witness_port = 0;  // where agents ask each other; 0: any free one
  } agent;

  std::string tls_ca, tls_cert, tls_key;
  uint32_t heartbeat_ms = 1000;
  uint32_t node_lease_ms = 5000;
  uint32_t isolation_timeout_ms = 10000;
  uint32_t orphan_timeout_ms = 1'800'000;   // 0: ranks do not outlive the controller
  std::map<std::string, std::string> nccl;  // full variable name -> value
};

absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& path);
absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& text, const std::string& path);

}  // namespace dgxrun

#endif  // DGXRUN_LAUNCHER_BASE_CLUSTER_FILE_H_
