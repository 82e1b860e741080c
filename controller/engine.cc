#include "controller/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controller/core/invariants.h"
#include "controller/environment_store.h"
#include "controller/record_log.h"
#include "launcher/base/event_loop.h"
#include "spdlog/spdlog.h"

namespace dgxrun {
namespace {

// One commit for this many inputs at most, so that the first of them does not wait for seconds.
constexpr size_t kMaxBatch = 1000;
// A burst of reports of a whole cluster; beyond it the services read no more from their peers.
constexpr size_t kMaxQueued = 65536;
// How exact a lease or a back-off is kept; a tenth of the shortest default.
constexpr absl::Duration kTick = absl::Milliseconds(250);
// How soon a full disk that has been cleared is noticed.
constexpr absl::Duration kRecoveryPause = absl::Seconds(1);

std::string RandomUuid() {
  unsigned char b[16];
  size_t have = 0;
  while (have < sizeof b) {
    const ssize_t n = getrandom(b + have, sizeof b - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  std::string text;
  for (size_t i = 0; i < sizeof b; ++i) {
    absl::StrAppendFormat(&text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
  }
  return text;
}

LogRow ToRow(const v1::Record& record) {
  return {record.term(), core::JobOfRecord(record), record.SerializeAsString()};
}

class EngineImpl : public Engine {
 public:
  EngineImpl(EngineOptions options, NodeSink* sink)
      : options_(std::move(options)),
        sink_(sink),
        environments_(options_.state_dir + "/env", options_.durable),
        wall_start_(absl::Now()),
        boot_start_ns_(EventLoop::BoottimeNs()) {}
  ~EngineImpl() override;

  absl::Status Begin();

  void Post(core::Input input) override { Enqueue({.input = std::move(input)}); }
  bool saturated() const override { return queued_.load(std::memory_order_relaxed) >= kMaxQueued; }
  void Submit(core::SubmitJob job, std::string environment_bytes, AnswerDone done) override {
    job.request = next_request_++;
    Enqueue({.input = core::Input{{}, std::move(job)},
             .environment = std::move(environment_bytes),
             .done = std::move(done)});
  }
  void Stop(core::StopJob stop, AnswerDone done) override {
    stop.request = next_request_++;
    Enqueue({.input = core::Input{{}, std::move(stop)}, .done = std::move(done)});
  }
  void Fence(core::FenceNode fence, AnswerDone done) override {
    fence.request = next_request_++;
    Enqueue({.input = core::Input{{}, std::move(fence)}, .done = std::move(done)});
  }
  void Query(std::function<void(const core::State&, const core::Contacts&, absl::Time)> query) override {
    Enqueue({.task = [this, query = std::move(query)] { query(state_, contacts_, Now()); }});
  }
  void FindStatus(core::Caller caller, core::Verb verb, std::string what, StatusDone done) override {
    Enqueue(
        {.task = [this, caller = std::move(caller), verb, what = std::move(what), done = std::move(done)] {
          absl::StatusOr<v1::JobStatus> status = Find(caller, what);
          if (status.ok()) {
            absl::Status allowed = core::Authorize(caller, verb, &status->owner());
            if (!allowed.ok()) status = allowed;
          }
          done(std::move(status));
        }});
  }
  void ListJobs(core::Caller caller, size_t limit, ListDone done) override {
    Enqueue({.task = [this, caller = std::move(caller), limit, done = std::move(done)] {
      done(List(caller, limit));
    }});
  }
  uint64_t WatchJob(const JobId& job, std::function<void(const v1::JobStatus&)> changed) override;
  void Unwatch(uint64_t id) override {
    Enqueue({.task = [this, id] { watches_.erase(id); }});
  }

 private:
  // An input (with what belongs to a Submit or Stop), or a task that looks at the state.
  struct Item {
    std::optional<core::Input> input = std::nullopt;
    std::string environment = "";
    AnswerDone done = nullptr;
    std::function<void()> task = nullptr;
  };
  struct Watch {
    JobId job;
    std::function<void(const v1::JobStatus&)> changed;
    std::string last;  // serialized status that it was told last
  };
  // What the inputs of one commit have led to.
  struct Batch {
    std::vector<LogRow> rows;
    std::vector<core::Answer> answers;
    core::Scope scope;
  };

  absl::Time Now() const { return wall_start_ + absl::Nanoseconds(EventLoop::BoottimeNs() - boot_start_ns_); }
  void Enqueue(Item item);
  void Run();
  std::deque<Item> Wait(bool* stop);

  absl::Status Replay();
  absl::Status StartController();
  void Handle(std::deque<Item> items);
  void HandleInput(Item& item, Batch* batch);
  void HandleReadOnly(const Item& item);
  void Commit(Batch batch);
  void CommitFailed(const Batch& batch, absl::Status status);
  void TryRecovery();
  void Perform(const std::vector<core::Effect>& effects);
  void Archive(const JobId& job);
  void Give(const core::Answer& answer);
  void Refuse(const core::Input& input, const absl::Status& status);
  void TellWatches(const core::Scope& scope);
  absl::StatusOr<v1::JobStatus> Find(const core::Caller& caller, const std::string& what);
  absl::StatusOr<std::optional<ArchivedJob>> FindArchived(const core::Caller& caller,
                                                          const std::string& what);
  absl::StatusOr<std::vector<v1::JobStatus>> List(const core::Caller& caller, size_t limit);

  const EngineOptions options_;
  NodeSink* const sink_;
  const EnvironmentStore environments_;
  const absl::Time wall_start_;
  const int64_t boot_start_ns_;

  // Owned by the engine's thread (by Begin before it starts).
  std::unique_ptr<RecordLog> log_;
  core::State state_;
  core::Contacts contacts_;
  std::map<core::RequestId, AnswerDone> waiting_;
  std::map<uint64_t, Watch> watches_;
  absl::Status failure_;  // not OK: read-only
  absl::Time next_recovery_;
  absl::Time next_tick_;

  std::atomic<core::RequestId> next_request_{1};
  std::atomic<uint64_t> next_watch_{1};
  std::atomic<size_t> queued_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;  // under mutex_
  bool stop_ = false;       // under mutex_
  std::thread thread_;
};

absl::Status EngineImpl::Begin() {
  std::error_code error;
  std::filesystem::create_directories(options_.state_dir, error);
  if (error || chmod(options_.state_dir.c_str(), 0700) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        options_.state_dir, ": cannot be made private: ", error ? error.message() : strerror(errno),
        "; set [controller] state_dir to a folder of this account"));
  }
  absl::StatusOr<std::unique_ptr<RecordLog>> log =
      RecordLog::Open(options_.state_dir + "/log.db", options_.durable);
  if (!log.ok()) return log.status();
  log_ = *std::move(log);
  if (const std::string cut = log_->CutTail(); !cut.empty()) spdlog::warn("controller: {}", cut);
  absl::Status status = environments_.MakeFolder();
  if (status.ok()) status = Replay();
  if (status.ok()) status = StartController();
  if (!status.ok()) return status;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "engine");
    Run();
  });
  return absl::OkStatus();
}

absl::Status EngineImpl::Replay() {
  state_ = core::State();
  contacts_ = core::Contacts();
  contacts_.config = options_.config;
  absl::Status status = log_->Replay([this](const LogRow& row) -> absl::Status {
    v1::Record record;
    if (!record.ParseFromString(row.bytes)) return absl::DataLossError("is no record");
    core::Apply(&state_, record);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  status = core::CheckInvariants(state_);
  if (!status.ok()) {
    return absl::DataLossError(
        absl::StrCat(options_.state_dir, "/log.db: replays to an impossible state: ", status.message()));
  }
  std::set<JobId> living;
  for (const auto& [id, job] : state_.jobs) {
    if (job->phase != core::Job::Phase::kEnded) living.insert(id);
  }
  environments_.DeleteAllBut(living);
  return absl::OkStatus();
}

absl::Status EngineImpl::StartController() {
  const core::Input input{Now(), core::ControllerStarted{RandomUuid()}};
  core::Observe(&contacts_, state_, input);
  const core::Decision decision = core::Decide(state_, contacts_, input);
  std::vector<LogRow> rows;
  for (const v1::Record& record : decision.records) rows.push_back(ToRow(record));
  absl::Status status = log_->Append(rows);
  if (!status.ok()) return status;
  for (const v1::Record& record : decision.records) core::Apply(&state_, record);
  next_tick_ = Now() + kTick;
  core::Scope scope;
  scope.everything = true;
  TellWatches(scope);
  Perform(core::Reconcile(state_, contacts_, scope));
  return absl::OkStatus();
}

EngineImpl::~EngineImpl() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineImpl::Enqueue(Item item) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(item));
    queued_.store(queue_.size(), std::memory_order_relaxed);
  }
  wake_.notify_one();
}

// Up to kMaxBatch items; empty when a timer is due, or at the end.
std::deque<EngineImpl::Item> EngineImpl::Wait(bool* stop) {
  // Nothing can become due by time alone while there is neither node nor job.
  const bool timed = !failure_.ok() || !state_.nodes.empty() || !state_.jobs.empty();
  const absl::Duration left = (failure_.ok() ? next_tick_ : next_recovery_) - Now();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return !queue_.empty() || stop_; };
  if (!timed) {
    wake_.wait(lock, ready);
  } else if (left > absl::ZeroDuration()) {
    wake_.wait_for(lock, absl::ToChronoNanoseconds(left), ready);
  }
  std::deque<Item> items;
  if (queue_.size() <= kMaxBatch) {
    items.swap(queue_);
  } else {
    for (size_t i = 0; i < kMaxBatch; ++i) {
      items.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  queued_.store(queue_.size(), std::memory_order_relaxed);
  *stop = stop_ && items.empty();
  return items;
}

void EngineImpl::Run() {
  while (true) {
    bool stop = false;
    std::deque<Item> items = Wait(&stop);
    if (stop) return;
    if (!failure_.ok()) {
      if (Now() >= next_recovery_) TryRecovery();
    } else if (Now() >= next_tick_) {
      items.push_back({.input = core::Input{{}, core::Tick{}}});
      next_tick_ = Now() + kTick;
    }
    Handle(std::move(items));
  }
}

void EngineImpl::Handle(std::deque<Item> items) {
  Batch batch;
  for (Item& item : items) {
    if (!item.input.has_value()) continue;
    if (failure_.ok()) {
      HandleInput(item, &batch);
    } else {
      HandleReadOnly(item);
    }
  }
  if (failure_.ok()) Commit(std::move(batch));
  // Only now: a question must not see what is not durable.
  for (Item& item : items) {
    if (item.task) item.task();
  }
}

void EngineImpl::HandleInput(Item& item, Batch* batch) {
  core::Input& input = *item.input;
  input.now = Now();
  const auto* submit = std::get_if<core::SubmitJob>(&input.body);
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { body.request; }) waiting_[body.request] = std::move(item.done);
      },
      input.body);
  if (submit != nullptr && !submit->key.empty()) {
    // The core remembers the keys of the newest archived jobs only.
    absl::StatusOr<std::optional<ArchivedJob>> known = log_->ArchivedByKey(submit->caller.uid, submit->key);
    if (!known.ok() || known->has_value()) {
      batch->answers.push_back({submit->request, known.status(), known.ok() ? (*known)->id : JobId()});
      return;
    }
  }
  core::Observe(&contacts_, state_, input);
  core::Decision decision = core::Decide(state_, contacts_, input);
  if (submit != nullptr) {
    for (const v1::Record& record : decision.records) {
      if (!record.has_job_submitted()) continue;
      absl::Status status = environments_.Write(JobId(record.job_submitted().job_id()), item.environment);
      if (status.ok()) continue;
      batch->answers.push_back({submit->request, status, JobId()});
      return;  // nothing was applied: the job does not exist
    }
  }
  for (const v1::Record& record : decision.records) {
    batch->rows.push_back(ToRow(record));
    core::Apply(&state_, record);
  }
  core::Scope scope = core::Touched(state_, input, decision.records);
  batch->scope.everything |= scope.everything;
  batch->scope.jobs.insert(batch->scope.jobs.end(), scope.jobs.begin(), scope.jobs.end());
  batch->scope.nodes.insert(batch->scope.nodes.end(), scope.nodes.begin(), scope.nodes.end());
  for (core::Answer& answer : decision.answers) batch->answers.push_back(std::move(answer));
}

void EngineImpl::Commit(Batch batch) {
  absl::Status status = log_->Append(batch.rows);
  if (!status.ok()) return CommitFailed(batch, std::move(status));
#ifndef NDEBUG
  if (!batch.rows.empty()) {
    absl::Status sound = core::CheckInvariants(state_);
    if (!sound.ok()) {
      spdlog::critical("controller: invariant broken: {}", std::string(sound.message()));
      abort();
    }
  }
#endif
  auto unique = [](auto& ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  };
  unique(batch.scope.jobs);
  unique(batch.scope.nodes);
  // Before the effects: one of them may archive a job that has just ended.
  TellWatches(batch.scope);
  Perform(core::Reconcile(state_, contacts_, batch.scope));
  for (const core::Answer& answer : batch.answers) Give(answer);
}

void EngineImpl::CommitFailed(const Batch& batch, absl::Status status) {
  spdlog::error("controller: {}; read-only until it can be written again", std::string(status.message()));
  failure_ = status;
  for (const core::Answer& answer : batch.answers) Give({answer.request, status, JobId()});
  next_recovery_ = Now() + kRecoveryPause;
  absl::Status replayed = Replay();
  if (!replayed.ok()) spdlog::error("controller: {}", std::string(replayed.message()));
}

void EngineImpl::TryRecovery() {
  next_recovery_ = Now() + kRecoveryPause;
  absl::Status status = Replay();
  if (status.ok()) status = StartController();
  if (!status.ok()) {
    failure_ = status;
    return;
  }
  failure_ = absl::OkStatus();
  spdlog::info("controller: the log can be written again");
  sink_->CloseAll();
}

void EngineImpl::HandleReadOnly(const Item& item) {
  const core::Input& input = *item.input;
  if (const auto* heartbeat = std::get_if<core::NodeHeartbeat>(&input.body)) {
    core::SendToNode answer{core::SendToNode::Kind::kHeartbeatAnswer, heartbeat->node, heartbeat->connection};
    answer.message.mutable_answer()->set_number(heartbeat->heartbeat.number());
    sink_->Send(answer);
  } else if (const auto* hello = std::get_if<core::NodeConnected>(&input.body)) {
    core::SendToNode refuse{core::SendToNode::Kind::kRefuse, NodeId(hello->hello.node_id()),
                            hello->connection};
    refuse.message.mutable_refused()->set_reason(std::string(failure_.message()));
    sink_->Send(refuse);
  } else if (item.done) {
    item.done({0, failure_, JobId()});
  }
  // Reports, disconnects and ticks are dropped: nodes resend when the streams are closed at the recovery.
}

void EngineImpl::Perform(const std::vector<core::Effect>& effects) {
  for (const core::Effect& effect : effects) {
    if (const auto* send = std::get_if<core::SendToNode>(&effect)) {
      sink_->Send(*send);
    } else if (const auto* environment = std::get_if<core::DeleteEnvironment>(&effect)) {
      environments_.Delete(environment->job);
    } else if (const auto* archive = std::get_if<core::ArchiveJob>(&effect)) {
      Archive(archive->job);
    }
  }
}

void EngineImpl::Archive(const JobId& id) {
  const core::Job* job = core::FindJobById(state_, id);
  if (job == nullptr) return;
  const v1::JobStatus status = core::DescribeJob(state_, contacts_, id, Now());
  const v1::Record last = core::ArchivedRecord(state_, id, Now());
  ArchivedJob archived;
  archived.id = id;
  archived.number = job->number;
  archived.name = job->spec.name();
  archived.owner_uid = job->spec.owner().uid();
  archived.key = job->key;
  archived.status = status.SerializeAsString();
  archived.ended_unix_ns = status.ended_unix_ns();
  absl::Status kept = log_->Archive(archived, ToRow(last), core::kMaxArchivedKeys);
  if (!kept.ok()) {
    // Nothing is lost: the job stays in the log, and the next Reconcile asks again.
    spdlog::warn("controller: job {} cannot be archived yet: {}", id.str(), std::string(kept.message()));
    return;
  }
  core::Apply(&state_, last);
}

void EngineImpl::Give(const core::Answer& answer) {
  auto it = waiting_.find(answer.request);
  if (it == waiting_.end()) return;
  AnswerDone done = std::move(it->second);
  waiting_.erase(it);
  if (done) done(answer);
}

uint64_t EngineImpl::WatchJob(const JobId& job, std::function<void(const v1::JobStatus&)> changed) {
  const uint64_t id = next_watch_++;
  Enqueue({.task = [this, id, job, changed = std::move(changed)] {
    if (core::FindJobById(state_, job) != nullptr) {
      const v1::JobStatus status = core::DescribeJob(state_, contacts_, job, Now());
      watches_[id] = {job, changed, status.SerializeAsString()};
      changed(status);
      return;
    }
    absl::StatusOr<std::optional<ArchivedJob>> archived = log_->ArchivedById(job);
    v1::JobStatus status;
    if (archived.ok() && archived->has_value() && status.ParseFromString((*archived)->status))
      changed(status);
  }});
  return id;
}

void EngineImpl::TellWatches(const core::Scope& scope) {
  for (auto& [id, watch] : watches_) {
    const bool touched =
        scope.everything || std::binary_search(scope.jobs.begin(), scope.jobs.end(), watch.job);
    if (!touched || core::FindJobById(state_, watch.job) == nullptr) continue;
    const v1::JobStatus status = core::DescribeJob(state_, contacts_, watch.job, Now());
    std::string bytes = status.SerializeAsString();
    if (bytes == watch.last) continue;
    watch.last = std::move(bytes);
    watch.changed(status);
  }
}

absl::StatusOr<std::optional<ArchivedJob>> EngineImpl::FindArchived(const core::Caller& caller,
                                                                    const std::string& what) {
  if (what.empty()) {
    absl::StatusOr<std::vector<ArchivedJob>> newest = log_->NewestArchived(caller.uid, 1);
    if (!newest.ok()) return newest.status();
    if (newest->empty()) return std::optional<ArchivedJob>();
    return std::optional<ArchivedJob>(std::move(newest->front()));
  }
  absl::StatusOr<std::optional<ArchivedJob>> by_id = log_->ArchivedById(JobId(what));
  if (!by_id.ok() || by_id->has_value()) return by_id;
  return log_->ArchivedByName(what);
}

absl::StatusOr<v1::JobStatus> EngineImpl::Find(const core::Caller& caller, const std::string& what) {
  absl::StatusOr<JobId> living = core::FindJob(state_, caller, what);
  if (living.ok() && living->str() == what) return core::DescribeJob(state_, contacts_, *living, Now());
  absl::StatusOr<std::optional<ArchivedJob>> archived = FindArchived(caller, what);
  if (!archived.ok()) return archived.status();
  if (!archived->has_value() && !living.ok()) return living.status();
  // By name, or the newest: numbers rise with time, so the higher one is the newer job.
  if (living.ok()) {
    const core::Job* job = core::FindJobById(state_, *living);
    if (!archived->has_value() || (job->number > (*archived)->number && (*archived)->id.str() != what)) {
      return core::DescribeJob(state_, contacts_, *living, Now());
    }
  }
  v1::JobStatus status;
  if (!status.ParseFromString((*archived)->status)) {
    return absl::DataLossError(
        absl::StrCat("the archived status of job ", (*archived)->id.str(), " is damaged"));
  }
  return status;
}

absl::StatusOr<std::vector<v1::JobStatus>> EngineImpl::List(const core::Caller& caller, size_t limit) {
  std::vector<const core::Job*> living;
  for (const auto& [id, job] : state_.jobs) living.push_back(&*job);
  absl::StatusOr<std::vector<ArchivedJob>> archived =
      log_->NewestArchived(caller.admin ? std::nullopt : std::optional<uint32_t>(caller.uid), limit);
  if (!archived.ok()) return archived.status();
  std::vector<std::pair<uint64_t, v1::JobStatus>> all;
  for (const core::Job* job : living) {
    if (!core::Authorize(caller, core::Verb::kSee, &job->spec.owner()).ok()) continue;
    all.emplace_back(job->number, core::DescribeJob(state_, contacts_, job->id, Now()));
  }
  for (const ArchivedJob& job : *archived) {
    v1::JobStatus status;
    if (status.ParseFromString(job.status)) all.emplace_back(job.number, std::move(status));
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (all.size() > limit) all.resize(limit);
  std::vector<v1::JobStatus> statuses;
  for (auto& [number, status] : all) statuses.push_back(std::move(status));
  return statuses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(EngineOptions options, NodeSink* sink) {
  auto engine = std::make_unique<EngineImpl>(std::move(options), sink);
  absl::Status status = engine->Begin();
  if (!status.ok()) return status;
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace dgxrun
