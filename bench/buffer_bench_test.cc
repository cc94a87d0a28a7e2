// Goal: the runner catches an engine that loses, repeats, reorders or alters a record, or gives
// another number of them, and says so instead of a figure; percentiles and records are what they
// claim. Nothing here depends on speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/buffer_engine.h"
#include "bench/buffer_payload.h"
#include "bench/buffer_runner.h"
#include "bench/peers/reverb_wire.h"
#include "bench/peers/server_process.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {
namespace {

using testing::HasSubstr;

enum class Fault {
  kNone,
  kLoses,
  kRepeats,
  kReorders,
  kAlters,
  kShortens,
  kShortBatch,
  kStrangeId,
  kRefusesInsert,
  kRefusesSample
};

// A queue under a lock with one fault, after the first thousand records.
class FaultyEngine final : public Engine {
 public:
  explicit FaultyEngine(Fault fault) : fault_(fault) {}

  Status Open(int writers, int /*readers*/) override {
    writers_ = writers;
    queue_.clear();
    ++opened_;
    return OkStatus();
  }
  Status Insert(const Record& record) override {
    std::string bytes(record.bytes);
    const std::lock_guard lock(mutex_);
    if (++inserted_ > 1000 && !done_) {
      switch (fault_) {
        case Fault::kLoses:
          // The one before it stands in for it, so that the reader still finds enough.
          done_ = true;
          return OkStatus();
        case Fault::kRepeats:
          done_ = true;
          queue_.push_back(bytes);
          break;
        case Fault::kReorders:
          // Only once there is an older one of this writer.
          if (!queue_.empty() && PeekId(queue_.back())->trajectory_id / RecordId(1, 0) ==
                                     PeekId(bytes)->trajectory_id / RecordId(1, 0)) {
            done_ = true;
            queue_.insert(queue_.end() - 1, bytes);
            return OkStatus();
          }
          break;
        case Fault::kAlters:
          done_ = true;
          bytes.back() = static_cast<char>(bytes.back() ^ 1);
          break;
        case Fault::kShortens:
          done_ = true;
          bytes.pop_back();
          break;
        case Fault::kStrangeId:
          done_ = true;
          bytes[32] = '\xff';  // of a writer that is not there
          break;
        case Fault::kRefusesInsert:
          return ResourceExhausted("full");
        default:
          break;
      }
    }
    queue_.push_back(std::move(bytes));
    return OkStatus();
  }
  Status Sample(int /*reader*/, BatchSink& sink) override {
    const std::lock_guard lock(mutex_);
    if (fault_ == Fault::kRefusesSample) return Unavailable("gone");
    const size_t wanted = fault_ == Fault::kShortBatch ? kBatchRecords - 1 : kBatchRecords;
    for (size_t i = 0; i < wanted && !queue_.empty(); ++i) {
      EXPECT_TRUE(sink.Add(queue_.front().data(), queue_.front().size()));
      queue_.pop_front();
    }
    return OkStatus();
  }
  Status Close() override {
    ++closed_;
    return OkStatus();
  }

  int opened() const { return opened_; }
  int closed() const { return closed_; }

 private:
  const Fault fault_;
  std::mutex mutex_;
  std::deque<std::string> queue_;
  int writers_ = 0, opened_ = 0, closed_ = 0;
  int64_t inserted_ = 0;
  bool done_ = false;
};

Result<WindowResult> Measure(Engine& engine, WindowOptions options = {.writers = 4}) {
  options.warmup_s = 0.05;
  options.seconds = 0.4;
  return RunWindow(engine, options);
}

TEST(RunWindow, AFaultlessEngineHasFigures) {
  for (const RecordSizes sizes : {RecordSizes::k16KiB, RecordSizes::kMix}) {
    FaultyEngine engine(Fault::kNone);
    const auto result = Measure(engine, {.writers = 4, .sizes = sizes});
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_GT(result->appends_per_s, 0);
    EXPECT_GT(result->bytes_per_s, result->appends_per_s * 2000);
    EXPECT_GT(result->sampled_per_s, 0);
    EXPECT_GT(result->insert.count, 0);
    EXPECT_GT(result->sample.count, 0);
    EXPECT_LE(result->insert.p50_us, result->insert.p99_us);
    EXPECT_EQ(engine.opened(), 1);
    EXPECT_EQ(engine.closed(), 1);
  }
}

TEST(RunWindow, SeveralReadersShareTheRecords) {
  FaultyEngine engine(Fault::kNone);
  const auto result = Measure(engine, {.writers = 4, .readers = 3});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_GT(result->sampled_per_s, 0);
}

struct FaultCase {
  Fault fault;
  const char* said;
};

class RunWindowFaults : public testing::TestWithParam<FaultCase> {};

TEST_P(RunWindowFaults, AreErrorsNotFigures) {
  FaultyEngine engine(GetParam().fault);
  const auto result = Measure(engine);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr(GetParam().said));
  EXPECT_EQ(engine.closed(), 1);
}

INSTANTIATE_TEST_SUITE_P(All, RunWindowFaults,
                         testing::Values(FaultCase{Fault::kLoses, "came where"},
                                         FaultCase{Fault::kRepeats, "twice"},
                                         FaultCase{Fault::kReorders, "came where"},
                                         FaultCase{Fault::kAlters, "other bytes"},
                                         FaultCase{Fault::kShortens, "other bytes"},
                                         FaultCase{Fault::kShortBatch, "a batch of 63"},
                                         FaultCase{Fault::kStrangeId, "nobody wrote"},
                                         FaultCase{Fault::kRefusesInsert, "insert: full"},
                                         FaultCase{Fault::kRefusesSample, "sample: gone"}));

TEST(RunWindow, ARepeatIsCaughtWithSeveralReadersToo) {
  FaultyEngine engine(Fault::kRepeats);
  const auto result = Measure(engine, {.writers = 4, .readers = 2});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("sample: record"));
}

TEST(Percentiles, NearestRank) {
  std::vector<uint32_t> ns(1000);
  std::iota(ns.begin(), ns.end(), 1);
  for (uint32_t& x : ns) x *= 1000;
  std::ranges::reverse(ns);
  const Percentiles p = PercentilesOf(ns);
  EXPECT_EQ(p.p50_us, 500);
  EXPECT_EQ(p.p99_us, 990);
  EXPECT_EQ(p.p999_us, 999);
  EXPECT_EQ(p.count, 1000);
  EXPECT_EQ(PercentilesOf({7000}).p50_us, 7);
  EXPECT_EQ(PercentilesOf({7000}).p999_us, 7);
  EXPECT_EQ(PercentilesOf({}).count, 0);
  EXPECT_EQ(PercentilesOf({1000, 2000, 3000}).p50_us, 2);
}

TEST(Payload, IsAnEncodedTrajectoryOfTheWantedSize) {
  for (const size_t bytes : {size_t{512}, size_t{2048}, size_t{16384}, kRecordBytesMax}) {
    const std::string encoded = EncodedTrajectory(3, bytes);
    EXPECT_LE(encoded.size(), bytes);
    EXPECT_GE(encoded.size() + 16, bytes);
    const auto decoded = Decode(encoded);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_GT(decoded->loss_tokens(), 0);
  }
  EXPECT_NE(EncodedTrajectory(3, 2048), EncodedTrajectory(4, 2048));
}

TEST(Payload, NamesItsWriterAndSequence) {
  WriterPayloads payloads(RecordSizes::kMix, 5);
  const PayloadChecker checker(RecordSizes::kMix, 6);
  std::set<size_t> sizes;
  for (int64_t seq = 0; seq < 40; ++seq) {
    const Record record = payloads.Next();
    EXPECT_EQ(record.seq, seq);
    sizes.insert(record.bytes.size());
    const auto decoded = Decode(record.bytes);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->id.trajectory_id, RecordId(5, seq));
    EXPECT_EQ(decoded->id.group_id, RecordId(5, seq));
    const auto identity = checker.Identify(record.bytes);
    ASSERT_TRUE(identity.ok()) << identity.status().ToString();
    EXPECT_EQ(identity->writer, 5);
    EXPECT_EQ(identity->seq, seq);
  }
  EXPECT_GE(sizes.size(), 14U);  // the mix
  EXPECT_LE(*sizes.rbegin(), kRecordBytesMax);
  EXPECT_FALSE(checker.Identify("").ok());
  EXPECT_FALSE(checker.Identify(std::string(16384, 'x')).ok());
  // A writer that the checker does not know.
  EXPECT_FALSE(PayloadChecker(RecordSizes::kMix, 5).Identify(payloads.Next().bytes).ok());
}

TEST(Payload, TheMixHasTheSameSizesForEveryWriter) {
  std::vector<size_t> one = WriterSizes(RecordSizes::kMix, 0);
  std::vector<size_t> other = WriterSizes(RecordSizes::kMix, 1);
  EXPECT_NE(one, other);
  std::ranges::sort(one);
  std::ranges::sort(other);
  EXPECT_EQ(one, other);
  EXPECT_LT(one.front(), 6000U);
  EXPECT_GT(one.back(), 60000U);
}

TEST(ReverbWire, ReadsItsOwnChunksBack) {
  // A response's entry has the chunk in field 2 where a request has it in field 1 of the top level.
  const std::string tensor = "0123456789";
  const std::string request = ReverbInsertPrefix(7, "q", tensor.size()) + tensor;
  // Field 2 (the item) first; then field 1: the chunk, which is the last bytes.
  const size_t item_bytes = 2 + static_cast<uint8_t>(request[1]);
  const std::string chunk = request.substr(item_bytes + 2);
  EXPECT_EQ(static_cast<uint8_t>(request[item_bytes + 1]), chunk.size());
  const auto wrap = [](char tag, const std::string& inside) {
    return std::string{tag, static_cast<char>(inside.size())} + inside;
  };
  const std::string entry = wrap('\x12', chunk);
  const std::string response = wrap('\x0a', entry) + wrap('\x0a', entry);
  const auto tensors = ReverbSampledTensors(response);
  ASSERT_TRUE(tensors.ok());
  EXPECT_THAT(*tensors, testing::ElementsAre(tensor, tensor));
  for (size_t cut = 1; cut + 1 < response.size(); ++cut) {
    const auto broken = ReverbSampledTensors(std::string_view(response).substr(0, cut));
    EXPECT_LE(broken.ok() ? broken->size() : 0U, 1U);
  }
  EXPECT_FALSE(ReverbSampledTensors("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").ok());
}

TEST(ReverbWire, CountsConfirmations) {
  EXPECT_EQ(*ReverbConfirmed(""), 0U);
  EXPECT_EQ(*ReverbConfirmed(std::string("\x08\x05", 2)), 1U);
  EXPECT_EQ(*ReverbConfirmed(std::string("\x0a\x03\x05\x85\x01", 5)), 2U);
  EXPECT_FALSE(ReverbConfirmed("\x0a\x09").ok());
}

TEST(ServerProcess, SaysWhyAServerIsNotThere) {
  const std::string log = testing::TempDir() + "/server_process_log";
  const auto missing = ServerProcess::Start(
      {.program = "/no/such/server", .log = log, .ready = [] { return true; }});
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  const auto ended = ServerProcess::Start(
      {.program = "sh", .args = {"-c", "echo no disk; exit 3"}, .log = log, .ready = [] {
         return false;
       }});
  EXPECT_EQ(ended.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(ended.status().message(), HasSubstr("no disk"));
  const auto slow = ServerProcess::Start(
      {.program = "sleep", .args = {"600"}, .log = log, .start_ms_max = 50, .ready = [] {
         return false;
       }});
  EXPECT_THAT(slow.status().message(), HasSubstr("not ready"));
}

}  // namespace
}  // namespace forebay::bench
