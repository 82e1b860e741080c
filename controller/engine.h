// The controller's one thread and one queue: takes inputs, runs the core on them, makes records durable,
// then performs effects, then answers. Everything that wants to see the state asks this thread.
//
// A batch is everything queued when the thread wakes (up to kMaxBatch); it shares one commit. When a
// commit fails, no effect and no answer of the batch leaves; callers get the error, the state is replayed
// from the log, and the engine goes on read-only: queries and heartbeats of connected nodes are answered (so
// that a full disk costs no job its lease), everything else is refused. It tries again each second; when a
// commit works, all streams are closed, and the nodes come back with snapshots and resend their reports.
#ifndef DGXRUN_CONTROLLER_ENGINE_H_
#define DGXRUN_CONTROLLER_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/core/core.h"

namespace dgxrun {

class RecordLog;

// Sends to nodes; called on the engine's thread only (and, before Start returns, on the caller's); must
// not block.
class NodeSink {
 public:
  virtual ~NodeSink() = default;
  virtual void Send(const core::SendToNode& message) = 0;
  virtual void CloseAll() = 0;  // ends every stream; the nodes connect again
};

struct EngineOptions {
  std::string state_dir;  // log, environment blobs; mode 0700
  bool durable = true;    // false in local mode: a tmpfs, synchronous=OFF
  core::Config config;
};

class Engine {
 public:
  // Opens and replays the log, raises the term, starts the thread. Errors name file and offset.
  static absl::StatusOr<std::unique_ptr<Engine>> Start(EngineOptions options, NodeSink* sink);
  virtual ~Engine() = default;  // drains the queue, joins the thread

  virtual void Post(core::Input input) = 0;  // any thread; `now` is stamped by the engine
  // Whether a peer that sends should wait: kMaxQueued inputs lie before the thread.
  virtual bool saturated() const = 0;
  using AnswerDone = std::function<void(const core::Answer&)>;
  // Submit, Stop and Fence: `done` is called on the engine's thread once the answer is durable.
  virtual void Submit(core::SubmitJob job, std::string environment_bytes, AnswerDone done) = 0;
  virtual void Stop(core::StopJob stop, AnswerDone done) = 0;
  virtual void Fence(core::FenceNode fence, AnswerDone done) = 0;
  // Runs `query` on the engine's thread; any thread may call.
  virtual void Query(
      std::function<void(const core::State&, const core::Contacts&, absl::Time now)> query) = 0;
  // The job that `what` names (core::FindJob), ended and archived ones included, if `caller` may do `verb`.
  using StatusDone = std::function<void(absl::StatusOr<v1::JobStatus>)>;
  virtual void FindStatus(core::Caller caller, core::Verb verb, std::string what, StatusDone done) = 0;
  // Jobs that `caller` may see, newest first, archived ones included.
  using ListDone = std::function<void(absl::StatusOr<std::vector<v1::JobStatus>>)>;
  virtual void ListJobs(core::Caller caller, size_t limit, ListDone done) = 0;
  // `changed` is called on the engine's thread after each batch that touched the job, and once at first.
  // Returns an id for Unwatch. A job that is archived answers with its last status.
  virtual uint64_t WatchJob(const JobId& job, std::function<void(const v1::JobStatus&)> changed) = 0;
  virtual void Unwatch(uint64_t id) = 0;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_ENGINE_H_
