// Where one process of a job in peers mode keeps its files, and what this machine is to the endpoint.
//
//   <run folder>/peers/<hash of endpoint, rdzv-id, host name>-<slot>/   on a tmpfs, mode 0700
//     lock          held by the process as long as it lives, and touched each second: its time is that of its
//     death agent.db      node id, capsules, reports      shims/   the attempts' sockets controller/   of the
//     endpoint's process       *.sock   for dgxrun status, stop, ...
//
// Slots are for commands that are two "nodes" of one machine. A process that was killed leaves its folder,
// and the next one that is started with the same endpoint takes the free slot whose shims live, or else the
// lowest. What is older than any rank may live without a controller is history: it is emptied first.
#ifndef DGXRUN_CLI_PEERS_PLACE_H_
#define DGXRUN_CLI_PEERS_PLACE_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/peers_options.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {

// Touches a file each second, on a thread of its own: says to a later process until when this one lived.
class Pulse {
 public:
  explicit Pulse(int fd);
  ~Pulse();

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

class PeersPlace {
 public:
  static absl::StatusOr<PeersPlace> Take(const std::string& run_dir, const PeersOptions& options,
                                         const std::string& host_name);
  PeersPlace(PeersPlace&&) = default;
  PeersPlace& operator=(PeersPlace&&) = default;

  const std::string& folder() const { return folder_; }
  uint32_t slot() const { return slot_; }
  // Ranks of an earlier process live here: this one takes up its job.
  bool found_living() const { return found_living_; }

  std::string shims() const { return folder_ + "/shims"; }
  std::string controller() const { return folder_ + "/controller"; }
  std::string control_socket() const { return folder_ + "/control.sock"; }
  std::string life_socket() const { return folder_ + "/life.sock"; }

  // Call once signals are blocked: from here on the place is known to be alive.
  void Live() { pulse_ = std::make_unique<Pulse>(lock_.get()); }

  // The job has ended, or this node has left it: nothing is kept. What uses the folder must be closed.
  void Remove();

 private:
  PeersPlace(std::string folder, uint32_t slot, UniqueFd lock)
      : folder_(std::move(folder)), slot_(slot), lock_(std::move(lock)) {}

  std::string folder_;
  uint32_t slot_ = 0;
  UniqueFd lock_;
  std::unique_ptr<Pulse> pulse_;
  bool found_living_ = false;
};

// Addresses of this machine's interfaces, loopback left out, as text.
std::vector<std::string> OwnAddresses();
// Whether one of the host's addresses is this machine's. An unknown name is nobody's; `why` then says so.
bool IsOwnHost(const std::string& host, std::string* why);
// Where the endpoint listens: all interfaces, or loopback only where the host is written so.
std::string ListenAddress(const PeersOptions& options);

// Whether somebody listens where the endpoint would.
bool PortTaken(const PeersOptions& options);

// A unix socket that somebody listens on as long as this process lives; nobody answers.
absl::StatusOr<UniqueFd> ListenForLife(const std::string& path);

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_PEERS_PLACE_H_
