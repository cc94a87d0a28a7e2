#include <memory>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_LMDB
#include <lmdb.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/file.h"
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_LMDB
namespace {

Status FromLmdb(int code, const char* what) {
  if (code == 0) return OkStatus();
  return Internal(std::string("LMDB, ") + what + ": " + mdb_strerror(code));
}

// A write transaction that ends with its scope.
class Transaction {
 public:
  explicit Transaction(MDB_env* env) : begun_(mdb_txn_begin(env, nullptr, 0, &txn_)) {}
  ~Transaction() {
    if (txn_ != nullptr) mdb_txn_abort(txn_);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  Status begun() const { return FromLmdb(begun_, "begin"); }
  MDB_txn* get() const { return txn_; }
  Status Commit() { return FromLmdb(mdb_txn_commit(std::exchange(txn_, nullptr)), "commit"); }

 private:
  MDB_txn* txn_ = nullptr;
  int begun_;
};

class LmdbEngine final : public Engine {
 public:
  explicit LmdbEngine(std::string folder) : folder_(std::move(folder)) {}
  ~LmdbEngine() override {
    if (env_ != nullptr) mdb_env_close(env_);
  }

  Status Open(int /*writers*/, int /*readers*/) override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    FB_RETURN_IF_ERROR(MakeFolders(folder_));
    next_ = 0;
    FB_RETURN_IF_ERROR(FromLmdb(mdb_env_create(&env_), "create"));
    FB_RETURN_IF_ERROR(FromLmdb(mdb_env_set_mapsize(env_, size_t{2} << 30), "map size"));
    FB_RETURN_IF_ERROR(FromLmdb(mdb_env_open(env_, folder_.c_str(), 0, 0644), "open"));
    Transaction txn(env_);
    FB_RETURN_IF_ERROR(txn.begun());
    FB_RETURN_IF_ERROR(FromLmdb(mdb_dbi_open(txn.get(), nullptr, MDB_INTEGERKEY, &dbi_), "dbi"));
    return txn.Commit();
  }

  Status Insert(const Record& record) override {
    Transaction txn(env_);
    FB_RETURN_IF_ERROR(txn.begun());
    uint64_t number = next_++;  // under LMDB's lock of the one writer
    MDB_val key{sizeof(number), &number};
    MDB_val value{record.bytes.size(), const_cast<char*>(record.bytes.data())};
    FB_RETURN_IF_ERROR(FromLmdb(mdb_put(txn.get(), dbi_, &key, &value, MDB_APPEND), "put"));
    return txn.Commit();
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    Transaction txn(env_);
    FB_RETURN_IF_ERROR(txn.begun());
    MDB_cursor* cursor = nullptr;
    FB_RETURN_IF_ERROR(FromLmdb(mdb_cursor_open(txn.get(), dbi_, &cursor), "cursor"));
    int code = 0;
    bool fits = true;
    for (size_t i = 0; i < kBatchRecords && code == 0 && fits; ++i) {
      MDB_val key, value;
      code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
      if (code != 0) break;
      fits = sink.Add(value.mv_data, value.mv_size);
      code = mdb_cursor_del(cursor, 0);
    }
    mdb_cursor_close(cursor);
    FB_RETURN_IF_ERROR(FromLmdb(code, "sample"));
    if (!fits) return DataLoss("a record is longer than any that was inserted");
    return txn.Commit();
  }

  Status Close() override {
    mdb_env_close(std::exchange(env_, nullptr));
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    return OkStatus();
  }

  std::string Description() const override {
    return std::string(MDB_VERSION_STRING) + ", synchronous commits";
  }

 private:
  const std::string folder_;
  MDB_env* env_ = nullptr;
  MDB_dbi dbi_ = 0;
  uint64_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeLmdb(const PeerOptions& options) {
  return std::unique_ptr<Engine>(std::make_unique<LmdbEngine>(options.folder + "/lmdb"));
}
#else
Result<std::unique_ptr<Engine>> MakeLmdb(const PeerOptions& /*options*/) {
  return PeerMissing("LMDB (liblmdb-dev)");
}
#endif

}  // namespace forebay::bench
