#include <memory>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_SQLITE
#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_SQLITE
namespace {

// One connection under a lock: SQLite has one writer, and its busy handler would only sleep.
class SqliteEngine final : public Engine {
 public:
  explicit SqliteEngine(std::string path) : path_(std::move(path)) {}
  ~SqliteEngine() override { CloseAll(); }

  Status Open(int /*writers*/, int /*readers*/) override {
    RemoveFiles();
    FB_RETURN_IF_ERROR(Check(sqlite3_open(path_.c_str(), &db_), "open"));
    for (const char* sql :
         {"PRAGMA page_size=16384", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
          "CREATE TABLE queue(id INTEGER PRIMARY KEY, bytes BLOB)"}) {
      FB_RETURN_IF_ERROR(Check(sqlite3_exec(db_, sql, nullptr, nullptr, nullptr), sql));
    }
    FB_RETURN_IF_ERROR(PrepareSql("INSERT INTO queue(bytes) VALUES(?)", insert_));
    FB_RETURN_IF_ERROR(PrepareSql("SELECT id, bytes FROM queue ORDER BY id LIMIT ?", select_));
    FB_RETURN_IF_ERROR(PrepareSql("DELETE FROM queue WHERE id <= ?", delete_));
    FB_RETURN_IF_ERROR(PrepareSql("BEGIN IMMEDIATE", begin_));
    return PrepareSql("COMMIT", commit_);
  }

  Status Insert(const Record& record) override {
    const std::lock_guard lock(mutex_);
    FB_RETURN_IF_ERROR(Check(
        sqlite3_bind_blob64(insert_, 1, record.bytes.data(), record.bytes.size(), SQLITE_STATIC),
        "bind"));
    return Step(insert_);
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    const std::lock_guard lock(mutex_);
    FB_RETURN_IF_ERROR(Step(begin_));
    int64_t last = 0;
    bool fits = true;
    sqlite3_bind_int64(select_, 1, static_cast<int64_t>(kBatchRecords));
    while (sqlite3_step(select_) == SQLITE_ROW) {
      last = sqlite3_column_int64(select_, 0);
      fits = sink.Add(sqlite3_column_blob(select_, 1),
                      static_cast<size_t>(sqlite3_column_bytes(select_, 1))) &&
             fits;
    }
    FB_RETURN_IF_ERROR(Check(sqlite3_reset(select_), "select"));
    if (!fits) return DataLoss("a record is longer than any that was inserted");
    sqlite3_bind_int64(delete_, 1, last);
    FB_RETURN_IF_ERROR(Step(delete_));
    return Step(commit_);
  }

  Status Close() override {
    CloseAll();
    return OkStatus();
  }

  std::string Description() const override {
    return std::string("SQLite ") + sqlite3_libversion() + ", WAL, synchronous=FULL";
  }

 private:
  Status Check(int code, const char* what) const {
    if (code == SQLITE_OK || code == SQLITE_DONE || code == SQLITE_ROW) return OkStatus();
    return Internal(std::string("SQLite, ") + what + ": " + sqlite3_errmsg(db_));
  }
  Status PrepareSql(const char* sql, sqlite3_stmt*& statement) {
    return Check(sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr), sql);
  }
  Status Step(sqlite3_stmt* statement) {
    const Status status = Check(sqlite3_step(statement), "step");
    sqlite3_reset(statement);
    return status;
  }
  void CloseAll() {
    if (db_ == nullptr) return;
    for (sqlite3_stmt** statement : {&insert_, &select_, &delete_, &begin_, &commit_}) {
      sqlite3_finalize(std::exchange(*statement, nullptr));
    }
    sqlite3_close(std::exchange(db_, nullptr));
    RemoveFiles();
  }
  void RemoveFiles() const {
    std::error_code ignored;
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::filesystem::remove(path_ + suffix, ignored);
    }
  }

  const std::string path_;
  std::mutex mutex_;
  sqlite3* db_ = nullptr;
  sqlite3_stmt *insert_ = nullptr, *select_ = nullptr, *delete_ = nullptr, *begin_ = nullptr,
               *commit_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeSqlite(const PeerOptions& options) {
  return std::unique_ptr<Engine>(std::make_unique<SqliteEngine>(options.folder + "/q.sqlite"));
}
#else
Result<std::unique_ptr<Engine>> MakeSqlite(const PeerOptions& /*options*/) {
  return PeerMissing("SQLite (libsqlite3-dev)");
}
#endif

}  // namespace forebay::bench
