#include "cli/attached.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/exit_codes.h"
#include "cli/render.h"

namespace dgxrun::cli {
namespace {

// What a job waits for is worth a line when it takes this long.
constexpr absl::Duration kWaitSaid = absl::Seconds(2);
constexpr int kPipeClosed = 128 + SIGPIPE;

}  // namespace

UniqueFd TakeSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

AttachedJob::AttachedJob(Client client, Options options, Console* console, int signal_fd)
    : client_(std::move(client)),
      options_(std::move(options)),
      console_(console),
      signal_fd_(signal_fd),
      retry_(options_.give_up) {}

absl::StatusOr<int> AttachedJob::Run(const v1::SubmitRequest& request) {
  auto reply = client_.Submit(request);
  if (!reply.ok()) return reply.status();
  job_ = reply->job_id();
  const uint32_t per_node = reply->ranks_per_node();
  console_->Notice(Layout(reply->nodes(), per_node, options_.where) + " (job " + job_ + ")");
  if (options_.say_cpu && reply->on_cpu()) {
    console_->Notice("no NVIDIA device on the PCI bus: ranks run on the CPU");
  }
  console_->ShowRanks(reply->nodes() * per_node, options_.log_all);
  StartWatch();
  StartLogs(0, {});
  return Follow();
}

int AttachedJob::Attach(const v1::JobStatus& status) {
  job_ = status.job_id();
  said_attempt_ = status.attempt();
  console_->Notice(RenderAttached(status, options_.where, absl::Now()));
  console_->ShowRanks(status.nodes_wanted() * status.ranks_per_node(), options_.log_all);
  StartWatch();
  StartHistory(status.attempt());
  return Follow();
}

int AttachedJob::Join(const v1::JobStatus& status) {
  job_ = status.job_id();
  const uint32_t per_node = status.ranks_per_node();
  console_->Notice(Layout(status.nodes_wanted(), per_node, options_.where) + " (job " + job_ + ")");
  console_->ShowRanks(status.nodes_wanted() * per_node, options_.log_all);
  StartWatch();
  StartLogs(0, {});
  return Follow();
}

int AttachedJob::Follow() {
  loop_.Watch(signal_fd_, EPOLLIN, [this](uint32_t) { OnSignals(); });
  const auto finished = [this] {
    return leave_.has_value() || (have_status_ && HasEnded(last_.state()) && (logs_complete_ || drain_over_));
  };
  while (!finished()) {
    Pump();
    loop_.RunOnce(absl::InfiniteDuration());
  }
  CloseStreams();
  console_->FinishLines();
  if (leave_.has_value()) {
    console_->Flush(/*wait=*/!console_->reader_gone());
    return *leave_;
  }
  for (const std::string& line : RenderSummary(last_)) console_->Notice(line);
  console_->Flush(/*wait=*/true);
  return ExitCode();
}

int AttachedJob::ExitCode() const {
  if (last_.state() == v1::JOB_STATE_STOPPED && stop_signal_ != 0) return 128 + stop_signal_;
  if (last_.exit_code() == kExitOk && console_->out_error() != 0) return kExitInternal;
  return last_.exit_code();
}

// Writes what can be written and watches for room where something cannot.
void AttachedJob::Pump() {
  console_->Flush(/*wait=*/false);
  if (console_->reader_gone()) ReaderGone();
  const int blocked = console_->blocked_fd();
  if (blocked != watched_fd_) {
    if (watched_fd_ >= 0) loop_.Unwatch(watched_fd_);
    if (blocked >= 0) loop_.Watch(blocked, EPOLLOUT, [](uint32_t) {});  // the next Pump writes
    watched_fd_ = blocked;
  }
  if (logs_ != nullptr) logs_->Hold(console_->waiting() > Console::kEnoughWaiting);
}

void AttachedJob::ReaderGone() {
  if (signals_ > 0 || leave_.has_value()) return;
  if (!options_.local && !options_.peers) {
    Leave(kPipeClosed);
    return;
  }
  ++signals_;
  stop_signal_ = SIGPIPE;
  RequestStop("nobody reads dgxrun's output", /*at_once=*/false);
}

void AttachedJob::OnSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    OnSignal(static_cast<int>(info.ssi_signo));
  }
}

void AttachedJob::OnSignal(int signal) {
  if (signal == SIGHUP && !options_.local && !options_.peers) {
    console_->Notice(absl::StrCat("hang-up: job ", job_, " runs on; dgxrun attach ", job_));
    Leave(128 + SIGHUP);
    return;
  }
  ++signals_;
  if (stop_signal_ == 0) stop_signal_ = signal;
  const std::string name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "hang-up";
  if (signals_ == 1) {
    console_->Notice(name + ": stopping the job and waiting for its end (once more: at once)");
    RequestStop(name, /*at_once=*/false);
  } else if (signals_ == 2) {
    console_->Notice(name + ": killing the job");
    RequestStop(name, /*at_once=*/true);
  } else {
    console_->Notice(options_.local || options_.peers ? "leaving; what is left of the job is killed"
                                                      : absl::StrCat("leaving; see dgxrun attach ", job_));
    Leave(128 + stop_signal_);
  }
}

void AttachedJob::Leave(int code) {
  if (!leave_.has_value()) leave_ = code;
}

void AttachedJob::RequestStop(const std::string& reason, bool at_once) {
  v1::StopRequest request;
  request.set_job(job_);
  request.set_reason(reason);
  request.set_has_grace(at_once);
  ++open_calls_;
  client_.StopLater(request, [this, at_once](const grpc::Status& status) {
    loop_.Post([this, at_once, status] {
      --open_calls_;
      if (status.ok()) return;
      console_->Notice(
          absl::StrCat("could not stop the job: ", std::string(client_.Explain(status).message())));
      if (options_.stop_here) StopHere(at_once);
    });
  });
}

void AttachedJob::StopHere(bool at_once) {
  console_->Notice("stopping the ranks of this node");
  ++open_calls_;
  options_.stop_here(at_once, [this] {
    loop_.Post([this] {
      --open_calls_;
      Leave(128 + stop_signal_);
    });
  });
}

void AttachedJob::StartWatch() {
  if (closing_) return;
  watch_ = std::make_unique<StreamReader<v1::JobStatus>>(
      &loop_, [this](const v1::JobStatus& status) { OnStatus(status); },
      [this](const grpc::Status& status) { OnWatchDone(status); });
  v1::WatchRequest request;
  request.set_job(job_);
  client_.StartWatch(request, watch_.get());
}

LogFollower::Options AttachedJob::LogOptions(uint32_t attempt) const {
  LogFollower::Options options;
  options.job = job_;
  options.ranks = options_.ranks;
  if (console_->only_rank_0()) options.ranks = {options.ranks.empty() ? 0 : options.ranks.front()};
  options.may_be_unknown = options_.peers;
  options.attempt = attempt;
  options.show_stdout = options_.show_output;
  options.give_up = options_.local ? absl::ZeroDuration() : absl::InfiniteDuration();
  return options;
}

// What the files of this attempt hold so far.
void AttachedJob::StartHistory(uint32_t attempt) {
  console_->BeginHistory();
  LogFollower::Options options = LogOptions(attempt);
  options.follow = false;
  // An attempt that has written nothing yet, or cannot be read: the follower that comes next says so.
  logs_ = std::make_unique<LogFollower>(
      &loop_, &client_, console_, std::move(options), [this, attempt](const absl::Status&) {
        console_->EndHistory();
        loop_.Post([this, attempt, from = logs_->reached()] { StartLogs(attempt, from); });
      });
  logs_->Start();
}

void AttachedJob::StartLogs(uint32_t attempt, std::vector<v1::LogPosition> from) {
  if (closing_) return;
  LogFollower::Options options = LogOptions(attempt);
  options.from = std::move(from);
  logs_ = std::make_unique<LogFollower>(&loop_, &client_, console_, std::move(options),
                                        [this](const absl::Status& status) { OnLogsDone(status); });
  logs_->Start();
}

void AttachedJob::OnStatus(const v1::JobStatus& status) {
  if (said_lost_) console_->Notice("the controller answers again");
  said_lost_ = false;
  retry_.Ok();
  last_ = status;
  have_status_ = true;
  if (options_.on_status) options_.on_status(status);
  SayChanges(status);
  SayLostOutput(status);
  SayAlarms(status);
  if (HasEnded(status.state()) && !drain_armed_) {
    drain_armed_ = true;
    ArmDrain();
  }
}

void AttachedJob::HearEnd(const v1::JobStatus& status) {
  loop_.Post([this, status] {
    if (closing_ || (have_status_ && HasEnded(last_.state()))) return;
    said_lost_ = false;  // whether the controller answers is of no interest any more
    OnStatus(status);
  });
}

// A reader of ours that is slow, or much output, is no reason to drop any of it.
void AttachedJob::ArmDrain() {
  const uint64_t before = logs_ != nullptr ? logs_->chunks() : 0;
  loop_.After(kDrainLimit, [this, before] {
    if ((logs_ == nullptr || logs_->chunks() == before) && console_->empty()) {
      drain_over_ = true;
    } else {
      ArmDrain();
    }
  });
}

void AttachedJob::SayChanges(const v1::JobStatus& status) {
  if (status.waiting_for() != waiting_) {
    waiting_ = status.waiting_for();
    if (!waiting_.empty()) {
      loop_.After(kWaitSaid, [this, what = waiting_] {
        if (what != waiting_ || HasEnded(last_.state()) || what == said_waiting_) return;
        console_->Notice("waits for " + what);
        said_waiting_ = what;
      });
    }
  }
  // A new attempt is said when its checkpoint is known.
  const bool known = status.state() != v1::JOB_STATE_STARTING || status.has_checkpoint();
  if (status.attempt() <= said_attempt_ || !known || !status.has_why()) return;
  said_attempt_ = status.attempt();
  if (HasEnded(status.state())) return;  // the summary says it
  console_->Notice(RenderRestart(status.why(), status));
}

// At once, since somebody may still make room; the summary has the last word.
void AttachedJob::SayLostOutput(const v1::JobStatus& status) {
  if (HasEnded(status.state())) return;
  for (const v1::JobNodeStatus& node : status.nodes()) {
    if (node.lost_output_bytes() == 0) continue;
    if (!said_lost_output_.emplace(status.attempt(), node.name()).second) continue;
    console_->Notice(RenderLost(node, /*job_ended=*/false));
  }
}

void AttachedJob::SayAlarms(const v1::JobStatus& status) {
  for (; said_alarms_ < status.alarms_size(); ++said_alarms_) {
    console_->Notice(RenderAlarm(status.alarms(said_alarms_)));
  }
}

void AttachedJob::OnWatchDone(const grpc::Status& status) {
  watch_.reset();
  if (closing_ || leave_.has_value() || (have_status_ && HasEnded(last_.state()))) return;
  const bool gone = !status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE &&
                    !(options_.peers && status.error_code() == grpc::StatusCode::NOT_FOUND);
  std::optional<absl::Duration> pause;
  if (!gone && !options_.local) pause = retry_.Failed(EventLoop::BoottimeNs());
  if (!pause.has_value()) {
    console_->Notice(absl::StrCat(
        "lost job ", job_, ": ",
        status.ok() ? "the controller ended the watch" : std::string(client_.Explain(status).message())));
    if (options_.peers)
      console_->Notice("its endpoint did not come back in time: the ranks of this node are killed");
    if (!options_.local && !options_.peers)
      console_->Notice(absl::StrCat("it may still run: dgxrun attach ", job_));
    Leave(options_.peers ? kExitUnreachable
          : status.ok()  ? kExitInternal
                         : ExitCodeOf(client_.Explain(status)));
    return;
  }
  if (!said_lost_) {
    console_->Notice(absl::StrCat(client_.where(), " is not reachable; the job runs on, trying again"));
    said_lost_ = true;
  }
  loop_.After(*pause, [this] { StartWatch(); });
}

void AttachedJob::OnLogsDone(const absl::Status& status) {
  logs_complete_ = true;
  if (status.ok() || closing_ || leave_.has_value() || drain_over_) return;
  console_->Notice(absl::StrCat("output is not shown any more: ", std::string(status.message())));
}

// gRPC's threads must be done with the streams before they go.
void AttachedJob::CloseStreams() {
  closing_ = true;
  if (watch_ != nullptr) watch_->Cancel();
  if (logs_ != nullptr) logs_->Cancel();
  const auto logs_run = [this] { return logs_ != nullptr && logs_->running(); };
  while (watch_ != nullptr || logs_run() || open_calls_ > 0) loop_.RunOnce(absl::InfiniteDuration());
  if (watched_fd_ >= 0) loop_.Unwatch(watched_fd_);
  watched_fd_ = -1;
  loop_.Unwatch(signal_fd_);
}

}  // namespace dgxrun::cli
