#include "bench/buffer_engine_forebay.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bench/buffer_engine.h"
#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {
namespace {

TimePoint Deadline() { return Now() + std::chrono::milliseconds(kEngineWaitMsMax); }

class ForebayEngine final : public Engine {
 public:
  ForebayEngine(std::string folder, buffer::Durability durability)
      : folder_(std::move(folder)), durability_(durability) {}

  Status Open(int writers, int /*readers*/) override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    FB_ASSIGN_OR_RETURN(
        buffer_,
        buffer::Buffer::Open(
            {.folder = folder_, .durability = durability_, .group_size = 1, .max_staleness = 1}, 0,
            {}, nullptr));
    writers_ = std::vector<Writer>(static_cast<size_t>(writers));
    return OkStatus();
  }

  Status Prepare(const Record& record) override {
    Writer& writer = writers_[static_cast<size_t>(record.writer)];
    FB_ASSIGN_OR_RETURN(writer.next, Decode(record.bytes));
    return buffer_->Dispatch(writer.next.id);
  }

  Status Insert(const Record& record) override {
    Writer& writer = writers_[static_cast<size_t>(record.writer)];
    writer.acknowledged.store(false);
    buffer_->Append(std::move(writer.next), Deadline(), [&writer](const Status& status) {
      writer.status = status;
      writer.acknowledged.store(true);
      writer.acknowledged.notify_one();
    });
    writer.acknowledged.wait(false);
    return writer.status;
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    FB_ASSIGN_OR_RETURN(const buffer::Batch batch, buffer_->Lease(kBatchRecords, 0, Deadline()));
    for (const auto& trajectory : batch.trajectories) {
      const std::string encoded = Encode(*trajectory);
      if (!sink.Add(encoded.data(), encoded.size())) return DataLoss("a record grew");
    }
    FB_RETURN_IF_ERROR(buffer_->MarkTrained(batch.sequence));
    return buffer_->Commit(batch.sequence);
  }

  Status Close() override {
    buffer_->Close();
    buffer_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    return OkStatus();
  }

 private:
  struct Writer {
    Trajectory next;
    std::atomic<bool> acknowledged{false};
    Status status;
  };

  const std::string folder_;
  const buffer::Durability durability_;
  std::unique_ptr<buffer::Buffer> buffer_;
  std::vector<Writer> writers_;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeForebay(const std::string& folder,
                                            buffer::Durability durability) {
  return std::unique_ptr<Engine>(std::make_unique<ForebayEngine>(folder, durability));
}

}  // namespace forebay::bench
