// What an agent remembers over a restart: node id, cluster and term, the highest attempt, tombstone and last
// shim event of each job, and the reports that are not acknowledged. Never an environment.
//
// SQLite (WAL, synchronous=FULL: a tombstone that was forgotten in a power cut would let a stopped attempt
// start). One process at a time: a second agent on the same folder is refused. Each method is one
// transaction, durable when it returns. Not thread-safe; the agent's thread owns it.
#ifndef DGXRUN_AGENT_AGENT_STORE_H_
#define DGXRUN_AGENT_AGENT_STORE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/agent_core.h"
#include "proto/ids.h"

struct sqlite3;

namespace dgxrun::agent {

class AgentStore {
 public:
  // `state_dir`: made if missing, mode 0700; empty: in memory. Errors name the folder or file.
  static absl::StatusOr<std::unique_ptr<AgentStore>> Open(const std::string& state_dir);
  ~AgentStore();
  AgentStore(const AgentStore&) = delete;
  AgentStore& operator=(const AgentStore&) = delete;

  // A UUID made when the store was made.
  const NodeId& node_id() const { return node_id_; }

  absl::StatusOr<StoredState> Load();
  absl::Status Store(const StoreCluster& action);
  absl::Status Store(const StoreJob& action);
  absl::Status Store(const StoreReport& action);
  absl::Status Store(const StoreCapsule& action);
  absl::Status Store(const DropCapsule& action);
  absl::Status Store(const StoreCommittee& action);
  absl::Status Store(const DropReports& action);
  absl::Status Store(const DropJob& action);

 private:
  AgentStore(sqlite3* db, std::string path);
  absl::Status Init();
  absl::Status PutJob(const std::string& job, const StoredJob& stored);

  sqlite3* db_;
  std::string path_;
  NodeId node_id_;
};

}  // namespace dgxrun::agent

#endif  // DGXRUN_AGENT_AGENT_STORE_H_
