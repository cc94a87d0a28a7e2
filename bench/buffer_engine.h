// Engine: what `forebay-bench buffer` measures, ours and every peer's alike.
//
// One window of a measurement is Open, any number of Insert and Sample, Close; an engine can be
// opened again and starts empty each time. A server that an engine started lives until the engine
// is destroyed. Every call has a deadline of its own and returns an error rather than hang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::bench {

inline constexpr size_t kBatchRecords = 64;
inline constexpr int64_t kIdBaseUnit = int64_t{1} << 40;
// How long an engine may wait for one answer.
inline constexpr int kEngineWaitMsMax = 20'000;

// One record to insert; `bytes` is an encoded trajectory whose id names writer and seq.
struct Record {
  int writer = 0;
  int64_t seq = 0;
  std::string_view bytes;  // the caller's, until Insert returns
};

// Where a reader copies its batch: one allocation, touched before it is measured.
class BatchSink {
 public:
  explicit BatchSink(size_t record_bytes_max) : bytes_(kBatchRecords * record_bytes_max, '\1') {}
  void Clear() {
    records_.clear();
    used_ = 0;
  }
  // False when the record does not fit: it is longer than any that was inserted.
  bool Add(const void* data, size_t size);
  // The copies, until Clear.
  const std::vector<std::string_view>& records() const { return records_; }

 private:
  std::string bytes_;
  size_t used_ = 0;
  std::vector<std::string_view> records_;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Ready for `writers` threads that insert and `readers` that sample, and empty.
  virtual Status Open(int writers, int readers) = 0;
  // Added to the ids of all records, while open: where ids are given out by the engine. A multiple
  // of kIdBaseUnit.
  virtual int64_t id_base() const { return 0; }
  // Outside of the measured time: what must come before this record's Insert.
  virtual Status Prepare(const Record& record);
  // Blocks until the engine acknowledged the record in its own sense (memory, kill, power loss).
  // Called by one thread for each writer.
  virtual Status Insert(const Record& record) = 0;
  // Copies exactly kBatchRecords records, oldest first, into the sink and consumes them. That many
  // are acknowledged when it is called. One thread for each reader.
  virtual Status Sample(int reader, BatchSink& sink) = 0;
  // Ends the window; no call is running. What was not sampled is dropped.
  virtual Status Close() = 0;

  // The peer's version and how it is reached, for the report.
  virtual std::string Description() const { return ""; }
};

}  // namespace forebay::bench
