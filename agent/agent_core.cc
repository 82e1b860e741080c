// The link, reports and leases; what concerns attempts is in agent_core_attempt.cc.
#include "agent/agent_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire_rule.h"

namespace dgxrun::agent {
namespace {

constexpr int64_t kNsPerMs = 1000000;

}  // namespace

AgentCore::AgentCore(AgentCoreOptions options, StoredState stored)
    : options_(std::move(options)),
      cluster_id_(stored.cluster_id),
      term_(stored.term),
      capsules_(std::move(stored.capsules)),
      reports_(stored.reports, stored.last_report),
      committee_(std::move(stored.committee)) {
  if (committee_.boot_id != options_.boot_id) committee_.orphan_since_ns = 0;  // of another clock
  isolation_ns_ = committee_.isolation_ns;
  if (cluster_id_.empty()) cluster_id_ = options_.expected_cluster_id;
  for (const auto& [id, kept] : stored.jobs) {
    jobs_[id].stored = kept;
    if (kept.tombstone >= kept.launched) forgotten_.push_back(id);
  }
  // What ended unreported belongs into the snapshot.
  for (const v1::Report& report : reports_.unacked()) {
    if (!report.has_gone()) continue;
    Attempt& attempt = attempts_[{JobId(report.job_id()), AttemptNo(report.attempt())}];
    attempt.phase = v1::ATTEMPT_PHASE_GONE;
    attempt.gone_report = report.number();
    if (options_.offer) attempt.gone = report.gone();
    for (const v1::RankReport& rank : report.gone().ranks()) attempt.ranks[rank.rank()] = rank;
  }
}

Actions AgentCore::Handle(const Input& input) {
  Actions out;
  now_ns_ = input.now_ns;
  if (started_ns_ == 0) started_ns_ = now_ns_;
  std::visit([&](const auto& body) { On(body, input.now_ns, &out); }, input.body);
  return out;
}

// ---- Link ----

void AgentCore::On(const LinkUp&, int64_t now_ns, Actions* out) {
  link_ = Link::kHelloSent;
  hello_sent_ns_ = now_ns;
  heartbeat_ = 0;
  last_answer_ = 0;
  unanswered_.clear();
  // Whoever listens now may know nothing of it.
  for (auto& [key, attempt] : attempts_)
    attempt.progress_is_news = attempt.progress.has_step() || attempt.progress.checkpoints_size() > 0;
  v1::AgentMsg message;
  v1::Hello* hello = message.mutable_hello();
  *hello->mutable_version() = options_.version;
  hello->set_node_id(options_.node_id.str());
  hello->set_node_name(options_.node_name);
  hello->set_boot_id(options_.boot_id);
  hello->set_cluster_id(cluster_id_);
  hello->set_term(term_);
  *hello->mutable_inventory() = options_.inventory;
  *hello->mutable_snapshot() = MakeSnapshot();
  hello->set_oldest_unacked_report(reports_.oldest());
  for (uint32_t port : free_ports_) hello->add_free_ports(port);
  hello->set_agent_user(options_.agent_user);
  hello->set_witness_port(options_.witness_port);
  hello->set_witness_path(options_.witness_path);
  if (committee_.committee.number() > 0) *hello->mutable_committee() = committee_.committee;
  if (options_.offer) *hello->mutable_offer() = *options_.offer;
  for (const auto& [job, capsule] : capsules_) {
    if (Lives({job, AttemptNo(capsule.attempt())})) *hello->add_capsules() = capsule;
  }
  out->push_back(Send{std::move(message)});
}

void AgentCore::On(const LinkDown&, int64_t, Actions*) {
  link_ = Link::kDown;
  unanswered_.clear();
}

void AgentCore::On(const PortsFree& input, int64_t, Actions*) { free_ports_ = input.ports; }

void AgentCore::On(const HeartbeatDue&, int64_t now_ns, Actions* out) {
  if (link_ != Link::kWelcomed) return;  // the timer may run once more after a LinkDown
  SendHeartbeat(now_ns, out);
}

void AgentCore::SendHeartbeat(int64_t now_ns, Actions* out) {
  v1::AgentMsg message;
  v1::Heartbeat* heartbeat = message.mutable_heartbeat();
  heartbeat->set_number(++heartbeat_);
  heartbeat->set_last_answer(last_answer_);
  heartbeat->set_committee(committee_.committee.number());
  for (uint32_t port : free_ports_) heartbeat->add_free_ports(port);
  for (auto& [key, attempt] : attempts_) {
    if (!std::exchange(attempt.progress_is_news, false)) continue;
    v1::AttemptProgress* progress = heartbeat->add_progress();
    *progress = attempt.progress;
    attempt.progress.clear_removed();  // news once: the same name may be saved again
    progress->set_job_id(key.job.str());
    progress->set_attempt(key.attempt.value());
  }
  unanswered_.emplace_back(heartbeat_, now_ns);
  if (unanswered_.size() > kMaxUnanswered) unanswered_.pop_front();
  out->push_back(Send{std::move(message)});
}

void AgentCore::On(const FromController& input, int64_t, Actions* out) {
  const v1::ControllerMsg& message = input.message;
  using Body = v1::ControllerMsg::BodyCase;
  const bool opening = message.body_case() == Body::kWelcome || message.body_case() == Body::kRefused;
  // A controller that has just adopted the job of its nodes says who it is now.
  const bool again = link_ == Link::kWelcomed && message.has_welcome() && message.welcome().peers();
  if (again) return OnNewTerm(message.welcome(), out);
  if (link_ != (opening ? Link::kHelloSent : Link::kWelcomed)) {
    out->push_back(Note{absl::StrCat("message ", static_cast<int>(message.body_case()),
                                     " of the controller came out of turn and was ignored")});
    return;
  }
  switch (message.body_case()) {
    case Body::kWelcome:
      return OnWelcome(message.welcome(), out);
    case Body::kRefused:
      return OnRefused(message.refused(), out);
    case Body::kAnswer:
      return OnAnswer(message.answer(), out);
    case Body::kPrepare:
      return OnPrepare(message.prepare(), out);
    case Body::kLaunch:
      return OnLaunch(message.launch(), out);
    case Body::kStop:
      return OnStop(message.stop(), out);
    case Body::kForget:
      return OnForget(message.forget(), out);
    case Body::kTail:
      return OnTail(message.tail(), out);
    case Body::kTailCancel:
      out->push_back(CancelTail{message.tail_cancel().tail_id()});
      return;
    case Body::kAck:
      return OnAck(message.ack(), out);
    case Body::kCommittee:
      return OnCommittee(message.committee(), out);
    case Body::kRemove:
      return OnRemove(message.remove(), out);
    case Body::BODY_NOT_SET:  // a newer controller's message: the minor versions allow it to be skipped
      out->push_back(Note{"the controller sent a message that this version does not know"});
      return;
  }
}

bool AgentCore::ChangesCluster(const v1::Welcome& welcome) const {
  return options_.offer.has_value() && welcome.peers() && welcome.cluster_id() != cluster_id_ &&
         !AnythingLives();
}

void AgentCore::OnNewTerm(const v1::Welcome& welcome, Actions* out) {
  const bool same = welcome.cluster_id() == cluster_id_ && welcome.term() >= term_;
  if (!same && !ChangesCluster(welcome)) {
    link_ = Link::kRefused;
    out->push_back(CloseLink{"the controller became another cluster's while ranks live here", false});
    return;
  }
  cluster_id_ = welcome.cluster_id();
  term_ = welcome.term();
  out->push_back(StoreCluster{cluster_id_, term_});
}

void AgentCore::OnWelcome(const v1::Welcome& welcome, Actions* out) {
  const auto refuse = [&](std::string reason, bool final) {
    link_ = Link::kRefused;
    out->push_back(CloseLink{std::move(reason), final});
  };
  if (!WireVersionsAgree(options_.version, welcome.version())) {
    return refuse(absl::StrCat("the controller speaks version ", welcome.version().major(), ".",
                               welcome.version().minor(), ", this agent ", options_.version.major(), ".",
                               options_.version.minor()),
                  true);
  }
  const bool changes = ChangesCluster(welcome);
  if (!changes && !cluster_id_.empty() && welcome.cluster_id() != cluster_id_) {
    return refuse(absl::StrCat("this node belongs to cluster ", cluster_id_, ", the controller to ",
                               welcome.cluster_id()),
                  !options_.offer.has_value());  // a peer's ranks end with their lease, then it may come
  }
  if (!changes && welcome.term() < term_) {
    // A controller that was replaced, or one with an old copy of its log: its successor may answer next.
    return refuse(absl::StrCat("the controller's term ", welcome.term(), " is below ", term_), false);
  }
  if (welcome.cluster_id() != cluster_id_ || welcome.term() != term_) {
    cluster_id_ = welcome.cluster_id();
    term_ = welcome.term();
    out->push_back(StoreCluster{cluster_id_, term_});
  }
  link_ = Link::kWelcomed;
  isolation_ns_ = int64_t{welcome.isolation_timeout_ms()} * kNsPerMs;
  StoreTerms(welcome, out);
  InTouch(hello_sent_ns_, out);
  out->push_back(SetHeartbeat{welcome.heartbeat_ms()});
  RenewLeases(out);
  for (const v1::Report& report : reports_.unacked()) {
    v1::AgentMsg message;
    *message.mutable_report() = report;
    out->push_back(Send{std::move(message)});
  }
}

void AgentCore::OnRefused(const v1::Refused& refused, Actions* out) {
  link_ = Link::kRefused;
  out->push_back(CloseLink{refused.reason(), refused.final()});
}

void AgentCore::OnAnswer(const v1::HeartbeatAnswer& answer, Actions* out) {
  int64_t sent_ns = 0;
  while (!unanswered_.empty() && unanswered_.front().first <= answer.number()) {
    if (unanswered_.front().first == answer.number()) sent_ns = unanswered_.front().second;
    unanswered_.pop_front();
  }
  if (sent_ns == 0) return;  // answered before, or too old to be worth anything
  last_answer_ = answer.number();
  if (sent_ns <= in_touch_ns_) return;
  InTouch(sent_ns, out);
  RenewLeases(out);
}

uint64_t AgentCore::LeaseDeadline() const {
  if (!options_.leases) return 0;
  return static_cast<uint64_t>(std::max(in_touch_ns_ + isolation_ns_, licence_until_ns_));
}

void AgentCore::RenewLeases(Actions* out) {
  if (!options_.leases) return;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.phase == v1::ATTEMPT_PHASE_GONE) continue;
    v1::ShimCommand command;
    command.mutable_lease()->set_deadline_ns(LeaseDeadline());
    out->push_back(ToShim{key, std::move(command)});
  }
}

// ---- Reports ----

void AgentCore::AddReport(const AttemptKey& key, v1::Report report, Actions* out) {
  report.set_job_id(key.job.str());
  report.set_attempt(key.attempt.value());
  const v1::Report& added = reports_.Add(std::move(report));
  out->push_back(StoreReport{added, jobs_[key.job].stored});
  if (link_ != Link::kWelcomed) return;  // sent after the next Welcome
  v1::AgentMsg message;
  *message.mutable_report() = added;
  out->push_back(Send{std::move(message)});
}

void AgentCore::OnAck(const v1::ReportAck& ack, Actions* out) {
  switch (reports_.Ack(ack.number())) {
    case ReportLog::Acked::kNeverSent:
      out->push_back(
          Note{absl::StrCat("the controller acknowledged report ", ack.number(), " of ", reports_.last())});
      return;
    case ReportLog::Acked::kNothingNew:
      return;
    case ReportLog::Acked::kDropped:
      break;
  }
  out->push_back(DropReports{ack.number()});
  if (options_.offer) {
    for (auto& [key, attempt] : attempts_) {
      if (attempt.gone_report != 0 && attempt.gone_report <= ack.number()) attempt.acknowledged = true;
    }
    return;
  }
  std::erase_if(attempts_, [&](const auto& entry) {
    return entry.second.gone_report != 0 && entry.second.gone_report <= ack.number();
  });
}

v1::Snapshot AgentCore::MakeSnapshot() const {
  v1::Snapshot snapshot;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.acknowledged) continue;
    v1::AttemptSnapshot* entry = snapshot.add_attempts();
    entry->set_job_id(key.job.str());
    entry->set_attempt(key.attempt.value());
    entry->set_phase(attempt.phase);
    for (const auto& [rank, report] : attempt.ranks) *entry->add_ranks() = report;
  }
  return snapshot;
}

}  // namespace dgxrun::agent
