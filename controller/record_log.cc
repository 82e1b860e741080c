#include "controller/record_log.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "controller/sha256.h"
#include "controller/wal_check.h"
#include "sqlite3.h"

namespace dgxrun {
namespace {

constexpr int kFormat = 1;  // PRAGMA user_version; raised when an older binary could not read the file
// A WAL beyond this is folded back into the file: some thousand records, so that opening stays quick.
constexpr int kCheckpointPages = 1000;

// log.archived: number of the job whose archiving the row tells of, else 0.
constexpr char kSchema[] =
    "CREATE TABLE log(seq INTEGER PRIMARY KEY AUTOINCREMENT, term INTEGER NOT NULL, job TEXT NOT NULL,"
    " archived INTEGER NOT NULL, bytes BLOB NOT NULL, sum INTEGER NOT NULL);"
    "CREATE INDEX log_job ON log(job) WHERE job <> '';"
    "CREATE INDEX log_archived ON log(archived) WHERE archived > 0;"
    "CREATE TABLE archive(number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,"
    " owner INTEGER NOT NULL, submit_key TEXT NOT NULL, status BLOB NOT NULL, ended INTEGER NOT NULL);"
    "CREATE INDEX archive_name ON archive(name, number);"
    "CREATE INDEX archive_owner ON archive(owner, number);"
    "CREATE INDEX archive_key ON archive(owner, submit_key);";
constexpr char kArchiveColumns[] = "SELECT number, id, name, owner, submit_key, status, ended FROM archive ";

// The first 8 bytes of SHA-256: not against forgers, against disks; with the sequence number, so that a
// row that was written over another is found too.
int64_t Checksum(int64_t seq, const LogRow& row) {
  const std::string text = absl::StrCat(seq, " ", row.term, " ", row.job.str(), " ", row.bytes);
  const auto digest = Sha256(text);
  int64_t sum;
  memcpy(&sum, digest.data(), sizeof sum);
  return sum;
}

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { rc_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  int prepared() const { return rc_; }
  Statement& Int(int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& Text(const std::string& value) {
    sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& Blob(const std::string& value) {
    sqlite3_bind_blob(statement_, ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
    return *this;
  }
  int Step() { return rc_ == SQLITE_OK ? sqlite3_step(statement_) : rc_; }
  void Reset() {
    sqlite3_reset(statement_);
    bound_ = 0;
  }
  int64_t GetInt(int column) { return sqlite3_column_int64(statement_, column); }
  std::string GetBytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? "" : std::string(static_cast<const char*>(data), size);
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int rc_ = SQLITE_OK;
  int bound_ = 0;
};

class SqliteLog : public RecordLog {
 public:
  explicit SqliteLog(std::string path) : path_(std::move(path)) {}
  ~SqliteLog() override {
    insert_.reset();
    last_seq_.reset();
    sqlite3_close(db_);
  }

  absl::Status OpenFile(bool durable);
  std::string CutTail() const override { return cut_tail_; }
  absl::Status Replay(const std::function<absl::Status(const LogRow&)>& row) override;
  absl::Status Append(const std::vector<LogRow>& rows) override;
  absl::Status Archive(const ArchivedJob& job, const LogRow& last, size_t keep) override;

  absl::StatusOr<std::optional<ArchivedJob>> ArchivedById(const JobId& id) override {
    Statement find(db_, absl::StrCat(kArchiveColumns, "WHERE id = ?").c_str());
    return One(find.Text(id.str()));
  }
  absl::StatusOr<std::optional<ArchivedJob>> ArchivedByKey(uint32_t owner, const std::string& key) override {
    Statement find(db_, absl::StrCat(kArchiveColumns, "WHERE owner = ? AND submit_key = ?").c_str());
    return One(find.Int(owner).Text(key));
  }
  absl::StatusOr<std::optional<ArchivedJob>> ArchivedByName(const std::string& name) override {
    Statement find(db_, absl::StrCat(kArchiveColumns, "WHERE name = ? ORDER BY number DESC LIMIT 1").c_str());
    return One(find.Text(name));
  }
  absl::StatusOr<std::vector<ArchivedJob>> NewestArchived(std::optional<uint32_t> owner,
                                                          size_t limit) override {
    Statement find(db_, absl::StrCat(kArchiveColumns, owner.has_value() ? "WHERE owner = ? " : "",
                                     "ORDER BY number DESC LIMIT ?")
                            .c_str());
    if (owner.has_value()) find.Int(*owner);
    return All(find.Int(static_cast<int64_t>(limit)));
  }

 private:
  // For what every commit needs: to parse it costs more than to run it.
  Statement& Prepared(std::optional<Statement>* statement, const char* sql) {
    const bool usable = statement->has_value() && (*statement)->prepared() == SQLITE_OK;
    if (!usable) statement->emplace(db_, sql);
    return **statement;
  }
  absl::Status Error(int rc) const;
  absl::Status Execute(const std::string& sql);
  absl::Status CheckTail();
  std::string FirstDamage() const;
  absl::Status InsertRow(const LogRow& row, uint64_t archived, int64_t seq);
  absl::StatusOr<int64_t> LastSeq();
  absl::Status InTransaction(const std::function<absl::Status()>& body);
  absl::StatusOr<std::vector<ArchivedJob>> All(Statement& find);
  absl::StatusOr<std::optional<ArchivedJob>> One(Statement& find) {
    absl::StatusOr<std::vector<ArchivedJob>> all = All(find);
    if (!all.ok()) return all.status();
    if (all->empty()) return std::optional<ArchivedJob>();
    return std::optional<ArchivedJob>(std::move(all->front()));
  }

  const std::string path_;
  std::string cut_tail_;
  sqlite3* db_ = nullptr;
  std::optional<Statement> insert_, last_seq_;
};

absl::Status SqliteLog::Error(int rc) const {
  const std::string why = db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(rc);
  switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(path_, ": another controller uses this log"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          absl::StrCat(path_, ": the disk is full; nothing is decided until there is room"));
    case SQLITE_IOERR: {
      const int error = db_ != nullptr ? sqlite3_system_errno(db_) : 0;
      return absl::UnavailableError(
          absl::StrCat(path_, ": cannot be read or written: ", error != 0 ? strerror(error) : why));
    }
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(
          absl::StrCat(path_, ": is damaged (", why, FirstDamage(), "); restore it from a backup"));
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return absl::PermissionDeniedError(absl::StrCat(path_, ": cannot be opened for writing (", why, ")"));
    default:
      return absl::InternalError(absl::StrCat(path_, ": ", why));
  }
}

absl::Status SqliteLog::Execute(const std::string& sql) {
  const int rc = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? absl::OkStatus() : Error(rc);
}

absl::Status SqliteLog::OpenFile(bool durable) {
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  struct statfs info;
  if (statfs(folder.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(folder, ": ", strerror(errno)));
  }
  if (const char* name = NetworkFileSystemName(info.f_type)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": is on ", name,
                     "; the log needs a local disk, since locks and flushes of a network file "
                     "system cannot be relied on: set [controller] state_dir to one"));
  }
  // Made by us rather than by SQLite, so that it is never readable by others, whatever the umask.
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::PermissionDeniedError(absl::StrCat(path_, ": ", strerror(errno)));
  close(fd);
  int rc = sqlite3_open_v2(path_.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (rc != SQLITE_OK) return Error(rc);
  sqlite3_extended_result_codes(db_, 1);
  // Until a replay shows that all is well: to close a database folds its WAL into it and deletes it, damage
  // included.
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  // EXCLUSIVE before the first access: then the WAL needs no shared memory and nobody else gets in. What is
  // not durable flushes nothing, the change to WAL included.
  absl::Status status =
      Execute(absl::StrCat("PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=", durable ? "FULL" : "OFF",
                           "; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=", kCheckpointPages, ";"));
  if (!status.ok()) return status;
  status = Execute("BEGIN IMMEDIATE");
  if (!status.ok()) return status;
  absl::Cleanup rollback = [this] { sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr); };
  status = CheckTail();
  if (!status.ok()) return status;
  int64_t format = 0;
  {
    Statement version(db_, "PRAGMA user_version");
    if ((rc = version.Step()) != SQLITE_ROW) return Error(rc);
    format = version.GetInt(0);
  }
  if (format > kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": was written by a newer dgxrun (format ",
                                                      format, ", this one knows ", kFormat, ")"));
  }
  if (format == 0) {
    status = Execute(absl::StrCat(kSchema, "PRAGMA user_version=", kFormat));
    if (!status.ok()) return status;
  }
  status = Execute("COMMIT");
  if (!status.ok()) return status;
  std::move(rollback).Cancel();
  return absl::OkStatus();
}

absl::Status SqliteLog::CheckTail() {
  absl::StatusOr<TornTail> tail = CheckWal(path_ + "-wal");
  if (!tail.ok()) return tail.status();
  if (tail->bytes == 0) return absl::OkStatus();
  cut_tail_ = absl::StrCat(path_, "-wal: ", tail->bytes, " bytes from offset ", tail->offset,
                           " on were half written by a crash and are cut off; nothing of them was confirmed");
  return absl::OkStatus();
}

// Where it is, if SQLite can tell.
std::string SqliteLog::FirstDamage() const {
  if (db_ == nullptr) return "";
  Statement check(db_, "PRAGMA quick_check(1)");
  if (check.Step() != SQLITE_ROW) return "";
  std::string text = check.GetBytes(0);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text == "ok" ? "" : absl::StrCat("; ", text);
}

absl::Status SqliteLog::Replay(const std::function<absl::Status(const LogRow&)>& row) {
  Statement all(db_, "SELECT seq, term, job, bytes, sum FROM log ORDER BY seq");
  int rc;
  while ((rc = all.Step()) == SQLITE_ROW) {
    const int64_t seq = all.GetInt(0);
    LogRow next{static_cast<uint64_t>(all.GetInt(1)), JobId(all.GetBytes(2)), all.GetBytes(3)};
    if (Checksum(seq, next) != all.GetInt(4)) {
      return absl::DataLossError(absl::StrCat(path_, ": row ", seq, " of the log",
                                              next.job.empty() ? "" : " (job " + next.job.str() + ")",
                                              " is damaged; restore the file from a backup"));
    }
    absl::Status status = row(next);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(path_, ": row ", seq, ": ", status.message()));
    }
  }
  if (rc != SQLITE_DONE) return Error(rc);
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SqliteLog::LastSeq() {
  // Of the counter, not of the rows: a number is not used again after its row was dropped.
  Statement& last = Prepared(&last_seq_, "SELECT seq FROM sqlite_sequence WHERE name = 'log'");
  const int rc = last.Step();
  const int64_t seq = rc == SQLITE_ROW ? last.GetInt(0) : 0;
  const absl::Status status = rc == SQLITE_ROW || rc == SQLITE_DONE ? absl::OkStatus() : Error(rc);
  last.Reset();
  if (!status.ok()) return status;
  return seq;
}

absl::Status SqliteLog::InsertRow(const LogRow& row, uint64_t archived, int64_t seq) {
  Statement& insert =
      Prepared(&insert_, "INSERT INTO log(seq, term, job, archived, bytes, sum) VALUES(?, ?, ?, ?, ?, ?)");
  insert.Int(seq).Int(static_cast<int64_t>(row.term)).Text(row.job.str()).Int(static_cast<int64_t>(archived));
  const int rc = insert.Blob(row.bytes).Int(Checksum(seq, row)).Step();
  absl::Status status = rc == SQLITE_DONE ? absl::OkStatus() : Error(rc);
  insert.Reset();
  return status;
}

absl::Status SqliteLog::InTransaction(const std::function<absl::Status()>& body) {
  absl::Status status = Execute("BEGIN IMMEDIATE");
  if (!status.ok()) return status;
  status = body();
  if (status.ok()) status = Execute("COMMIT");
  // After some errors SQLite has rolled back by itself; a second ROLLBACK does no harm.
  if (!status.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status SqliteLog::Append(const std::vector<LogRow>& rows) {
  if (rows.empty()) return absl::OkStatus();
  return InTransaction([&]() -> absl::Status {
    absl::StatusOr<int64_t> seq = LastSeq();
    if (!seq.ok()) return seq.status();
    for (const LogRow& row : rows) {
      absl::Status status = InsertRow(row, 0, ++*seq);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status SqliteLog::Archive(const ArchivedJob& job, const LogRow& last, size_t keep) {
  return InTransaction([&]() -> absl::Status {
    Statement insert(db_,
                     "INSERT OR REPLACE INTO archive(number, id, name, owner, submit_key, status, ended)"
                     " VALUES(?, ?, ?, ?, ?, ?, ?)");
    insert.Int(static_cast<int64_t>(job.number)).Text(job.id.str()).Text(job.name).Int(job.owner_uid);
    int rc = insert.Text(job.key).Blob(job.status).Int(job.ended_unix_ns).Step();
    if (rc != SQLITE_DONE) return Error(rc);
    Statement drop(db_, "DELETE FROM log WHERE job = ? AND job <> ''");
    if ((rc = drop.Text(job.id.str()).Step()) != SQLITE_DONE) return Error(rc);
    absl::StatusOr<int64_t> seq = LastSeq();
    if (!seq.ok()) return seq.status();
    absl::Status status = InsertRow({last.term, JobId(), last.bytes}, job.number, *seq + 1);
    if (!status.ok()) return status;
    // Jobs do not end in the order of their numbers: the row of the highest stays, since the counter of
    // job ids rests on it.
    Statement trim(db_,
                   "DELETE FROM log WHERE archived > 0 AND archived <> (SELECT max(archived) FROM log)"
                   " AND seq NOT IN (SELECT seq FROM log WHERE archived > 0 ORDER BY seq DESC LIMIT ?)");
    rc = trim.Int(static_cast<int64_t>(keep)).Step();
    return rc == SQLITE_DONE ? absl::OkStatus() : Error(rc);
  });
}

absl::StatusOr<std::vector<ArchivedJob>> SqliteLog::All(Statement& find) {
  std::vector<ArchivedJob> jobs;
  int rc;
  while ((rc = find.Step()) == SQLITE_ROW) {
    ArchivedJob job;
    job.number = static_cast<uint64_t>(find.GetInt(0));
    job.id = JobId(find.GetBytes(1));
    job.name = find.GetBytes(2);
    job.owner_uid = static_cast<uint32_t>(find.GetInt(3));
    job.key = find.GetBytes(4);
    job.status = find.GetBytes(5);
    job.ended_unix_ns = find.GetInt(6);
    jobs.push_back(std::move(job));
  }
  if (rc != SQLITE_DONE) return Error(rc);
  return jobs;
}

}  // namespace

const char* NetworkFileSystemName(int64_t magic) {
  switch (static_cast<uint32_t>(magic)) {
    case 0x6969u:
      return "NFS";
    case 0x517Bu:
      return "SMB";
    case 0xFF534D42u:
      return "CIFS";
    case 0xFE534D42u:
      return "SMB2";
    case 0x0BD00BD0u:
      return "Lustre";
    case 0x47504653u:
      return "GPFS";
    case 0x00C36400u:
      return "CephFS";
    case 0x19830326u:
      return "BeeGFS";
    case 0x5346414Fu:
    case 0x6B414653u:
      return "AFS";
    default:
      return nullptr;
  }
}

absl::StatusOr<std::unique_ptr<RecordLog>> RecordLog::Open(const std::string& path, bool durable) {
  auto log = std::make_unique<SqliteLog>(path);
  absl::Status status = log->OpenFile(durable);
  if (!status.ok()) return status;
  return std::unique_ptr<RecordLog>(std::move(log));
}

}  // namespace dgxrun
