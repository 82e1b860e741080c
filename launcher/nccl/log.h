// What NCCL really did, read from one rank's NCCL log (NCCL_DEBUG=INFO,
// NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH, NCCL_DEBUG_FILE of its own). The formats are those of
// NCCL 2.4 to 2.30. The log may grow while it is read: feed it the bytes as they come, in pieces of any size.
// Memory is bounded whatever the file holds: what passes a limit is counted, not kept.
//
// An agent's watcher feeds the files of its ranks and reports a RankLog when it changes; the controller
// judges those of all ranks together (log_judge.h); `dgxrun status` shows them.
#ifndef DGXRUN_LAUNCHER_NCCL_LOG_H_
#define DGXRUN_LAUNCHER_NCCL_LOG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dgxrun::nccl {

// How one channel reaches a peer.
enum class HopKind {
  kNet,     // a network: IB, Socket, a plugin's
  kP2p,     // NVLink or PCIe between GPUs that see each other
  kShm,     // host memory
  kNvls,    // NVLink SHARP
  kCollNet  // SHARP in the switches
};
const char* Word(HopKind kind);

struct HopUse {
  uint32_t channels = 0;  // lines, sends and receives alike
  uint32_t gdr = 0;       // of them, with GPUDirect RDMA
};

// What a line of a warning means, where it is known.
enum class LogCause {
  kUnknown,
  kNoInterface,   // NCCL_SOCKET_IFNAME matches nothing
  kNoVerbs,       // libibverbs is missing
  kPeerGone,      // the peer closed its connection: look there
  kIbTimeout,     // retries exceeded, or a port that went away
  kIbConnect,     // a queue pair could not be connected
  kLinkFlap,      // asynchronous event of a port, GID table changed
  kIncompatible,  // IB and RoCE mixed
  kDuplicateGpu,  // two ranks on one GPU
  kNoPlugin,      // NCCL_NET names a network that is not there
  kShmFull,       // no space in /dev/shm
  kLockedMemory,  // registration refused
  kNvls           // fabric manager
};
const char* Advice(LogCause cause);  // what to do about it; "" for kUnknown

struct LogWarning {
  LogCause cause = LogCause::kUnknown;
  std::string text;  // without the prefix
};

struct RankLog {
  std::string host;
  int64_t pid = 0;
  int rank = -1;  // in the largest communicator seen; -1: not yet known
  int nranks = 0;
  int nnodes = 0, local_ranks = 0;
  std::string version;                              // "2.28.9+cuda13.0"
  std::string network;                              // "IB", "Socket", a plugin's name; empty: not yet known
  std::string bootstrap;                            // "eth0:10.0.0.1<0>"
  std::string oob;                                  // of IB, the same form
  std::vector<std::string> ib_ports;                // "mlx5_0:1/IB", by NCCL's number
  std::vector<std::string> socket_ports;            // "eth0:10.0.0.1<0>", by NCCL's number
  std::map<uint32_t, std::string> virtual_devices;  // number -> "mlx5_0+mlx5_1"
  std::map<HopKind, HopUse> hops;
  std::map<std::string, HopUse> nics;         // name of the card or interface -> use
  std::map<std::string, uint32_t> p2p_kinds;  // "CUMEM", "IPC", "MNNVL", ... -> channels
  std::string path_inside,
      path_outside;           // of the ring graph: "NVL", "PIX", "SYS", ...; to GPUs, to the network
  bool nvls = false;          // multicast is available
  bool connected = false;     // rings or trees are connected
  bool no_ib_device = false;  // "NET/IB : No device found."
  std::map<std::string, std::string> env;  // what NCCL says it took from the environment
  std::vector<LogWarning> warnings;        // the first ones, each text once
  uint64_t warnings_left_out = 0;
  uint64_t lines = 0, lines_not_nccl = 0;
};

class LogParser {
 public:
  // NCCL cuts its lines at 1023 bytes; a longer one is not NCCL's and is skipped to its end.
  static constexpr size_t kMaxLine = 4096;

  void Feed(absl::string_view bytes);
  // The file ended: a last line without its newline counts too.
  void Finish();
  const RankLog& log() const { return log_; }

 private:
  void Line(absl::string_view line);
  void Info(absl::string_view text);
  void Warn(absl::string_view text);
  void Channel(absl::string_view text);
  void NetHop(absl::string_view via);
  void Communicator(absl::string_view text);

  std::string partial_;
  bool skipping_ = false;
  RankLog log_;
};

// "2.28.9+cuda13.0" or "2.28.9" -> 22809; 2.8 and older as NCCL numbered them -> 2804. 0: not a version.
int NcclVersionNumber(absl::string_view version);

}  // namespace dgxrun::nccl

#endif  // DGXRUN_LAUNCHER_NCCL_LOG_H_
