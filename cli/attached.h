// A client that is attached to a job until its end: from its submit on (Run), or from now on (Attach), when
// it first shows how things stand and the last lines so far. The same for a local job and a cluster's.
//
// Watches the job and follows its output at once; a lost connection to a cluster is taken up again within
// kReconnectLimit, no line lost or doubled. The summary comes after all output of all attempts was read, or
// when none has come for kDrainLimit.
//
//   Ctrl-C, SIGTERM   stops the job and waits for its end; the second time with no grace; the third leaves
//   SIGHUP            local: stops the job; cluster: leaves it running
//   closed stdout     as SIGHUP; a stdout that cannot be written (full disk) is said, and the end is not 0
#ifndef DGXRUN_CLI_ATTACHED_H_
#define DGXRUN_CLI_ATTACHED_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/console.h"
#include "cli/log_follower.h"
#include "cli/stream_reader.h"
#include "dgxrun/v1/job.pb.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/unique_fd.h"

namespace dgxrun::cli {

// After the job's end: for output that is still under way. Longer than the shim drains its pipes (2 s).
inline constexpr absl::Duration kDrainLimit = absl::Seconds(5);

// Blocks SIGINT, SIGTERM and SIGHUP (and ignores SIGPIPE) for this thread and those it makes, and returns
// an fd from which they are read. Call before any thread is started.
UniqueFd TakeSignals();

class AttachedJob {
 public:
  struct Options {
    bool local = false;
    bool say_cpu = false;     // one line when ranks run on the CPU for lack of a GPU
    bool show_output = true;  // false: the one rank has the terminal's stdout; only its stderr is followed
    bool log_all = false;
    // Peers mode: this process is part of the job. Hang-up stops the job; the endpoint's process may begin
    // anew and not know the job for a moment; `ranks`, those of this node, are shown.
    bool peers = false;
    std::vector<uint32_t> ranks;
    absl::Duration give_up = kReconnectLimit;
    // Peers mode: the endpoint cannot be asked to stop the job, so what runs here is stopped; calls back on
    // any thread when nothing runs here.
    std::function<void(bool at_once, std::function<void()> gone)> stop_here;
    std::string where;                                    // "dev", "this machine"
    std::function<void(const v1::JobStatus&)> on_status;  // each status, the last one before Run returns
  };

  AttachedJob(Client client, Options options, Console* console, int signal_fd);

  // Submits and stays until the end. Returns dgxrun's exit code; errors of the submit are the caller's.
  absl::StatusOr<int> Run(const v1::SubmitRequest& request);
  // `status`: of a job that was submitted before.
  int Attach(const v1::JobStatus& status);
  // Of a job that was not submitted here, but has just begun: all of its output.
  int Join(const v1::JobStatus& status);
  // Any thread, while this lives: the job is over, as somebody heard who need not be asked through the
  // controller (peers mode: this node's agent). Output that is still on its way is waited for as ever.
  void HearEnd(const v1::JobStatus& status);

 private:
  int Follow();
  void OnSignals();
  void OnSignal(int signal);
  void RequestStop(const std::string& reason, bool at_once);
  void StopHere(bool at_once);
  void Leave(int code);
  void ReaderGone();

  void StartWatch();
  void StartHistory(uint32_t attempt);
  void StartLogs(uint32_t attempt, std::vector<v1::LogPosition> from);  // `from`: of it, what was shown
  LogFollower::Options LogOptions(uint32_t attempt) const;
  void OnStatus(const v1::JobStatus& status);
  void OnWatchDone(const grpc::Status& status);
  void OnLogsDone(const absl::Status& status);
  void SayChanges(const v1::JobStatus& status);
  void SayLostOutput(const v1::JobStatus& status);
  void SayAlarms(const v1::JobStatus& status);
  void ArmDrain();
  void Pump();
  void CloseStreams();
  int ExitCode() const;

  Client client_;
  Options options_;
  Console* console_;
  EventLoop loop_;
  int signal_fd_;

  std::string job_;
  v1::JobStatus last_;
  bool have_status_ = false;
  std::unique_ptr<StreamReader<v1::JobStatus>> watch_;
  std::unique_ptr<LogFollower> logs_;  // the history first, if there is one; then all that follows
  bool logs_complete_ = false;
  bool closing_ = false;
  bool drain_over_ = false;
  bool drain_armed_ = false;
  int open_calls_ = 0;  // stops under way
  Retry retry_;         // of the watch; the output is asked for as long as we stay
  bool said_lost_ = false;

  uint32_t said_attempt_ = 0;
  std::string waiting_;  // as last told; said once it has lasted
  std::string said_waiting_;
  std::set<std::pair<uint32_t, std::string>> said_lost_output_;  // attempt, node
  int said_alarms_ = 0;                                          // so many of the job's
  int stop_signal_ = 0;
  int signals_ = 0;
  int watched_fd_ = -1;
  std::optional<int> leave_;  // exit code, without waiting for the job
};

}  // namespace dgxrun::cli

#endif  // DGXRUN_CLI_ATTACHED_H_
