#include <memory>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_ROCKSDB
#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/slice.h>
#include <rocksdb/status.h>
#include <rocksdb/version.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_ROCKSDB
namespace {

// Big-endian, so that the order of the bytes is that of the numbers.
std::string Key(uint64_t number) {
  std::string key(8, '\0');
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<char>(number >> (56 - (8 * i)));
  return key;
}

Status FromRocks(const rocksdb::Status& status) {
  return status.ok() ? OkStatus() : Internal("RocksDB: " + status.ToString());
}

class RocksDbEngine final : public Engine {
 public:
  RocksDbEngine(std::string folder, bool sync) : folder_(std::move(folder)), sync_(sync) {}

  Status Open(int /*writers*/, int /*readers*/) override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;  // random bytes
    options.write_buffer_size = size_t{64} << 20;
    options.max_write_buffer_number = 4;
    options.max_background_jobs = 2;
    options.enable_pipelined_write = true;
    rocksdb::DB* db = nullptr;
    FB_RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(options, folder_, &db)));
    db_.reset(db);
    next_ = 0;
    cursor_ = 0;
    deleted_ = 0;
    return OkStatus();
  }

  Status Insert(const Record& record) override {
    rocksdb::WriteOptions write;
    write.sync = sync_;
    return FromRocks(db_->Put(write, Key(next_.fetch_add(1)),
                              rocksdb::Slice(record.bytes.data(), record.bytes.size())));
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    std::array<std::string, kBatchRecords> keys;
    std::array<rocksdb::Slice, kBatchRecords> slices;
    std::array<rocksdb::PinnableSlice, kBatchRecords> values;
    std::array<rocksdb::Status, kBatchRecords> found;
    for (size_t i = 0; i < kBatchRecords; ++i) {
      keys[i] = Key(cursor_ + i);
      slices[i] = keys[i];
    }
    db_->MultiGet({}, db_->DefaultColumnFamily(), kBatchRecords, slices.data(), values.data(),
                  found.data());
    const TimePoint deadline = Now() + std::chrono::milliseconds(kEngineWaitMsMax);
    for (size_t i = 0; i < kBatchRecords; ++i) {
      // A later number may be acknowledged before an earlier one.
      while (found[i].IsNotFound()) {
        if (Now() > deadline) return DeadlineExceeded("RocksDB lacks an acknowledged record");
        std::this_thread::yield();
        values[i].Reset();
        found[i] = db_->Get({}, db_->DefaultColumnFamily(), slices[i], &values[i]);
      }
      FB_RETURN_IF_ERROR(FromRocks(found[i]));
      if (!sink.Add(values[i].data(), values[i].size())) return DataLoss("a record grew");
    }
    cursor_ += kBatchRecords;
    // The cursor need not be durable at once: after a crash a batch is read again.
    FB_RETURN_IF_ERROR(FromRocks(db_->Put({}, "~cursor", Key(cursor_))));
    if (cursor_ - deleted_ < 8192) return OkStatus();
    const uint64_t from = std::exchange(deleted_, cursor_);
    return FromRocks(db_->DeleteRange({}, db_->DefaultColumnFamily(), Key(from), Key(cursor_)));
  }

  Status Close() override {
    db_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    return OkStatus();
  }

  std::string Description() const override {
    return fmt::format("RocksDB {}.{}.{}, pipelined writes, {}", ROCKSDB_MAJOR, ROCKSDB_MINOR,
                       ROCKSDB_PATCH, sync_ ? "WriteOptions.sync" : "no sync");
  }

 private:
  const std::string folder_;
  const bool sync_;
  std::unique_ptr<rocksdb::DB> db_;
  std::atomic<uint64_t> next_{0};
  uint64_t cursor_ = 0, deleted_ = 0;  // the reader's
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeRocksDb(const PeerOptions& options, bool sync) {
  return std::unique_ptr<Engine>(
      std::make_unique<RocksDbEngine>(options.folder + "/rocksdb", sync));
}
#else
Result<std::unique_ptr<Engine>> MakeRocksDb(const PeerOptions& /*options*/, bool /*sync*/) {
  return PeerMissing("RocksDB (librocksdb-dev)");
}
#endif

}  // namespace forebay::bench
