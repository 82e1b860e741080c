// What an agent decides, and nothing else: what to refuse, to store, to resend, and until when its shims
// may live. Pure: no clock, no I/O, no randomness; `now_ns` (CLOCK_BOOTTIME) comes with each input.
//
// Owner: the agent's thread (or the simulator). It feeds one Input at a time and performs the returned
// Actions in order, before the next input. The order carries the promise "stored before sent": a Store*
// action stands before every action that rests on it. If a Store* cannot be done, the rest of the list
// must not be performed, and the agent starts anew from its store.
//
// Per (job, attempt) on this node:
//
//   (none) --Launch--> STARTING --RanksStarted--> RUNNING --Stop--> STOPPING --gone--> GONE --ack--> (none)
//                         |-- Stop ----------------------------------^   (gone comes from any living phase)
//
// Invariants
//   - Report numbers have no gaps; a report is stored before it is sent and resent until acknowledged.
//   - For each job: `launched` and `tombstone` only grow. A Launch below `launched` or at most `tombstone` is
//     refused with a report. A Launch above a living attempt waits until that one is gone.
//   - AttemptGone is reported once per attempt, and only when nothing of the attempt lives here.
//   - The term never falls; the cluster id never changes once known. (Peers mode: both follow the controller
//   while
//     nothing lives here, since a cluster lives no longer than its job.)
//   - Peers mode: a controller may have been replaced by one that knows only what agents tell it. So capsules
//   are
//     stored before the launch, and what is gone is kept, acknowledged or not, until its job goes on or ends.
//   - A lease is never renewed further than (sending time of an answered heartbeat) + isolation timeout.
#ifndef DGXRUN_AGENT_AGENT_CORE_H_
#define DGXRUN_AGENT_AGENT_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/report_log.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/node.pb.h"
#include "dgxrun/v1/shim.pb.h"
#include "proto/ids.h"

namespace dgxrun::agent {

struct AgentCoreOptions {
  v1::WireVersion version;
  NodeId node_id;
  std::string node_name;
  std::string boot_id;
  std::string agent_user;
  std::string expected_cluster_id;  // empty: the stored one, or the first that answers
  v1::Inventory inventory;
  std::optional<v1::PeerOffer> offer;  // peers mode
  bool leases = true;                  // ON_AGENT_GONE_LEASE: shims live only as long as we are in touch
  // Where this agent bears witness (agent_link.proto); both empty: it does not, and holds no committee.
  uint32_t witness_port = 0;
  std::string witness_path;
};

// What keeps ranks alive while no controller answers. Stored, since the agent may start anew in that time.
struct StoredCommittee {
  v1::Committee committee;
  int64_t node_lease_ns = 0;
  int64_t isolation_ns = 0;
  int64_t orphan_ns = 0;
  // In touch last, before the first licence of this time without a controller; 0: none was taken. Only valid
  // in the boot that it is of.
  int64_t orphan_since_ns = 0;
  std::string boot_id;
};

// What is kept of a job. Attempt numbers are int64 so that -1 can say "none yet".
struct StoredJob {
  int64_t launched = -1;    // highest attempt started here
  int64_t tombstone = -1;   // attempts up to this one never start (again)
  int64_t gone = -1;        // attempts up to this one were reported gone
  uint64_t last_event = 0;  // of attempt `launched`: highest shim event that became a report

  friend bool operator==(const StoredJob&, const StoredJob&) = default;
};

// All that survives a restart of the agent. Reports in order of their numbers; the last number ever
// given is kept apart, since acknowledged reports are dropped.
struct StoredState {
  std::string cluster_id;
  uint64_t term = 0;
  std::map<JobId, StoredJob> jobs;
  std::map<JobId, v1::JobCapsule> capsules;
  std::vector<v1::Report> reports;
  uint64_t last_report = 0;
  StoredCommittee committee;
};

struct AttemptKey {
  JobId job;
  AttemptNo attempt;
  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;
};

// ---- Inputs ----

// First input of a run, once the run folder was searched (a FinalFound for each final file came before).
// `living`: attempts whose shims answer. `dead`: folders with neither. The dead, and those that were launched
// but have no folder at all, get a Sweep.
struct Restored {
  std::vector<AttemptKey> living;
  std::vector<AttemptKey> dead;
};
struct LinkUp {};    // a stream is open; nothing was said on it
struct LinkDown {};  // it is closed
struct FromController {
  v1::ControllerMsg message;
};
struct HeartbeatDue {};
struct PortsFree {  // reserved ports that no attempt uses, whenever they change
  std::vector<uint32_t> ports;
};
struct PreparedHere {  // answer to CheckPaths
  AttemptKey key;
  v1::Prepared prepared;
  std::string resume;  // of the Prepare
};
struct ProgressHere {  // news of a living attempt; whatever is set replaces what was known
  v1::AttemptProgress progress;
};
struct StartFailed {  // answer to StartShimFor, when no shim came to life: nothing of the attempt runs
  AttemptKey key;
  std::string reason;
};
struct ShimSaid {  // a message of a shim, in order; `exited` and `gone` already carry the stderr tails
  AttemptKey key;
  v1::ShimMsg message;
};
struct ShimDisconnected {  // its socket closed; a ShimSaid(hello), FinalFound or StraysGone follows
  AttemptKey key;
};
struct FinalFound {  // the shim is dead and left its events
  v1::ShimFinal final;
};
struct StopEverything {  // the command of this node leaves (peers mode): nothing may stay behind it
  uint64_t grace_ms = 0;
  std::string reason;
};
struct WitnessDue {};     // each kWitnessPeriod, in a cluster
struct WitnessAnswered {  // of one member, to AskCommittee
  uint64_t round = 0;
  v1::WitnessAnswer answer;
};
struct WitnessAsked {  // another agent wants to know; answered with AnswerWitness
  uint64_t question_id = 0;
  v1::WitnessQuestion question;
};
struct StraysGone {  // answer to Sweep, or a shim that died without a final file: nothing is left
  AttemptKey key;
  std::string detail;
};

struct Input {
  int64_t now_ns = 0;
  std::variant<Restored, LinkUp, LinkDown, FromController, HeartbeatDue, PortsFree, PreparedHere,
               ProgressHere, StartFailed, ShimSaid, ShimDisconnected, FinalFound, StraysGone, StopEverything,
               WitnessDue, WitnessAnswered, WitnessAsked>
      body;
};

// ---- Actions ----

struct StoreCluster {
  std::string cluster_id;
  uint64_t term = 0;
};
struct StoreJob {
  JobId job;
  StoredJob stored;
};
// Report and job row in one transaction: an event becomes a report once.
struct StoreReport {
  v1::Report report;
  StoredJob stored;
};
struct StoreCapsule {  // in place of an older one of the job
  v1::JobCapsule capsule;
};
struct DropCapsule {
  JobId job;
};
struct StoreCommittee {
  StoredCommittee stored;
};
struct DropReports {
  uint64_t up_to = 0;
};
struct DropJob {  // forgotten long ago: its row goes
  JobId job;
};
struct Send {  // on the open stream
  v1::AgentMsg message;
};
struct SetHeartbeat {  // after a Welcome: HeartbeatDue each so often, until the link is down
  uint32_t period_ms = 0;
};
struct CloseLink {
  std::string reason;
  bool final = false;  // do not dial again
};
struct CheckPaths {
  v1::Prepare prepare;
};
struct StartShimFor {
  v1::Launch launch;
  uint64_t lease_deadline_ns = 0;  // 0: no lease
};
struct ToShim {  // dropped when the shim is not connected: what matters is said again after its hello
  AttemptKey key;
  v1::ShimCommand command;
};
struct Sweep {  // kill what a dead shim may have left; answer with StraysGone
  AttemptKey key;
};
// Nothing of the attempt lives: tails may end, its port is free, its run folder goes.
struct AttemptEnded {
  AttemptKey key;
};
struct ForgetJob {
  JobId job;
  std::optional<v1::JobStatus> end;  // peers mode: how it ended
};
struct StartTail {
  v1::TailRequest request;
  bool ended = false;  // the attempt does not live: do not wait for more than the files hold
};
struct CancelTail {
  uint64_t tail_id = 0;
};
struct TidyCheckpoints {  // of an attempt that lives here
  AttemptKey key;
  v1::RemoveCheckpoints remove;
};
struct AskCommittee {  // each member at once; an answer that takes longer than kWitnessPeriod is of no use
  uint64_t round = 0;
  std::vector<v1::CommitteeMember> members;  // without this node
};
struct AnswerWitness {
  uint64_t question_id = 0;
  v1::WitnessAnswer answer;
};
struct Note {  // for the agent's own log; a peer said something that has no place here
  std::string text;
};

using Action = std::variant<StoreCluster, StoreJob, StoreReport, StoreCapsule, DropCapsule, StoreCommittee,
                            DropReports, DropJob, Send, SetHeartbeat, CloseLink, CheckPaths, StartShimFor,
                            ToShim, Sweep, AttemptEnded, ForgetJob, StartTail, CancelTail, TidyCheckpoints,
                            AskCommittee, AnswerWitness, Note>;
using Actions = std::vector<Action>;

class AgentCore {
 public:
  // Jobs whose tombstones are kept after Forget. A controller forgets a job only once it never launches
  // it again, so this bounds the store, not safety; 1,000 rows are some 100 KiB.
  static constexpr size_t kMaxForgotten = 1000;
  // Checkpoints in one heartbeat, the newest that were told.
  static constexpr int kMaxCheckpoints = 4;
  static constexpr int kMaxNotes = 16;    // of an attempt; a person reads some
  static constexpr int kMaxRemoved = 64;  // checkpoints, between two heartbeats; what is lost is asked again
  // Heartbeats without an answer that are remembered; older ones would renew no lease anyway.
  static constexpr size_t kMaxUnanswered = 64;
  // How often a committee is asked; a licence lasts isolation_timeout (10 s), so some may fail.
  static constexpr int64_t kWitnessPeriodNs = 1'000'000'000;

  AgentCore(AgentCoreOptions options, StoredState stored);

  // Performs nothing; returns what to do, in order.
  Actions Handle(const Input& input);

  // For tests, tails and the simulator.
  bool welcomed() const { return link_ == Link::kWelcomed; }
  int64_t in_touch_ns() const { return in_touch_ns_; }  // 0: never
  bool Lives(const AttemptKey& key) const;
  bool AnythingLives() const;
  const std::deque<v1::Report>& unacked() const { return reports_.unacked(); }
  const std::string& cluster_id() const { return cluster_id_; }
  uint64_t term() const { return term_; }

 private:
  enum class Link { kDown, kHelloSent, kWelcomed, kRefused };
  struct Attempt {
    v1::AttemptPhase phase = v1::ATTEMPT_PHASE_STARTING;
    bool first_connection = false;  // started in this run and never disconnected: no ShimAttach is due
    uint64_t last_event = 0;        // highest shim event that became a report
    std::map<uint32_t, v1::RankReport> ranks;
    std::optional<v1::ShimStop> stop;  // last Stop, said again after a hello
    uint64_t gone_report = 0;          // number of its AttemptGone; 0 while it lives
    v1::AttemptProgress progress;      // as last known
    bool progress_is_news = false;     // not yet said on this stream
    v1::AttemptGone gone;              // peers mode: what was said in it
    bool acknowledged = false;  // peers mode: the gone was; the next controller may have to be told again
  };
  struct Job {
    StoredJob stored;
    std::optional<v1::Launch> waiting;  // until the attempts below it are gone
    int64_t owed_gone = -1;             // a Stop of an attempt that never ran, while a lower one lives
    int64_t checking = -1;              // attempt of a CheckPaths without answer
    std::string checking_resume;        // and which of its two questions: Prepare.resume
    int64_t refused = -1;               // attempt whose start failed here
    bool forget = false;                // Forget came while something lived
    std::optional<v1::JobStatus> end;   // and what it said
  };

  void On(const Restored& input, int64_t now_ns, Actions* out);
  void On(const LinkUp& input, int64_t now_ns, Actions* out);
  void On(const LinkDown& input, int64_t now_ns, Actions* out);
  void On(const FromController& input, int64_t now_ns, Actions* out);
  void On(const HeartbeatDue& input, int64_t now_ns, Actions* out);
  void On(const PortsFree& input, int64_t now_ns, Actions* out);
  void On(const PreparedHere& input, int64_t now_ns, Actions* out);
  void On(const ProgressHere& input, int64_t now_ns, Actions* out);
  void On(const StartFailed& input, int64_t now_ns, Actions* out);
  void On(const ShimSaid& input, int64_t now_ns, Actions* out);
  void On(const ShimDisconnected& input, int64_t now_ns, Actions* out);
  void On(const FinalFound& input, int64_t now_ns, Actions* out);
  void On(const StraysGone& input, int64_t now_ns, Actions* out);
  void On(const StopEverything& input, int64_t now_ns, Actions* out);
  void On(const WitnessDue& input, int64_t now_ns, Actions* out);
  void On(const WitnessAnswered& input, int64_t now_ns, Actions* out);
  void On(const WitnessAsked& input, int64_t now_ns, Actions* out);

  void OnWelcome(const v1::Welcome& welcome, Actions* out);
  void OnNewTerm(const v1::Welcome& welcome, Actions* out);
  void OnRefused(const v1::Refused& refused, Actions* out);
  void OnAnswer(const v1::HeartbeatAnswer& answer, Actions* out);
  void OnAck(const v1::ReportAck& ack, Actions* out);
  void OnPrepare(const v1::Prepare& prepare, Actions* out);
  void OnLaunch(const v1::Launch& launch, Actions* out);
  void OnStop(const v1::StopAttempt& stop, Actions* out);
  void OnRemove(const v1::RemoveCheckpoints& remove, Actions* out);
  void OnForget(const v1::Forget& forget, Actions* out);
  void OnTail(const v1::TailRequest& request, Actions* out);
  void OnCommittee(const v1::Committee& committee, Actions* out);
  void OnShimHello(const AttemptKey& key, const v1::ShimHello& hello, Actions* out);
  void OnShimEvent(const AttemptKey& key, const v1::ShimEvent& event, Actions* out);

  Attempt* Adopt(const AttemptKey& key);
  void NoteLaunched(const AttemptKey& key, Actions* out);
  void Start(const v1::Launch& launch, Actions* out);
  void StopLiving(const AttemptKey& key, Attempt* attempt, const v1::ShimStop& stop, Actions* out);
  void Gone(const AttemptKey& key, v1::AttemptGone gone, uint64_t shim_event, Actions* out);
  void AfterGone(const JobId& job, Actions* out);
  void TellGoneAgain(const AttemptKey& key, Actions* out);
  bool ChangesCluster(const v1::Welcome& welcome) const;
  void FinishForget(const JobId& job, Actions* out);
  void Refuse(const AttemptKey& key, const std::string& reason, Actions* out);
  void SendHeartbeat(int64_t now_ns, Actions* out);
  void AddReport(const AttemptKey& key, v1::Report report, Actions* out);
  bool AnyLives(const JobId& job, int64_t up_to) const;
  bool TooOld(const Job& job, int64_t attempt) const;
  void RenewLeases(Actions* out);
  void StoreTerms(const v1::Welcome& welcome, Actions* out);
  void InTouch(int64_t sent_ns, Actions* out);
  bool SilentAsWitness(int64_t now_ns) const;
  void CountWitnesses(Actions* out);
  uint64_t LeaseDeadline() const;
  v1::Snapshot MakeSnapshot() const;

  const AgentCoreOptions options_;
  std::string cluster_id_;
  uint64_t term_ = 0;
  std::map<JobId, Job> jobs_;
  std::deque<JobId> forgotten_;  // oldest first
  std::map<JobId, v1::JobCapsule> capsules_;
  std::map<AttemptKey, Attempt> attempts_;
  ReportLog reports_;
  std::vector<uint32_t> free_ports_;

  Link link_ = Link::kDown;
  int64_t now_ns_ = 0;  // of the input that is being handled
  int64_t hello_sent_ns_ = 0;
  uint64_t heartbeat_ = 0;                               // last number sent on this stream
  uint64_t last_answer_ = 0;                             // on this stream
  std::deque<std::pair<uint64_t, int64_t>> unanswered_;  // number, sending time
  int64_t in_touch_ns_ = 0;
  int64_t isolation_ns_ = 0;

  // The committee (agent_core_witness.cc).
  StoredCommittee committee_;
  int64_t started_ns_ = 0;        // first input: we may have been in touch until then
  int64_t licence_until_ns_ = 0;  // 0: none
  uint64_t round_ = 0;
  int64_t round_sent_ns_ = 0;
  std::set<std::string> silent_;  // members that bore witness in this round
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_AGENT_CORE_H_
