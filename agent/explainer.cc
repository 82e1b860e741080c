#include "agent/explainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rank_output.h"

namespace dgxrun::agent {
namespace {

bool Failed(const v1::RankReport& rank) {
  return rank.state() == v1::RANK_STATE_EXITED && rank.exit().code() != 0;
}

bool NeedsWhy(const v1::ShimEvent& event) {
  if (event.has_exited()) return Failed(event.exited());
  if (!event.has_gone()) return false;
  for (const v1::RankReport& rank : event.gone().ranks()) {
    if (Failed(rank)) return true;
  }
  return false;
}
bool NeedsWhy(const v1::ShimMsg& message) { return message.has_event() && NeedsWhy(message.event()); }
bool NeedsWhy(const v1::ShimFinal& final) {
  for (const v1::ShimEvent& event : final.events()) {
    if (NeedsWhy(event)) return true;
  }
  return false;
}

void AddWhy(const std::string& root, const std::string& folder, v1::ShimEvent* event) {
  if (event->has_exited() && Failed(event->exited())) ExplainExit(root, folder, event->mutable_exited());
  if (!event->has_gone()) return;
  for (v1::RankReport& rank : *event->mutable_gone()->mutable_ranks()) {
    if (Failed(rank)) ExplainExit(root, folder, &rank);
  }
}
void AddWhy(const std::string& root, const std::string& folder, v1::ShimMsg* message) {
  AddWhy(root, folder, message->mutable_event());
}
void AddWhy(const std::string& root, const std::string& folder, v1::ShimFinal* final) {
  for (v1::ShimEvent& event : *final->mutable_events()) AddWhy(root, folder, &event);
}

}  // namespace

Explainer::Explainer(EventLoop* loop, FileTasks* tasks, std::string log_root,
                     std::function<void(const AttemptKey&, v1::ShimMsg)> on_message,
                     std::function<void(v1::ShimFinal)> on_final)
    : loop_(loop),
      tasks_(tasks),
      log_root_(std::move(log_root)),
      on_message_(std::move(on_message)),
      on_final_(std::move(on_final)) {}

template <class Message>
void Explainer::Explain(const AttemptKey& key, const Message& plain, std::function<void(Message)> then) {
  struct Once {
    std::function<void(Message)> then;  // null: was called
    EventLoop::TimerId limit = 0;
  };
  auto once = std::make_shared<Once>();
  once->then = std::move(then);
  const auto answer = [loop = loop_, once](Message message) {
    if (once->then == nullptr) return;
    loop->Cancel(once->limit);
    std::exchange(once->then, nullptr)(std::move(message));
  };
  once->limit = loop_->After(kLimit, [answer, plain] { answer(plain); });
  const std::string folder = absl::StrCat(key.job.str(), "/attempt_", key.attempt.value());
  const bool running =
      tasks_->Run([answer, root = log_root_, folder, message = plain]() -> std::function<void()> {
        Message explained = message;
        AddWhy(root, folder, &explained);
        return [answer, explained] { answer(explained); };
      });
  if (!running) answer(plain);
}

void Explainer::Pass(const AttemptKey& key, v1::ShimMsg message) {
  auto it = waiting_.find(key);
  if (!NeedsWhy(message)) {
    if (it == waiting_.end()) return on_message_(key, std::move(message));
    it->second.push_back({std::move(message), /*ready=*/true, next_number_++});
    return;
  }
  const uint64_t number = next_number_++;
  waiting_[key].push_back({v1::ShimMsg(), /*ready=*/false, number});
  Explain<v1::ShimMsg>(
      key, message, [this, key, number](v1::ShimMsg explained) { Ready(key, number, std::move(explained)); });
}

void Explainer::Ready(const AttemptKey& key, uint64_t number, v1::ShimMsg message) {
  auto it = waiting_.find(key);
  if (it == waiting_.end()) return;  // dropped meanwhile
  for (Waiting& waiting : it->second) {
    if (waiting.number != number) continue;
    waiting.message = std::move(message);
    waiting.ready = true;
    break;
  }
  Flush(key);
}

void Explainer::Flush(const AttemptKey& key) {
  // on_message_ may drop the attempt.
  for (auto it = waiting_.find(key); it != waiting_.end() && it->second.front().ready;
       it = waiting_.find(key)) {
    v1::ShimMsg message = std::move(it->second.front().message);
    it->second.pop_front();
    if (it->second.empty()) waiting_.erase(it);
    on_message_(key, std::move(message));
  }
}

void Explainer::Drop(const AttemptKey& key) { waiting_.erase(key); }

void Explainer::Pass(v1::ShimFinal final) {
  if (!NeedsWhy(final) || !IsValidName(final.job_id())) return on_final_(std::move(final));
  const AttemptKey key{JobId(final.job_id()), AttemptNo(final.attempt())};
  Explain<v1::ShimFinal>(key, final, [this](v1::ShimFinal explained) { on_final_(std::move(explained)); });
}

void Explainer::Finals(std::vector<v1::ShimFinal> finals, std::function<void()> done) {
  if (finals.empty()) return done();
  v1::ShimFinal next = std::move(finals.back());
  finals.pop_back();
  const AttemptKey key{JobId(next.job_id()), AttemptNo(next.attempt())};
  const auto then = [this, finals = std::move(finals), done = std::move(done)](v1::ShimFinal explained) {
    on_final_(std::move(explained));
    Finals(finals, done);
  };
  if (!NeedsWhy(next) || !IsValidName(next.job_id())) return then(std::move(next));
  Explain<v1::ShimFinal>(key, next, then);
}

}  // namespace dgxrun::agent
