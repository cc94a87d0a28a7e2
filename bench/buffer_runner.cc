#include "bench/buffer_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/buffer_engine.h"
#include "bench/buffer_payload.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr int64_t kNobodyWaits = std::numeric_limits<int64_t>::max();

uint32_t Since(TimePoint begin) {
  const int64_t ns = (Now() - begin).count();
  return static_cast<uint32_t>(std::min<int64_t>(ns, std::numeric_limits<uint32_t>::max()));
}

// Each record once. At most kOutstandingRecordsMax of a writer are on their way, so a ring of the
// last sequence seen in each slot tells a repeated record and a lost one from the next in turn.
class OnceCheck {
 public:
  explicit OnceCheck(int writers) : seen_(static_cast<size_t>(writers)) {}

  Status Consume(int writer, int64_t seq) {
    if (seq < 0) return DataLoss("a record with a negative sequence");
    std::atomic<int64_t>& slot =
        seen_[static_cast<size_t>(writer)][static_cast<size_t>(seq) % kSlots];
    const int64_t expected = seq < kSlots ? 0 : seq + 1 - kSlots;
    const int64_t before = slot.exchange(seq + 1);
    if (before == expected) return OkStatus();
    return DataLoss(fmt::format("record {} of writer {} was {}", seq, writer,
                                before > seq ? "consumed twice" : "preceded by one that was lost"));
  }

 private:
  static constexpr int64_t kSlots = 2 * kOutstandingRecordsMax;
  std::vector<std::array<std::atomic<int64_t>, kSlots>> seen_;
};

class Window {
 public:
  Window(Engine& engine, const WindowOptions& options)
      : engine_(engine),
        options_(options),
        checker_(options.sizes, options.writers),
        once_(options.writers),
        writing_(options.writers) {
    for (int i = 0; i < options.writers; ++i) {
      payloads_.emplace_back(options.sizes, i, engine.id_base());
    }
  }

  Result<WindowResult> Run() {
    std::vector<Side> writers(static_cast<size_t>(options_.writers));
    std::vector<Side> readers(static_cast<size_t>(options_.readers));
    std::vector<std::thread> threads;
    threads.reserve(writers.size() + readers.size());
    for (int i = 0; i < options_.writers; ++i) {
      threads.emplace_back([this, i, &side = writers[static_cast<size_t>(i)]] { Write(i, side); });
    }
    for (int i = 0; i < options_.readers; ++i) {
      threads.emplace_back([this, i, &side = readers[static_cast<size_t>(i)]] { Read(i, side); });
    }
    Sleep(options_.warmup_s);
    const TimePoint begin = Now();
    measuring_ = true;
    Sleep(options_.seconds);
    measuring_ = false;
    const double seconds = Seconds(Now() - begin);
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return failure_;
    }
    return Summarize(writers, readers, seconds);
  }

 private:
  struct Side {
    std::vector<uint32_t> nanoseconds;
    int64_t records = 0, bytes = 0;  // while measuring
  };

  static WindowResult Summarize(const std::vector<Side>& writers, const std::vector<Side>& readers,
                                double seconds) {
    WindowResult result;
    std::vector<uint32_t> inserts, samples;
    for (const Side& side : writers) {
      inserts.insert(inserts.end(), side.nanoseconds.begin(), side.nanoseconds.end());
      result.appends_per_s += static_cast<double>(side.records) / seconds;
      result.bytes_per_s += static_cast<double>(side.bytes) / seconds;
    }
    for (const Side& side : readers) {
      samples.insert(samples.end(), side.nanoseconds.begin(), side.nanoseconds.end());
      result.sampled_per_s += static_cast<double>(side.records) / seconds;
    }
    result.insert = PercentilesOf(std::move(inserts));
    result.sample = PercentilesOf(std::move(samples));
    return result;
  }

  // Sleeps, but not past a failure.
  void Sleep(double seconds) const {
    const TimePoint end = Now() + FromSeconds(seconds);
    while (Now() < end && !failed_) {
      std::this_thread::sleep_for(std::min<Duration>(kPoll, end - Now()));
    }
  }

  void Fail(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    failed_ = true;
    stop_ = true;
    enough_.notify_all();
  }

  bool TakeCredit() {
    while (!credit_.try_acquire_for(kPoll)) {
      if (stop_) return false;
    }
    return !stop_;
  }

  void Write(int writer, Side& side) {
    WriterPayloads& payloads = payloads_[static_cast<size_t>(writer)];
    side.nanoseconds.reserve(size_t{1} << 18);
    while (TakeCredit()) {
      const Record record = payloads.Next();
      Status status = engine_.Prepare(record);
      const TimePoint begin = Now();
      if (status.ok()) status = engine_.Insert(record);
      const uint32_t took = Since(begin);
      if (!status.ok()) {
        Fail(status.WithContext("insert"));
        break;
      }
      if (measuring_) {
        side.nanoseconds.push_back(took);
        ++side.records;
        side.bytes += static_cast<int64_t>(record.bytes.size());
      }
      if (acknowledged_.fetch_add(1) + 1 >= wanted_.load()) Wake();
    }
    if (writing_.fetch_sub(1) == 1) Wake();
  }

  void Wake() {
    const std::lock_guard lock(mutex_);
    enough_.notify_all();
  }

  // Waits until `target` records were acknowledged; false when they never will be.
  bool WaitForAcknowledged(int64_t target) {
    if (acknowledged_.load() >= target) return true;
    std::unique_lock lock(mutex_);
    while (acknowledged_.load() < target && writing_.load() > 0 && !failed_) {
      wanted_ = std::min(wanted_.load(), target);
      if (acknowledged_.load() >= target) break;
      enough_.wait_for(lock, kPoll);
    }
    wanted_ = kNobodyWaits;  // another reader that still waits lowers it again, at the latest at
                             // its next poll
    if (options_.readers > 1) enough_.notify_all();
    return acknowledged_.load() >= target && !failed_;
  }

  void Read(int reader, Side& side) {
    BatchSink sink(kRecordBytesMax);
    side.nanoseconds.reserve(size_t{1} << 16);
    std::vector<int64_t> next(static_cast<size_t>(options_.writers), 0);
    constexpr auto kBatch = static_cast<int64_t>(kBatchRecords);
    while (WaitForAcknowledged(claimed_.fetch_add(kBatch) + kBatch)) {
      sink.Clear();
      const TimePoint begin = Now();
      Status status = engine_.Sample(reader, sink);
      const uint32_t took = Since(begin);
      if (status.ok()) status = Check(sink, next);
      if (!status.ok()) {
        Fail(status.WithContext("sample"));
        return;
      }
      if (measuring_) {
        side.nanoseconds.push_back(took);
        side.records += kBatch;
      }
      credit_.release(kBatch);
    }
  }

  Status Check(const BatchSink& sink, std::vector<int64_t>& next) {
    if (sink.records().size() != kBatchRecords) {
      return DataLoss(
          fmt::format("a batch of {} records, not {}", sink.records().size(), kBatchRecords));
    }
    for (const std::string_view bytes : sink.records()) {
      FB_ASSIGN_OR_RETURN(const PayloadChecker::Identity id, checker_.Identify(bytes));
      FB_RETURN_IF_ERROR(once_.Consume(id.writer, id.seq));
      int64_t& wanted = next[static_cast<size_t>(id.writer)];
      const bool in_order = options_.readers == 1 ? id.seq == wanted : id.seq >= wanted;
      if (!in_order) {
        return DataLoss(fmt::format("record {} of writer {} came where {} was expected", id.seq,
                                    id.writer, wanted));
      }
      wanted = id.seq + 1;
    }
    return OkStatus();
  }

  Engine& engine_;
  const WindowOptions options_;
  std::vector<WriterPayloads> payloads_;
  const PayloadChecker checker_;
  OnceCheck once_;
  std::counting_semaphore<kOutstandingRecordsMax> credit_{kOutstandingRecordsMax};
  std::atomic<int64_t> acknowledged_{0}, claimed_{0}, wanted_{kNobodyWaits};
  std::atomic<int> writing_;
  std::atomic<bool> measuring_{false}, stop_{false}, failed_{false};
  std::mutex mutex_;
  std::condition_variable enough_;
  Status failure_;  // the first; under mutex_
};

}  // namespace

bool BatchSink::Add(const void* data, size_t size) {
  if (size > bytes_.size() - used_) return false;
  std::memcpy(bytes_.data() + used_, data, size);
  records_.emplace_back(bytes_.data() + used_, size);
  used_ += size;
  return true;
}

Status Engine::Prepare(const Record& /*record*/) { return OkStatus(); }

Percentiles PercentilesOf(std::vector<uint32_t> nanoseconds) {
  if (nanoseconds.empty()) return {};
  std::ranges::sort(nanoseconds);
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(nanoseconds.size()));
    const auto index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
    return nanoseconds[std::min(index, nanoseconds.size() - 1)] / 1000.0;
  };
  return {.p50_us = at(0.5),
          .p99_us = at(0.99),
          .p999_us = at(0.999),
          .count = static_cast<int64_t>(nanoseconds.size())};
}

Result<WindowResult> RunWindow(Engine& engine, const WindowOptions& options) {
  FB_RETURN_IF_ERROR(engine.Open(options.writers, options.readers).WithContext("open"));
  auto window = std::make_unique<Window>(engine, options);
  auto result = window->Run();
  const Status closed = engine.Close().WithContext("close");
  if (result.ok() && !closed.ok()) return closed;
  return result;
}

}  // namespace forebay::bench
