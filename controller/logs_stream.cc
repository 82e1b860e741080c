#include "controller/logs_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/rpc/status.h"

namespace dgxrun {
namespace {

// Of one client that reads slower than the ranks write; 16 chunks of the largest size.
constexpr size_t kMaxRelayedBytes = 1 << 20;
// An agent that was restarted is back within a second or two; longer than isolation_timeout's default.
constexpr absl::Duration kReconnectLimit = absl::Seconds(15);
constexpr absl::Duration kRetryPause = absl::Milliseconds(100);

// The nodes of an attempt; null: it was not placed.
const v1::Placement* PlacementOf(const v1::JobStatus& status, uint32_t attempt) {
  const v1::Placement* found = nullptr;
  for (const v1::Placement& placement : status.placements()) {
    if (placement.first_attempt() <= attempt) found = &placement;
  }
  return attempt <= status.attempt() ? found : nullptr;
}

bool HasStarted(const v1::JobNodeStatus& node) {
  if (!node.log_dir().empty()) return true;
  return std::any_of(node.ranks().begin(), node.ranks().end(), [](const v1::RankStatus& rank) {
    return rank.state() == v1::RANK_STATE_RUNNING || rank.state() == v1::RANK_STATE_EXITED;
  });
}

}  // namespace

void LogsRelay::Start(absl::StatusOr<core::Caller> caller) {
  self_ = shared_from_this();
  if (!caller.ok()) {
    loop_->Post([self = self_, status = caller.status()] { self->End(ToGrpc(status)); });
    return;
  }
  engine_->FindStatus(*std::move(caller), core::Verb::kReadLogs, request_.job(),
                      [self = self_, this](absl::StatusOr<v1::JobStatus> status) {
                        loop_->Post([self, status = std::move(status)] { self->Begin(status); });
                      });
}

void LogsRelay::Begin(const absl::StatusOr<v1::JobStatus>& status) {
  if (ended_) return;
  if (!status.ok()) return End(ToGrpc(status.status()));
  const uint32_t world = status->nodes_wanted() * status->ranks_per_node();
  for (uint32_t rank : request_.ranks()) {
    if (rank < world) continue;
    return End(grpc::Status(
        grpc::StatusCode::INVALID_ARGUMENT,
        absl::StrCat("job ", status->job_id(), " has ranks 0 to ", world - 1, ", no rank ", rank)));
  }
  if (request_.has_attempt() && request_.attempt() > status->attempt()) {
    return End(grpc::Status(
        grpc::StatusCode::NOT_FOUND,
        absl::StrCat("job ", status->job_id(), " has had no attempt ", request_.attempt(), " yet")));
  }
  attempt_ = request_.has_attempt() ? request_.attempt() : status->attempt();
  for (const v1::LogPosition& place : request_.from()) {
    next_offset_[{place.rank(), place.stream()}] = place.offset();
  }
  if (!request_.follow() || core::IsEnded(status->state())) return OnStatus(*status);
  std::weak_ptr<LogsRelay> weak = shared_from_this();
  watch_ = engine_->WatchJob(JobId(status->job_id()), [weak, loop = loop_](const v1::JobStatus& now) {
    loop->Post([weak, now] {
      if (std::shared_ptr<LogsRelay> self = weak.lock()) self->OnStatus(now);
    });
  });
}

void LogsRelay::OnStatus(const v1::JobStatus& status) {
  if (ended_) return;
  job_ = status;
  for (const v1::JobNodeStatus& node : status.nodes()) {
    if (node.state() == v1::NODE_STATE_LOST || node.state() == v1::NODE_STATE_FENCED) {
      lost_.insert(NodeId(node.node_id()));
    } else {
      lost_.erase(NodeId(node.node_id()));
    }
  }
  DropLost();
  Advance();
}

bool LogsRelay::AttemptOver() const {
  // A job that waits for its next attempt still shows the nodes of the last one.
  const bool between = job_.state() == v1::JOB_STATE_QUEUED && job_.nodes_size() > 0;
  return attempt_ < job_.attempt() || between || core::IsEnded(job_.state());
}

bool LogsRelay::MayComeBack(const NodeId& node) const {
  return !AttemptOver() || lost_.find(node) == lost_.end();
}

void LogsRelay::Advance() {
  while (!ended_ && !all_sent_) {
    AskNodes();
    if (!request_.follow()) {
      all_sent_ = true;
    } else if (!AttemptOver() || !flowing_.empty() || !waiting_.empty()) {
      return;
    } else if (attempt_ < job_.attempt()) {
      ++attempt_;
      asked_.clear();
      next_offset_.clear();
    } else if (core::IsEnded(job_.state())) {
      all_sent_ = true;
    } else {
      return;  // the next attempt has not been placed yet
    }
  }
  EndIfDone();
}

void LogsRelay::AskNodes() {
  const v1::Placement* placement = PlacementOf(job_, attempt_);
  if (placement == nullptr) return;
  const bool over = AttemptOver();
  uint32_t index = 0;
  for (const v1::PlacedNodeName& node : placement->nodes()) {
    Source source{NodeId(node.node_id()), node.name(), index, {}};
    if (!WantedRanks(index++, &source.ranks)) continue;
    const bool started = std::any_of(
        job_.nodes().begin(), job_.nodes().end(),
        [&node](const v1::JobNodeStatus& now) { return now.node_id() == node.node_id() && HasStarted(now); });
    if ((over || started) && asked_.insert(source.node).second) Ask(std::move(source));
  }
}

// Ranks to ask the attempt's node number `node_index` for (none: all of them); false: it has none of them.
bool LogsRelay::WantedRanks(uint32_t node_index, std::vector<uint32_t>* ranks) const {
  for (uint32_t rank : request_.ranks()) {
    if (rank / job_.ranks_per_node() == node_index) ranks->push_back(rank);
  }
  return request_.ranks().empty() || !ranks->empty();
}

void LogsRelay::Ask(Source source) {
  v1::TailRequest request;
  request.set_job_id(job_.job_id());
  request.set_attempt(attempt_);
  for (uint32_t rank : source.ranks) request.add_ranks(rank);
  // Of an attempt that is over the files are complete; the node may have forgotten the job by now.
  request.set_follow(request_.follow() && !AttemptOver());
  *request.mutable_owner() = job_.owner();
  for (const auto& [stream, offset] : next_offset_) {
    if (offset == 0 || stream.first / job_.ranks_per_node() != source.index) continue;
    v1::LogPosition* place = request.add_from();
    place->set_rank(stream.first);
    place->set_stream(stream.second);
    place->set_offset(offset);
  }
  const uint64_t tail = tails_->Open(source.node, std::move(request), weak_from_this());
  if (tail != 0) {
    flowing_[tail] = std::move(source);
  } else if (request_.follow()) {
    RetryLater(std::move(source), "is not connected");
  } else {
    PushError(source, "is not connected; its part of the output is missing");
  }
}

void LogsRelay::RetryLater(Source source, const char* why) {
  const absl::Time now = absl::FromUnixNanos(EventLoop::BoottimeNs());
  if (source.give_up_at == absl::InfiniteFuture()) source.give_up_at = now + kReconnectLimit;
  if (now >= source.give_up_at || !MayComeBack(source.node)) {
    PushError(source, absl::StrCat(why, "; its part of the output is incomplete"));
    return;
  }
  waiting_.push_back(std::move(source));
  if (retry_armed_) return;
  retry_armed_ = true;
  loop_->After(kRetryPause, [weak = weak_from_this()] {
    if (std::shared_ptr<LogsRelay> self = weak.lock()) self->Retry();
  });
}

void LogsRelay::Retry() {
  retry_armed_ = false;
  if (ended_) return;
  std::vector<Source> waiting = std::move(waiting_);
  waiting_.clear();
  for (Source& source : waiting) Ask(std::move(source));
  Advance();
}

// A connection to a node that is cut off may hang: its attempt is over, so the next one does not wait for it.
void LogsRelay::DropLost() {
  for (auto it = flowing_.begin(); it != flowing_.end();) {
    if (MayComeBack(it->second.node)) {
      ++it;
      continue;
    }
    tails_->Cancel(it->first);
    held_.erase(it->first);
    PushError(it->second, "is lost; its part of the output is incomplete");
    it = flowing_.erase(it);
  }
}

bool LogsRelay::OnChunk(uint64_t tail, v1::OutputChunk chunk) {
  auto it = flowing_.find(tail);
  if (ended_ || it == flowing_.end()) return true;
  Source& source = it->second;
  source.give_up_at = absl::InfiniteFuture();  // it is back
  if (chunk.no_logs()) return true;
  any_logs_ = true;
  if (!chunk.error().empty()) {
    PushError(source, chunk.error());
    return true;
  }
  if (chunk.stream() == v1::STREAM_UNSPECIFIED) return true;  // the folder is empty
  uint64_t& next = next_offset_[{chunk.rank(), chunk.stream()}];
  const uint64_t end = chunk.offset() + chunk.data().size();
  if (!chunk.data().empty() && chunk.offset() < next) {
    // Asked for a second time: the beginning was relayed already.
    if (end <= next) {
      chunk.clear_data();
    } else {
      chunk.mutable_data()->erase(0, next - chunk.offset());
    }
    chunk.set_offset(next);
    chunk.clear_gap();
  }
  next = std::max(next, end);
  if (chunk.data().empty() && !chunk.end() && chunk.gap() == 0) return true;
  chunk.clear_tail_id();
  chunk.set_job_id(job_.job_id());
  chunk.set_attempt(attempt_);
  chunk.set_node(source.name);
  Push(std::move(chunk));
  if (queued_bytes_ <= kMaxRelayedBytes) return true;
  held_.insert(tail);
  return false;
}

void LogsRelay::OnTailEnd(uint64_t tail, bool complete) {
  auto it = flowing_.find(tail);
  if (it == flowing_.end()) return;
  Source source = std::move(it->second);
  flowing_.erase(it);
  held_.erase(tail);
  if (ended_) return;
  if (!complete && request_.follow()) {
    RetryLater(std::move(source), "was lost");
  } else if (!complete) {
    PushError(source, "was lost; its part of the output is incomplete");
  }
  Advance();
}

void LogsRelay::PushError(const Source& source, const std::string& why) {
  any_logs_ = true;  // what is there is not known
  v1::OutputChunk chunk;
  chunk.set_job_id(job_.job_id());
  chunk.set_attempt(attempt_);
  chunk.set_node(source.name);
  chunk.set_error(absl::StrCat("node ", source.name, ": ", why));
  Push(std::move(chunk));
}

void LogsRelay::Push(v1::OutputChunk chunk) {
  queued_bytes_ += chunk.data().size();
  queue_.push_back(std::move(chunk));
  WriteNext();
}

void LogsRelay::WriteNext() {
  if (writing_ || ended_ || queue_.empty()) return;
  out_ = std::move(queue_.front());
  queue_.pop_front();
  queued_bytes_ -= out_.data().size();
  writing_ = true;
  StartSending(out_);
}

void LogsRelay::Sent(bool ok) {
  loop_->Post([self = shared_from_this(), ok] {
    self->writing_ = false;
    if (!ok) return self->End(grpc::Status::CANCELLED);
    self->WriteNext();
    if (self->queued_bytes_ <= kMaxRelayedBytes / 2) {
      for (uint64_t tail : std::exchange(self->held_, {})) self->tails_->Resume(tail);
    }
    self->EndIfDone();
  });
}

void LogsRelay::EndIfDone() {
  if (!all_sent_ || !flowing_.empty() || !waiting_.empty() || !queue_.empty() || writing_) return;
  // Who follows has been told by the status what became of an attempt that never ran.
  if (request_.follow() || any_logs_ || !AttemptOver()) return End(grpc::Status::OK);
  End(grpc::Status(grpc::StatusCode::NOT_FOUND,
                   absl::StrCat("no node has output of attempt ", attempt_, " of job ", job_.job_id())));
}

void LogsRelay::End(const grpc::Status& status) {
  if (ended_) return;
  ended_ = true;
  if (watch_ != 0) engine_->Unwatch(watch_);
  for (const auto& [tail, source] : std::exchange(flowing_, {})) tails_->Cancel(tail);
  queue_.clear();
  FinishSending(status);
}

void LogsRelay::Cancelled() {
  loop_->Post([self = shared_from_this()] { self->End(grpc::Status::CANCELLED); });
}

void LogsRelay::Release() {
  loop_->Post([self = std::move(self_)] {});
}

}  // namespace dgxrun
