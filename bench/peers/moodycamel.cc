#include <memory>
#include <string>

#include "bench/buffer_engine.h"
#include "bench/peers/peers.h"
#include "forebay/base/status.h"
#ifdef FOREBAY_BENCH_MOODYCAMEL
#include <concurrentqueue/concurrentqueue.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"
#endif

namespace forebay::bench {

#ifdef FOREBAY_BENCH_MOODYCAMEL
namespace {

class MoodycamelEngine final : public Engine {
 public:
  ~MoodycamelEngine() override { Drop(); }

  Status Open(int writers, int /*readers*/) override {
    queue_ = std::make_unique<Queue>(8192);
    for (int i = 0; i < writers; ++i) tokens_.emplace_back(*queue_);
    return OkStatus();
  }

  Status Insert(const Record& record) override {
    // malloc, as the queue's users would have it: a string would fill the copy first.
    Item item{static_cast<char*>(std::malloc(record.bytes.size())), record.bytes.size()};
    if (item.data == nullptr) return ResourceExhausted("no memory for a record");
    std::memcpy(item.data, record.bytes.data(), item.size);
    if (queue_->enqueue(tokens_[static_cast<size_t>(record.writer)], item)) return OkStatus();
    std::free(item.data);
    return Internal("moodycamel refused a record");
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    std::array<Item, kBatchRecords> items;
    size_t left = kBatchRecords;
    const TimePoint deadline = Now() + std::chrono::milliseconds(kEngineWaitMsMax);
    while (left > 0) {
      const size_t got = queue_->try_dequeue_bulk(items.data(), left);
      bool fits = true;
      for (size_t i = 0; i < got; ++i) {
        fits = sink.Add(items[i].data, items[i].size) && fits;
        std::free(items[i].data);
      }
      if (!fits) return DataLoss("a record is longer than any that was inserted");
      left -= got;
      if (got > 0) continue;
      if (Now() > deadline) return DeadlineExceeded("moodycamel has fewer records than it took");
      std::this_thread::yield();
    }
    return OkStatus();
  }

  Status Close() override {
    Drop();
    return OkStatus();
  }

 private:
  struct Item {
    char* data;
    size_t size;
  };
  using Queue = moodycamel::ConcurrentQueue<Item>;

  void Drop() {
    if (queue_ == nullptr) return;
    Item item{};
    while (queue_->try_dequeue(item)) std::free(item.data);
    tokens_.clear();
    queue_.reset();
  }

  std::unique_ptr<Queue> queue_;
  std::vector<moodycamel::ProducerToken> tokens_;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeMoodycamel(const PeerOptions& /*options*/) {
  return std::unique_ptr<Engine>(std::make_unique<MoodycamelEngine>());
}
#else
Result<std::unique_ptr<Engine>> MakeMoodycamel(const PeerOptions& /*options*/) {
  return PeerMissing("moodycamel's queue (libconcurrentqueue-dev)");
}
#endif

Status PeerMissing(const std::string& what) {
  return NotFound(what + " is not installed: run bench/peers/setup_buffer.sh and configure again");
}

}  // namespace forebay::bench
