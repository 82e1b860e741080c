// One Logs call: tails of the nodes that hold ranks of the job, merged into one stream of chunks.
//
// One attempt at a time: its nodes (JobStatus.placements says which) are asked once their ranks have been
// started (before, they have no files), or once the attempt is over, whichever this stream hears of first;
// only when the attempt is over and each of its tails has ended is the next one asked for. So the chunks of
// an attempt all come before those of the next, and none is passed over, however short it was. Without
// `follow` there is one attempt, read as far as its files are now.
//
// A tail that breaks off is asked for again from where it was, as is the first attempt from the places that
// the request names; what was relayed and comes again (from an older agent) is dropped by its offset. A node
// that stays away is an error chunk that names it; of a node that is lost while its attempt is over nothing
// more is awaited. A node that holds nothing of an attempt is passed over. The stream ends after the last
// attempt; when nobody had anything of an attempt that one was asked for by its number, with NOT_FOUND.
// Everything but what carries the chunks runs on the loop's thread: LogsRelay is what all carriers share,
// LogsStream carries them over gRPC.
#ifndef DGXRUN_CONTROLLER_LOGS_STREAM_H_
#define DGXRUN_CONTROLLER_LOGS_STREAM_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/engine.h"
#include "controller/tail_router.h"
#include "dgxrun/v1/control.grpc.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

class LogsRelay : public TailReceiver, public std::enable_shared_from_this<LogsRelay> {
 public:
  LogsRelay(Engine* engine, TailRouter* tails, EventLoop* loop, v1::LogsRequest request)
      : engine_(engine), tails_(tails), loop_(loop), request_(std::move(request)) {}

  // Any thread, once. `caller` is who asks, or why nobody may.
  void Start(absl::StatusOr<core::Caller> caller);

  // From the carrier, on any thread. The chunk of StartSending has gone out, or never will.
  void Sent(bool ok);
  void Cancelled();  // nobody wants more; FinishSending follows
  void Release();    // the carrier is done: this object may go

  bool OnChunk(uint64_t tail, v1::OutputChunk chunk) override;
  void OnTailEnd(uint64_t tail, bool complete) override;

 private:
  // On the loop. One chunk at a time, which lives until Sent.
  virtual void StartSending(const v1::OutputChunk& chunk) = 0;
  virtual void FinishSending(const grpc::Status& status) = 0;  // once, the last call

  struct Source {
    NodeId node;
    std::string name;
    uint32_t index = 0;           // its place in the attempt
    std::vector<uint32_t> ranks;  // to ask for; empty: all
    absl::Time give_up_at = absl::InfiniteFuture();
  };
  void Begin(const absl::StatusOr<v1::JobStatus>& status);
  void OnStatus(const v1::JobStatus& status);
  bool AttemptOver() const;
  bool MayComeBack(const NodeId& node) const;
  void Advance();
  void AskNodes();
  bool WantedRanks(uint32_t node_index, std::vector<uint32_t>* ranks) const;
  void Ask(Source source);
  void RetryLater(Source source, const char* why);
  void Retry();
  void DropLost();
  void PushError(const Source& source, const std::string& why);
  void Push(v1::OutputChunk chunk);
  void WriteNext();
  void EndIfDone();
  void End(const grpc::Status& status);

  Engine* const engine_;
  TailRouter* const tails_;
  EventLoop* const loop_;
  const v1::LogsRequest request_;

  std::shared_ptr<LogsRelay> self_;  // until Release
  // On the loop.
  uint64_t watch_ = 0;
  v1::JobStatus job_;       // the last status
  uint32_t attempt_ = 0;    // whose output is being relayed
  bool all_sent_ = false;   // nothing more will be asked for
  bool any_logs_ = false;   // some node had files of some attempt, or may have had
  std::set<NodeId> lost_;   // when last heard of: lost, or fenced
  std::set<NodeId> asked_;  // for attempt_
  std::map<uint64_t, Source> flowing_;
  std::vector<Source> waiting_;  // for the node to come back
  bool retry_armed_ = false;
  std::map<std::pair<uint32_t, v1::Stream>, uint64_t> next_offset_;  // of attempt_, by rank, stream
  std::deque<v1::OutputChunk> queue_;
  size_t queued_bytes_ = 0;
  std::set<uint64_t> held_;  // tails that wait for the queue
  v1::OutputChunk out_;
  bool writing_ = false;
  bool ended_ = false;
};

class LogsStream final : public grpc::ServerWriteReactor<v1::OutputChunk>, public LogsRelay {
 public:
  using LogsRelay::LogsRelay;
  void OnWriteDone(bool ok) override { Sent(ok); }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Release(); }

 private:
  void StartSending(const v1::OutputChunk& chunk) override { StartWrite(&chunk); }
  void FinishSending(const grpc::Status& status) override { Finish(status); }
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_LOGS_STREAM_H_
