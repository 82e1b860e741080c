// What the controller knows. State is durable: it is exactly what folding the log's records with Apply
// gives. Contacts is volatile: who is connected and when they were last heard; it starts as *unknown*,
// which is neither dead nor healthy, and is never logged.
//
// A job lives so:
//
//   queued ──▶ attempt k: preparing ──▶ launching ──▶ running ──▶ (stopping) ──▶ ended ──▶ queued for k+1
//                                                                                   └────▶ job ended
//
// Three things are kept apart: what is wanted (`stop` of a job), what was observed (phases, ranks), and
// why it ended (`why`). A job has at most one attempt that has not ended; the last ended one stays for
// status. Processes may live from AttemptLaunched until NodeGone of a node, and only then.
#ifndef DGXRUN_CONTROLLER_CORE_MODEL_H_
#define DGXRUN_CONTROLLER_CORE_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "controller/core/input.h"
#include "controller/core/progress.h"
#include "dgxrun/v1/agent_link.pb.h"
#include "dgxrun/v1/job.pb.h"
#include "dgxrun/v1/node.pb.h"
#include "dgxrun/v1/record.pb.h"
#include "proto/ids.h"

namespace dgxrun::core {

// A value that is shared until it is changed, so that a State is copied by copying pointers.
template <class T>
class Cow {
 public:
  Cow() : value_(std::make_shared<T>()) {}
  explicit Cow(T value) : value_(std::make_shared<T>(std::move(value))) {}
  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  T& Mutable() {
    if (value_.use_count() > 1) value_ = std::make_shared<T>(*value_);
    return *value_;
  }

 private:
  std::shared_ptr<T> value_;
};

// --- durable -----------------------------------------------------------------------------------

enum class NodePhase { kUp, kLost, kFenced };

struct Node {
  NodeId id;
  std::string name;
  std::string boot_id;
  std::string peer_address;  // "" over a unix socket or in process
  v1::Inventory inventory;
  std::string agent_user;
  std::string release;
  std::optional<v1::PeerOffer> offer;  // peers mode: what the command of the node asks for
  NodePhase phase = NodePhase::kUp;
  std::string witness;  // target of its Witness service; empty: none, and no committee keeps its ranks alive
  uint64_t committee = 0;  // number of the one that it holds at least; 0: perhaps none
};

// One rank of an attempt as last reported. `order` is the position in the log of the record that told of
// its exit (0: not exited): the only order that is comparable between nodes.
struct RankInfo {
  v1::RankReport report;
  uint64_t order = 0;
  bool told_by_gone = false;  // the exit was first heard of in AttemptGone
};

struct Fault {
  v1::Cause cause = v1::CAUSE_UNSPECIFIED;
  NodeId node;
  int32_t rank = -1;
  std::string detail;
  uint64_t order = 0;
  bool after_stop = false;  // it began after the attempt was told to stop
};

// Share of an attempt on one node.
struct AttemptNode {
  // kReady: it has answered the second Prepare too (checkpoints.h); where there is none, kPrepared is
  // followed by kStarted.
  enum class Phase { kPlaced, kPrepared, kReady, kStarted, kGone };
  NodeId node;
  std::string name;
  v1::PlacedNode placed;
  Phase phase = Phase::kPlaced;
  std::optional<v1::Checkpoint> checkpoint;     // newest that the node found
  std::vector<v1::CheckpointFinding> findings;  // what it found, newest first
  std::vector<std::string> notes;               // what it repaired or moved aside
  std::map<uint32_t, RankInfo> ranks;           // by global rank; filled at the start
  std::string log_dir;
  std::vector<std::string> warnings;
  bool fenced = false;
  v1::Cause gone_cause = v1::CAUSE_UNSPECIFIED;
  std::string gone_detail;
  v1::OutputLost lost;  // bytes 0: nothing
};

struct Attempt {
  enum class Phase { kPreparing, kLaunching, kRunning, kStopping, kEnded };
  AttemptNo number;
  Phase phase = Phase::kPreparing;
  bool launched = false;                // AttemptLaunched is in the log: processes may live
  std::vector<Cow<AttemptNode>> nodes;  // in the order of their ranks
  std::optional<v1::Checkpoint> checkpoint;
  std::string master_addr;
  uint32_t master_port = 0;
  std::vector<Fault> faults;
  v1::Cause stop_cause = v1::CAUSE_UNSPECIFIED;  // kStopping: what came first
  uint64_t grace_ms = 0;                         // kStopping
  absl::Time stopping_at = absl::InfinitePast();
  absl::Time placed_at = absl::InfinitePast();
  absl::Time launched_at = absl::InfinitePast();
  absl::Time started_at = absl::InfinitePast();  // all nodes have started
};

// What an attempt that failed had loaded (path empty: nothing), and how long it lived.
struct Loaded {
  v1::Checkpoint checkpoint;
  absl::Duration lived;
};

struct StopWish {
  std::string user, reason;
  std::optional<uint64_t> grace_ms;
  absl::Time at;
};

struct Job {
  enum class Phase { kQueued, kActive, kEnded };
  JobId id;
  uint64_t number = 0;
  std::string key;
  v1::JobSpec spec;  // resolved
  Phase phase = Phase::kQueued;
  AttemptNo next_attempt;                 // number that the next AttemptPlaced will carry
  std::optional<Attempt> attempt;         // the current one, or the last that ended
  std::set<NodeId> nodes_used;            // by any attempt
  std::vector<v1::Placement> placements;  // as JobStatus tells them; one entry per change of the nodes
  uint32_t last_master_port = 0;          // of the last launched attempt; the next one takes another
  uint32_t restarts = 0;
  uint32_t short_failures = 0;
  absl::Time not_before = absl::InfinitePast();  // of the next attempt
  std::optional<StopWish> stop;
  v1::Why why;  // of the last failure or the end; cause unspecified: nothing has failed
  v1::JobState end_state = v1::JOB_STATE_UNSPECIFIED;
  int32_t exit_code = 0;
  absl::Time submitted_at = absl::InfinitePast();
  absl::Time ended_at = absl::InfinitePast();
  uint32_t never_launched = 0;  // attempts that ended so and were placed anew: they cost no restart
  absl::Time failed_at = absl::InfinitePast();  // the failure after which no step was reported yet
  std::vector<absl::Duration> restarts_took;    // from failure to first step; the newest kMaxRestartsTook
  std::vector<v1::Checkpoint> poisoned;         // not given out again, oldest first
  std::vector<v1::Alarm> alarms;                // oldest first; at most kMaxAlarms
  std::optional<Loaded> loaded_before;  // of the launched attempt that ended last, whose failure is `why`

  bool on_cpu() const { return spec.device() == v1::DEVICE_CPU; }
};

struct State {
  std::string cluster_id;  // empty: an empty log
  uint64_t term = 0;
  uint64_t last_job_number = 0;
  uint64_t record_count = 0;  // records applied; gives facts their order
  std::map<NodeId, Cow<Node>> nodes;
  // By number. The last one is in force; a node may still ask an older one from its own `committee` on.
  std::map<uint64_t, v1::Committee> committees;
  std::map<JobId, Cow<Job>> jobs;  // without the archived ones
  // Keys of jobs in `jobs`, and of the newest archived ones, by (owner's uid, key).
  std::map<std::pair<uint32_t, std::string>, JobId> keys;
  std::vector<std::pair<uint32_t, std::string>> archived_keys;  // oldest first; at most kMaxArchivedKeys
};

// Enough for a median that follows a change of the script.
inline constexpr size_t kMaxRestartsTook = 16;

// A person reads some lines, not hundreds; the first ones tell how it began, so later ones are dropped.
inline constexpr size_t kMaxAlarms = 20;

// A client retries a submit for minutes, not for thousands of jobs; the engine's archive remembers the rest.
inline constexpr size_t kMaxArchivedKeys = 1000;

// --- volatile ----------------------------------------------------------------------------------

// Peers mode: one job, which makes itself when its nodes have come (peers.h).
struct PeersConfig {
  std::string rdzv_id;
  std::string endpoint_host;  // under which the others reach this process's node
  v1::JobSpec spec;  // of this process's command, resolved, with owner: the others' must agree with it
  // How long the next attempt waits for the nodes that are missing; zero: for ever. (Before the first attempt
  // each command counts for itself.)
  absl::Duration join_timeout = absl::ZeroDuration();
};

// From the cluster file; set by the engine before the first input.
struct Config {
  std::string cluster_name;  // "local" for a local job
  // Local mode: the one node comes with the job, perhaps a moment later, so a submit waits for it.
  bool node_comes_with_job = false;
  absl::Duration heartbeat = absl::Seconds(1);
  absl::Duration node_lease = absl::Seconds(5);
  absl::Duration isolation_timeout = absl::Seconds(10);
  // How long a committee may keep ranks alive without a controller.
  absl::Duration orphan_timeout = absl::Minutes(30);
  std::map<std::string, std::string> nccl;  // full variable name -> value
  v1::WireVersion version;
  std::optional<PeersConfig> peers;
};

// A node's stream. Present once a Hello was accepted; stays when the stream closes (connection 0).
struct Contact {
  ConnectionId connection = 0;  // 0: not connected
  absl::Time last_heard = absl::InfinitePast();
  uint64_t heartbeat = 0;    // number of the last one on this connection
  uint64_t last_report = 0;  // number of the last one on this connection
  // When this node last heard of us, at least, as it counts itself (committee.h).
  struct Ping {
    absl::Time heard, sent_after;
  };
  std::map<uint64_t, Ping> pings;  // by heartbeat
  absl::Time knew_us = absl::InfinitePast();
  std::vector<uint32_t> free_ports;
  // What lives there, from the Hello's snapshot and the reports since.
  std::map<std::pair<JobId, AttemptNo>, v1::AttemptPhase> attempts;
};

struct Rejection {
  NodeId node;
  v1::Refused refused;
};

struct Contacts {
  Config config;
  absl::Time started_at = absl::InfinitePast();
  // Since when this controller has run without a pause: silence that it slept through is nobody's fault.
  absl::Time awake_since = absl::InfinitePast();
  absl::Time last_input = absl::InfinitePast();
  std::map<NodeId, Contact> nodes;
  std::map<ConnectionId, Rejection> rejected;
  // Jobs of which a node holds a higher attempt than the log knows (an old log was restored): left alone.
  std::set<JobId> ahead;
  // Of jobs in the state, as far as their nodes tell.
  std::map<JobId, AttemptProgress> progress;
  // Committees of the state that are heard enough, and since when without a break.
  std::map<uint64_t, absl::Time> committee_since;
  absl::Time committees_looked_at = absl::InfinitePast();
};

// --- small questions that every part asks ------------------------------------------------------

const Job* FindJobById(const State& state, const JobId& id);
const Node* FindNode(const State& state, const NodeId& id);
// Null when the attempt has no share there.
const AttemptNode* FindShare(const Attempt& attempt, const NodeId& node);
bool IsConnected(const Contacts& contacts, const NodeId& node);
// The attempt that is neither ended nor absent, else null.
const Attempt* LiveAttempt(const Job& job);
// Whether processes of the attempt may live on the node, as far as the log tells.
bool HoldsNode(const Job& job, const NodeId& node);
// Jobs whose live attempt has a share on the node that is not gone.
std::vector<JobId> JobsOn(const State& state, const NodeId& node);
bool IsEnded(v1::JobState state);

}  // namespace dgxrun::core

#endif  // DGXRUN_CONTROLLER_CORE_MODEL_H_
