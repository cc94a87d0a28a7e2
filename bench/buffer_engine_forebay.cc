#include "bench/buffer_engine_forebay.h"

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

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

  Status Open(int /*writers*/, int /*readers*/) override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    FB_ASSIGN_OR_RETURN(buffer_, buffer::Buffer::Open({.folder = folder_,
                                                       .durability = durability_,
                                                       .group_size = 1,
                                                       .max_staleness = 1,
                                                       .implied_dispatch = true},
                                                      0, {}, nullptr));
    return OkStatus();
  }

  Status Insert(const Record& record) override {
    return buffer_->AppendEncodedAndWait(record.bytes, {.deadline = Deadline()});
  }

  Status Sample(int /*reader*/, BatchSink& sink) override {
    FB_ASSIGN_OR_RETURN(const buffer::Taken taken,
                        buffer_->Take({.groups = kBatchRecords}, Deadline()));
    for (const buffer::TrajectoryView& view : taken.trajectories) {
      if (!sink.Add(view.encoded.data(), view.encoded.size())) return DataLoss("a record grew");
    }
    return buffer_->Acknowledge(taken.take_id);
  }

  Status Close() override {
    buffer_->Close();
    buffer_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    return OkStatus();
  }

 private:
  const std::string folder_;
  const buffer::Durability durability_;
  std::unique_ptr<buffer::Buffer> buffer_;
};

}  // namespace

Result<std::unique_ptr<Engine>> MakeForebay(const std::string& folder,
                                            buffer::Durability durability) {
  return std::unique_ptr<Engine>(std::make_unique<ForebayEngine>(folder, durability));
}

}  // namespace forebay::bench
