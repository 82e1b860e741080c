#include "agent/agent_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/base/unique_fd.h"
#include "sqlite3.h"

namespace dgxrun::agent {
namespace {

constexpr char kSchemaVersion[] = "1";

constexpr char kSchema[] = R"sql(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts(job TEXT PRIMARY KEY, highest INTEGER NOT NULL, tombstone INTEGER NOT NULL,
  gone INTEGER NOT NULL, last_event INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reports(number INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS capsules(job TEXT PRIMARY KEY, bytes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS committee(id INTEGER PRIMARY KEY CHECK (id = 1), bytes BLOB NOT NULL,
  node_lease_ns INTEGER NOT NULL, isolation_ns INTEGER NOT NULL, orphan_ns INTEGER NOT NULL,
  orphan_since_ns INTEGER NOT NULL, boot_id TEXT NOT NULL);
)sql";

// One prepared statement; every bind and step is checked at Run or Next.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) {
    ok_ = sqlite3_prepare_v2(db, sql, -1, &stmt_, nullptr) == SQLITE_OK;
  }
  ~Statement() { sqlite3_finalize(stmt_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Text(const std::string& value) {
    if (ok_)
      ok_ = sqlite3_bind_text(stmt_, ++bound_, value.data(), static_cast<int>(value.size()),
                              SQLITE_TRANSIENT) == SQLITE_OK;
    return *this;
  }
  Statement& Blob(const std::string& value) {
    if (ok_)
      ok_ = sqlite3_bind_blob(stmt_, ++bound_, value.data(), static_cast<int>(value.size()),
                              SQLITE_TRANSIENT) == SQLITE_OK;
    return *this;
  }
  Statement& Int(int64_t value) {
    if (ok_) ok_ = sqlite3_bind_int64(stmt_, ++bound_, value) == SQLITE_OK;
    return *this;
  }
  // True while there is a row; false at the end or on an error (see ok).
  bool Next() {
    if (!ok_) return false;
    const int rc = sqlite3_step(stmt_);
    ok_ = rc == SQLITE_ROW || rc == SQLITE_DONE;
    return rc == SQLITE_ROW;
  }
  bool Run() {
    while (Next()) {
    }
    return ok_;
  }
  bool ok() const { return ok_; }
  int64_t IntAt(int column) { return sqlite3_column_int64(stmt_, column); }
  std::string BytesAt(int column) {
    const void* data = sqlite3_column_blob(stmt_, column);
    return std::string(static_cast<const char*>(data), sqlite3_column_bytes(stmt_, column));
  }

 private:
  sqlite3_stmt* stmt_ = nullptr;
  int bound_ = 0;
  bool ok_ = true;
};

absl::Status Failed(sqlite3* db, const std::string& path) {
  const int rc = sqlite3_errcode(db);
  if (rc == SQLITE_BUSY || rc == SQLITE_LOCKED) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": another agent uses this state folder"));
  }
  const std::string text = absl::StrCat(path, ": ", sqlite3_errmsg(db));
  if (rc == SQLITE_FULL) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

// A transaction that is rolled back unless Commit worked.
class Transaction {
 public:
  explicit Transaction(sqlite3* db) : db_(db) {
    begun_ = sqlite3_exec(db, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK;
  }
  ~Transaction() {
    if (begun_) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  bool begun() const { return begun_; }
  bool Commit() {
    if (!begun_ || sqlite3_exec(db_, "COMMIT", nullptr, nullptr, nullptr) != SQLITE_OK) return false;
    begun_ = false;
    return true;
  }

 private:
  sqlite3* db_;
  bool begun_;
};

absl::StatusOr<std::string> MakeUuid() {
  std::array<unsigned char, 16> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError(absl::StrCat("getrandom: ", strerror(errno)));
  }
  bytes[6] = (bytes[6] & 0x0f) | 0x40;  // version 4
  bytes[8] = (bytes[8] & 0x3f) | 0x80;  // RFC 4122
  const std::string hex = absl::BytesToHexString({reinterpret_cast<char*>(bytes.data()), bytes.size()});
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4),
                      "-", hex.substr(20));
}

absl::Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno)));
  }
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a folder"));
  }
  if (st.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": belongs to uid ", st.st_uid, ", not to this agent"));
  }
  if ((st.st_mode & 077) != 0 && chmod(path.c_str(), 0700) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": others may read it, and chmod failed"));
  }
  return absl::OkStatus();
}

}  // namespace

AgentStore::AgentStore(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}

AgentStore::~AgentStore() { sqlite3_close(db_); }

absl::StatusOr<std::unique_ptr<AgentStore>> AgentStore::Open(const std::string& state_dir) {
  std::string path = ":memory:";
  if (!state_dir.empty()) {
    absl::Status made = MakePrivateFolder(state_dir);
    if (!made.ok()) return made;
    path = absl::StrCat(state_dir, "/agent.db");
    // SQLite would make it with the umask's mode.
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno)));
  }
  sqlite3* db = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<AgentStore> store(new AgentStore(db, path));  // closes db, which is set even on an error
  if (rc != SQLITE_OK) return absl::FailedPreconditionError(absl::StrCat(path, ": ", sqlite3_errstr(rc)));
  absl::Status status = store->Init();
  if (!status.ok()) return status;
  return store;
}

absl::Status AgentStore::Init() {
  const char* pragmas = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;";
  if (sqlite3_exec(db_, pragmas, nullptr, nullptr, nullptr) != SQLITE_OK ||
      sqlite3_exec(db_, kSchema, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return Failed(db_, path_);
  }
  Transaction transaction(db_);
  std::string version;
  std::string node;
  Statement read(db_, "SELECT key, value FROM meta WHERE key IN ('schema', 'node_id')");
  while (read.Next()) (read.BytesAt(0) == "schema" ? version : node) = read.BytesAt(1);
  if (!read.ok()) return Failed(db_, path_);
  if (!version.empty() && version != kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": written by another release (schema ", version, ")"));
  }
  if (node.empty()) {
    absl::StatusOr<std::string> fresh = MakeUuid();
    if (!fresh.ok()) return fresh.status();
    node = *fresh;
    Statement write(db_, "INSERT INTO meta VALUES('schema', ?), ('node_id', ?)");
    if (!write.Text(kSchemaVersion).Text(node).Run()) return Failed(db_, path_);
  }
  if (!transaction.Commit()) return Failed(db_, path_);
  node_id_ = NodeId(node);
  return absl::OkStatus();
}

absl::StatusOr<StoredState> AgentStore::Load() {
  StoredState state;
  Statement meta(db_, "SELECT key, value FROM meta");
  while (meta.Next()) {
    const std::string key = meta.BytesAt(0);
    const std::string value = meta.BytesAt(1);
    bool ok = true;
    if (key == "cluster_id") state.cluster_id = value;
    if (key == "term") ok = absl::SimpleAtoi(value, &state.term);
    if (key == "last_report") ok = absl::SimpleAtoi(value, &state.last_report);
    if (!ok) return absl::DataLossError(absl::StrCat(path_, ": meta ", key, " is no number"));
  }
  if (!meta.ok()) return Failed(db_, path_);
  Statement jobs(db_, "SELECT job, highest, tombstone, gone, last_event FROM attempts");
  while (jobs.Next()) {
    StoredJob& job = state.jobs[JobId(jobs.BytesAt(0))];
    job.launched = jobs.IntAt(1);
    job.tombstone = jobs.IntAt(2);
    job.gone = jobs.IntAt(3);
    job.last_event = static_cast<uint64_t>(jobs.IntAt(4));
  }
  if (!jobs.ok()) return Failed(db_, path_);
  Statement reports(db_, "SELECT number, bytes FROM reports ORDER BY number");
  while (reports.Next()) {
    v1::Report report;
    if (!report.ParseFromString(reports.BytesAt(1)) ||
        static_cast<int64_t>(report.number()) != reports.IntAt(0)) {
      return absl::DataLossError(absl::StrCat(path_, ": report ", reports.IntAt(0), " is damaged"));
    }
    state.reports.push_back(std::move(report));
  }
  if (!reports.ok()) return Failed(db_, path_);
  Statement capsules(db_, "SELECT job, bytes FROM capsules");
  while (capsules.Next()) {
    v1::JobCapsule& capsule = state.capsules[JobId(capsules.BytesAt(0))];
    if (!capsule.ParseFromString(capsules.BytesAt(1))) {
      return absl::DataLossError(
          absl::StrCat(path_, ": the capsule of ", capsules.BytesAt(0), " is damaged"));
    }
  }
  if (!capsules.ok()) return Failed(db_, path_);
  Statement committee(
      db_, "SELECT bytes, node_lease_ns, isolation_ns, orphan_ns, orphan_since_ns, boot_id FROM committee");
  if (committee.Next()) {
    StoredCommittee& kept = state.committee;
    if (!kept.committee.ParseFromString(committee.BytesAt(0))) {
      return absl::DataLossError(absl::StrCat(path_, ": the committee is damaged"));
    }
    kept.node_lease_ns = committee.IntAt(1);
    kept.isolation_ns = committee.IntAt(2);
    kept.orphan_ns = committee.IntAt(3);
    kept.orphan_since_ns = committee.IntAt(4);
    kept.boot_id = committee.BytesAt(5);
  }
  if (!committee.ok()) return Failed(db_, path_);
  return state;
}

absl::Status AgentStore::Store(const StoreCluster& action) {
  Statement write(db_, "INSERT OR REPLACE INTO meta VALUES('cluster_id', ?), ('term', ?)");
  return write.Text(action.cluster_id).Text(absl::StrCat(action.term)).Run() ? absl::OkStatus()
                                                                             : Failed(db_, path_);
}

absl::Status AgentStore::PutJob(const std::string& job, const StoredJob& stored) {
  Statement write(db_, "INSERT OR REPLACE INTO attempts VALUES(?, ?, ?, ?, ?)");
  write.Text(job).Int(stored.launched).Int(stored.tombstone).Int(stored.gone);
  return write.Int(static_cast<int64_t>(stored.last_event)).Run() ? absl::OkStatus() : Failed(db_, path_);
}

absl::Status AgentStore::Store(const StoreJob& action) { return PutJob(action.job.str(), action.stored); }

absl::Status AgentStore::Store(const StoreReport& action) {
  Transaction transaction(db_);
  if (!transaction.begun()) return Failed(db_, path_);
  absl::Status job = PutJob(action.report.job_id(), action.stored);
  if (!job.ok()) return job;
  const int64_t number = static_cast<int64_t>(action.report.number());
  Statement report(db_, "INSERT INTO reports VALUES(?, ?)");
  if (!report.Int(number).Blob(action.report.SerializeAsString()).Run()) return Failed(db_, path_);
  Statement last(db_, "INSERT OR REPLACE INTO meta VALUES('last_report', ?)");
  if (!last.Text(absl::StrCat(number)).Run()) return Failed(db_, path_);
  return transaction.Commit() ? absl::OkStatus() : Failed(db_, path_);
}

absl::Status AgentStore::Store(const StoreCapsule& action) {
  Statement write(db_, "INSERT OR REPLACE INTO capsules VALUES(?, ?)");
  write.Text(action.capsule.job_id()).Blob(action.capsule.SerializeAsString());
  return write.Run() ? absl::OkStatus() : Failed(db_, path_);
}

absl::Status AgentStore::Store(const DropCapsule& action) {
  Statement drop(db_, "DELETE FROM capsules WHERE job = ?");
  return drop.Text(action.job.str()).Run() ? absl::OkStatus() : Failed(db_, path_);
}

absl::Status AgentStore::Store(const StoreCommittee& action) {
  const StoredCommittee& kept = action.stored;
  Statement write(db_, "INSERT OR REPLACE INTO committee VALUES(1, ?, ?, ?, ?, ?, ?)");
  write.Blob(kept.committee.SerializeAsString()).Int(kept.node_lease_ns).Int(kept.isolation_ns);
  write.Int(kept.orphan_ns).Int(kept.orphan_since_ns).Text(kept.boot_id);
  return write.Run() ? absl::OkStatus() : Failed(db_, path_);
}

absl::Status AgentStore::Store(const DropReports& action) {
  Statement drop(db_, "DELETE FROM reports WHERE number <= ?");
  return drop.Int(static_cast<int64_t>(action.up_to)).Run() ? absl::OkStatus() : Failed(db_, path_);
}

absl::Status AgentStore::Store(const DropJob& action) {
  Statement drop(db_, "DELETE FROM attempts WHERE job = ?");
  return drop.Text(action.job.str()).Run() ? absl::OkStatus() : Failed(db_, path_);
}

}  // namespace dgxrun::agent
