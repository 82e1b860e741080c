// Tails of ranks' log files, for the controller's TailRequests.
//
// One thread ("dgx-tail") with an event loop of its own, since a disk may hang and heartbeats must not.
// inotify on the attempt's folder says when a file has grown; nothing is polled. Per tail one chunk is on its
// way at a time, so a slow reader slows reading, not the ranks; between two chunks the files take turns. A
// file is read from the place that the request names, else from its start.
//
// A tail ends when the attempt is over (or `follow` is not set) and every file was read to its end, with a
// chunk `end` for each (rank, stream); when it is cancelled; or when its sink says that nobody listens. At
// least one chunk is always sent.
#ifndef DGXRUN_AGENT_TAIL_H_
#define DGXRUN_AGENT_TAIL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "agent/agent_core.h"
#include "agent/loop_inbox.h"
#include "dgxrun/v1/agent_link.pb.h"

namespace dgxrun::agent {

inline constexpr size_t kTailChunkBytes = 64 * 1024;  // as OutputChunk.data says
// A tail holds two descriptors per rank; the controller asks once per reader of a job.
inline constexpr size_t kMaxTails = 256;

// Where one tail's chunks go. Used on the tail thread only; destroying it before Finish cancels.
class TailSink {
 public:
  virtual ~TailSink() = default;
  // One at a time. `done` is posted to the tail's loop: false: nobody listens any more.
  virtual void Write(v1::OutputChunk chunk, std::function<void(bool ok)> done) = 0;
  virtual void Finish() = 0;  // after the last Write is done
};
using MakeTailSink = std::function<std::unique_ptr<TailSink>(std::shared_ptr<LoopInbox> loop)>;

class TailServer {
 public:
  static std::unique_ptr<TailServer> Create(std::string node_name, std::string log_root,
                                            MakeTailSink make_sink);
  virtual ~TailServer() = default;  // cancels all tails, joins the thread

  // Any thread.
  virtual void Start(v1::TailRequest request, bool ended) = 0;
  virtual void Cancel(uint64_t tail_id) = 0;
  virtual void CancelAll() = 0;  // the controller that asked is gone
  // The attempt's folder is there: tails that came too early begin.
  virtual void AttemptStarted(const AttemptKey& key) = 0;
  // Nothing of the attempt lives: what the files hold is all.
  virtual void AttemptEnded(const AttemptKey& key) = 0;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_TAIL_H_
