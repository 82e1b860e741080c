// Drives one real shim with real ranks: starts it, speaks the agent's part, and at the end makes sure that
// no process, cgroup or folder is left, also when the test failed.
#ifndef DGXRUN_TESTS_UNIT_LAUNCHER_HARNESS_H_
#define DGXRUN_TESTS_UNIT_LAUNCHER_HARNESS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "dgxrun/v1/shim.pb.h"
#include "launcher/base/unique_fd.h"
#include "launcher/shim_channel.h"
#include "launcher/shim_start.h"

namespace dgxrun::testing {

// More than any step takes on a loaded machine with sanitizers.
inline constexpr absl::Duration kPatience = absl::Seconds(20);

// Waits on `poll` every few milliseconds of real time until it holds or kPatience is over.
bool Eventually(const std::function<bool()>& condition);
std::string Slurp(const std::string& path);
bool Lives(int pid);  // a zombie does not

class Harness {
 public:
  explicit Harness(bool with_cgroup);
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  // A plan of `ranks` ranks that run `argv` in the test's folder.
  v1::ShimStart Plan(int ranks, std::vector<std::string> argv);
  std::vector<std::string> Rank(std::vector<std::string> arguments) const;

  void Start(const v1::ShimStart& start, std::vector<int> held_ports = {});
  // The shim gets these as its fds 0 and 1.
  void StartOnTerminal(const v1::ShimStart& start, int in, int out);
  void Attach(uint64_t last_event);  // as a later agent; closes the first connection
  void CloseSocket() { channel_.reset(); }
  void Stop(uint64_t grace_ms);
  void Lease(int64_t deadline_ns);
  void Ack(uint64_t number);

  // The next event; nothing when the shim is gone or kPatience is over.
  std::optional<v1::ShimEvent> Next();
  // Skips to the last event. Fails the test when there is none.
  v1::AttemptGone UntilGone();
  // Waits for the guard's end.
  bool GuardEnds();

  const v1::ShimHello& hello() const { return hello_; }
  const std::vector<v1::ShimEvent>& seen() const { return seen_; }
  const std::string& folder() const { return folder_; }  // for the ranks' files
  const std::string& run_dir() const { return run_dir_; }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  int PidFrom(const std::string& name);  // waits for the file
  std::string cgroup() const;            // path that the shim uses, also when it is gone
  const std::string& mark() const { return mark_; }
  // No process carries the mark, no child of ours is a stray, no cgroup is there.
  bool NothingLeft();

 private:
  void StartWith(const v1::ShimStart& start, const ShimStartOptions& options);
  void Take(const std::string& bytes);

  std::string folder_, run_dir_, cgroup_parent_, mark_, job_;
  std::unique_ptr<ShimChannel> channel_;
  UniqueFd pidfd_;
  int guard_pid_ = 0;
  bool guard_reaped_ = false;
  v1::ShimHello hello_;
  std::vector<v1::ShimEvent> seen_;
  size_t next_ = 0;
};

}  // namespace dgxrun::testing

#endif  // DGXRUN_TESTS_UNIT_LAUNCHER_HARNESS_H_
