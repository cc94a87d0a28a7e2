// The records of the buffer benchmark: real encoded trajectories, made before anything is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/buffer_engine.h"
#include "forebay/base/status.h"

namespace forebay::bench {

enum class RecordSizes {
  k16KiB,  // all alike
  kMix,    // 2 to 128 KiB, log-normal around 16 KiB
};

// No encoded trajectory of the benchmark is larger.
inline constexpr size_t kRecordBytesMax = size_t{128} << 10;

// An encoded trajectory of at most `bytes` bytes and at least bytes - 16: random tokens below
// 151,936, the latter half of them sampled. CHECKs that 512 <= bytes <= kRecordBytesMax.
std::string EncodedTrajectory(uint64_t seed, size_t bytes);

// The sizes that a writer goes through again and again: the same set for all, in an order of its
// own.
std::vector<size_t> WriterSizes(RecordSizes sizes, int writer);

// The records of one writer, in turn. Writing the id into the copy held here is all that happens
// between two inserts. Not thread-safe.
class WriterPayloads {
 public:
  // `id_base` is added to every id (Engine::id_base).
  WriterPayloads(RecordSizes sizes, int writer, int64_t id_base = 0);
  // Valid until the next call.
  Record Next();

 private:
  int writer_;
  int64_t id_base_;
  int64_t next_seq_ = 0;
  std::vector<std::string> encoded_;
};

// Says which record these bytes are, and that they are what was inserted: the id, the length and
// the last bytes. kDataLoss otherwise. Thread-safe.
class PayloadChecker {
 public:
  PayloadChecker(RecordSizes sizes, int writers);
  struct Identity {
    int writer;
    int64_t seq;
  };
  Result<Identity> Identify(std::string_view bytes) const;

 private:
  struct Expected {
    size_t size;
    std::string tail;
  };
  std::vector<std::vector<Expected>> expected_;  // [writer][seq % sizes]
};

// The id of a writer's record: unique, and rising within a writer.
int64_t RecordId(int writer, int64_t seq);

}  // namespace forebay::bench
