// One Logs call: tails of every node that holds ranks of the job, merged into one stream of chunks.
//
// A node is asked once its ranks have been started (before, it has no files). With `follow` it goes on over
// attempts until the job has ended and every tail is complete; a tail that breaks off is asked for again and
// what was relayed already is dropped by its offset. A node that stays away is an error chunk that names it.
// Everything but gRPC's own callbacks runs on the loop's thread.
#ifndef DGXRUN_CONTROLLER_LOGS_STREAM_H_
#define DGXRUN_CONTROLLER_LOGS_STREAM_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "controller/engine.h"
#include "controller/tail_router.h"
#include "dgxrun/v1/control.grpc.pb.h"
#include "launcher/base/event_loop.h"

namespace dgxrun {

class LogsStream : public grpc::ServerWriteReactor<v1::OutputChunk>,
                   public TailReceiver,
                   public std::enable_shared_from_this<LogsStream> {
 public:
  LogsStream(Engine* engine, TailRouter* tails, EventLoop* loop, v1::LogsRequest request)
      : engine_(engine), tails_(tails), loop_(loop), request_(std::move(request)) {}

  // Any thread, once. `caller` is who asks, or why nobody may.
  void Start(absl::StatusOr<core::Caller> caller);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  bool OnChunk(uint64_t tail, v1::OutputChunk chunk) override;
  void OnTailEnd(uint64_t tail, bool complete) override;

 private:
  struct Source {
    uint32_t attempt = 0;
    NodeId node;
    std::string name;
    std::vector<uint32_t> ranks;  // to ask for; empty: all
    bool guessed = false;         // nobody said that it holds ranks of that attempt: its errors are no news
    absl::Time give_up_at = absl::InfiniteFuture();
    friend bool operator<(const Source& a, const Source& b) {
      return std::tie(a.attempt, a.node) < std::tie(b.attempt, b.node);
    }
  };
  void Begin(const absl::StatusOr<v1::JobStatus>& status);
  void OnStatus(const v1::JobStatus& status);
  void AskNodes(const v1::JobStatus& status, uint32_t attempt, bool current);
  void Ask(Source source);
  void RetryLater(Source source, const char* why);
  void Retry();
  void PushError(const Source& source, const std::string& why);
  void Push(v1::OutputChunk chunk);
  void WriteNext();
  void EndIfDone();
  void End(const grpc::Status& status);

  Engine* const engine_;
  TailRouter* const tails_;
  EventLoop* const loop_;
  const v1::LogsRequest request_;

  std::shared_ptr<LogsStream> self_;  // until OnDone
  // On the loop.
  uint64_t watch_ = 0;
  v1::JobStatus job_;           // the last status
  uint32_t first_attempt_ = 0;  // attempts before it are not asked for
  bool no_more_nodes_ = false;  // nothing will be asked for that has not been
  std::set<Source> asked_;
  std::map<uint64_t, Source> flowing_;
  std::vector<Source> waiting_;  // for the node to come back
  bool retry_armed_ = false;
  std::map<std::tuple<uint32_t, uint32_t, int>, uint64_t> next_offset_;  // by attempt, rank, stream
  std::deque<v1::OutputChunk> queue_;
  size_t queued_bytes_ = 0;
  std::set<uint64_t> held_;  // tails that wait for the queue
  v1::OutputChunk out_;
  bool writing_ = false;
  bool ended_ = false;
};

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_LOGS_STREAM_H_
