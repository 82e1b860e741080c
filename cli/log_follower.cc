#include "cli/log_follower.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dgxrun::cli {
namespace {

// A call that lasted this long had reached a controller, even if its job was silent: longer than one try to
// connect (10 s in proto/rpc/credentials.cc).
constexpr absl::Duration kHadReached = absl::Seconds(15);

}  // namespace

std::optional<absl::Duration> Retry::Failed(int64_t now_ns) {
  if (!since_ns_.has_value()) since_ns_ = now_ns;
  if (absl::Nanoseconds(now_ns - *since_ns_) >= limit_) return std::nullopt;
  return std::exchange(pause_, std::min(pause_ * 2, kLastRetry));
}

void Retry::Ok() {
  since_ns_.reset();
  pause_ = kFirstRetry;
}

LogFollower::LogFollower(EventLoop* loop, Client* client, Console* console, Options options,
                         std::function<void(const absl::Status&)> done)
    : loop_(loop),
      client_(client),
      console_(console),
      options_(std::move(options)),
      done_(std::move(done)),
      retry_(options_.give_up) {
  for (const v1::LogPosition& place : options_.from) next_[{place.rank(), place.stream()}] = place.offset();
}

std::vector<v1::LogPosition> LogFollower::reached() const {
  std::vector<v1::LogPosition> places;
  for (const auto& [source, offset] : next_) {
    v1::LogPosition place;
    place.set_rank(source.first);
    place.set_stream(source.second);
    place.set_offset(offset);
    places.push_back(std::move(place));
  }
  return places;
}

void LogFollower::Start() { Call(); }

void LogFollower::Call() {
  timer_ = 0;
  called_ns_ = EventLoop::BoottimeNs();
  reader_ = std::make_unique<StreamReader<v1::OutputChunk>>(
      loop_, [this](const v1::OutputChunk& chunk) { OnChunk(chunk); },
      [this](const grpc::Status& status) { OnDone(status); });
  v1::LogsRequest request;
  request.set_job(options_.job);
  for (const uint32_t rank : options_.ranks) request.add_ranks(rank);
  request.set_follow(options_.follow);
  const std::optional<uint32_t> attempt = seen_.has_value() ? seen_ : options_.attempt;
  request.set_has_attempt(attempt.has_value());
  request.set_attempt(attempt.value_or(0));
  if (attempt.has_value()) {
    for (v1::LogPosition& place : reached()) *request.add_from() = std::move(place);
  }
  reader_->Hold(held_);
  client_->StartLogs(request, reader_.get());
}

void LogFollower::Hold(bool hold) {
  held_ = hold;
  if (reader_ != nullptr) reader_->Hold(hold);
}

void LogFollower::Cancel() {
  cancelled_ = true;
  loop_->Cancel(timer_);
  timer_ = 0;
  if (reader_ == nullptr) return;
  Hold(false);  // what waits is shown; its end may come with it
  if (reader_ != nullptr) reader_->Cancel();
}

void LogFollower::OnChunk(const v1::OutputChunk& chunk) {
  if (said_lost_) console_->Notice("the controller answers again");
  said_lost_ = false;
  retry_.Ok();
  ++chunks_;
  const uint32_t before = seen_.value_or(options_.attempt.value_or(chunk.attempt()));
  if (chunk.attempt() > before) next_.clear();
  seen_ = std::max(before, chunk.attempt());
  if (chunk.stream() != v1::STREAM_UNSPECIFIED && chunk.attempt() == *seen_) {
    uint64_t& next = next_[{chunk.rank(), chunk.stream()}];
    next = std::max<uint64_t>(next, chunk.offset() + chunk.data().size());
  }
  if (options_.show_stdout || chunk.stream() == v1::STREAM_STDERR) console_->OnChunk(chunk);
}

void LogFollower::OnDone(const grpc::Status& status) {
  reader_.reset();
  if (cancelled_) return;
  if (status.ok()) return End(absl::OkStatus());
  const int64_t now = EventLoop::BoottimeNs();
  if (absl::Nanoseconds(now - called_ns_) > kHadReached) retry_.Ok();
  std::optional<absl::Duration> pause;
  const bool away = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    (options_.may_be_unknown && status.error_code() == grpc::StatusCode::NOT_FOUND);
  if (away) pause = retry_.Failed(now);
  if (!pause.has_value()) return End(client_->Explain(status));
  if (options_.say_lost && !said_lost_) {
    console_->Notice(absl::StrCat(client_->where(), " is not reachable; trying again for ",
                                  absl::FormatDuration(options_.give_up)));
    said_lost_ = true;
  }
  timer_ = loop_->After(*pause, [this] { Call(); });
}

void LogFollower::End(const absl::Status& status) {
  const std::function<void(const absl::Status&)> done = std::exchange(done_, nullptr);
  if (done) done(status);
}

}  // namespace dgxrun::cli
