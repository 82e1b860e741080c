// The controller's log: rows in the order in which they were decided, and an archive with one row for
// each job that has ended. A file of SQLite with one writer: this process, which holds the lock from Open
// until the object ends.
//
// Append is one transaction: all rows are durable when it returns OK, and none is in the log otherwise. A
// tail torn by a crash is dropped, and told; a place or a row that was damaged later is found by its checksum
// and named (wal_check.h), since a replay without it would be another history. Not thread-safe: the engine's
// thread owns it.
#ifndef DGXRUN_CONTROLLER_RECORD_LOG_H_
#define DGXRUN_CONTROLLER_RECORD_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/ids.h"

namespace dgxrun {

struct LogRow {
  uint64_t term = 0;
  JobId job;          // empty: of no job, never dropped
  std::string bytes;  // a serialized v1::Record
};

struct ArchivedJob {
  JobId id;
  uint64_t number = 0;
  std::string name;
  uint32_t owner_uid = 0;
  std::string key;     // of the submit
  std::string status;  // a serialized v1::JobStatus, the last one
  int64_t ended_unix_ns = 0;
};

class RecordLog {
 public:
  // Makes the file if there is none. `durable` false: for a tmpfs, without waiting for a disk.
  // Errors name the file: FailedPrecondition on a network file system or an unknown format, Unavailable
  // when another controller holds it, DataLoss when it is damaged, ResourceExhausted when the disk is full.
  static absl::StatusOr<std::unique_ptr<RecordLog>> Open(const std::string& path, bool durable);
  virtual ~RecordLog() = default;

  // A line about what a crash had left half written and Open has cut off; empty: nothing.
  virtual std::string CutTail() const = 0;

  // Calls `row` for each row from the first to the last; an error of `row` ends the replay.
  virtual absl::Status Replay(const std::function<absl::Status(const LogRow&)>& row) = 0;
  virtual absl::Status Append(const std::vector<LogRow>& rows) = 0;

  // In one transaction: keeps `job` in the archive, drops its rows, appends `last` (under no job), and
  // drops rows of earlier archivings beyond the newest `keep`.
  virtual absl::Status Archive(const ArchivedJob& job, const LogRow& last, size_t keep) = 0;

  virtual absl::StatusOr<std::optional<ArchivedJob>> ArchivedById(const JobId& id) = 0;
  virtual absl::StatusOr<std::optional<ArchivedJob>> ArchivedByKey(uint32_t owner_uid,
                                                                   const std::string& key) = 0;
  // The newest of that name.
  virtual absl::StatusOr<std::optional<ArchivedJob>> ArchivedByName(const std::string& name) = 0;
  // Newest first; of one owner where it is given.
  virtual absl::StatusOr<std::vector<ArchivedJob>> NewestArchived(std::optional<uint32_t> owner_uid,
                                                                  size_t limit) = 0;
};

// Name of the network file system that `magic` (statfs f_type) stands for, or null: locks and flushes
// cannot be relied on there.
const char* NetworkFileSystemName(int64_t magic);

}  // namespace dgxrun

#endif  // DGXRUN_CONTROLLER_RECORD_LOG_H_
