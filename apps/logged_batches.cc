#include "apps/logged_batches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"

namespace forebay::apps {
namespace {

class LogBatches final : public LoggedBatches {
 public:
  explicit LogBatches(std::unique_ptr<buffer::LogReader> reader) : reader_(std::move(reader)) {}

  Result<buffer::Batch> Read(int64_t sequence) override {
    Result<buffer::Batch> batch = reader_->ReadBatch(sequence);
    for (std::string& note : reader_->TakeNotes()) damage_.push_back(std::move(note));
    if (batch.status().code() != StatusCode::kNotFound || damage_.empty()) return batch;
    // The reader leaves out what is damaged: then that is why something is not there.
    return DataLoss(fmt::format("{}; the log is damaged: {}", batch.status().message(),
                                fmt::join(damage_, "; ")));
  }

  Result<int64_t> CountAfter(int64_t sequence, int64_t last) override {
    int64_t count = 0;
    while (sequence + count < last && Readable(sequence + count + 1)) ++count;
    return count;
  }

 private:
  bool Readable(int64_t sequence) {
    const auto known = readable_.find(sequence);
    if (known != readable_.end()) return known->second;
    return readable_[sequence] = Read(sequence).ok();
  }

  const std::unique_ptr<buffer::LogReader> reader_;
  std::vector<std::string> damage_;   // found so far
  std::map<int64_t, bool> readable_;  // as far as it was asked for
};

}  // namespace

Result<std::unique_ptr<LoggedBatches>> LoggedBatches::Open(const buffer::BufferOptions& options) {
  if (options.durability == buffer::Durability::kMemory) {
    return NotFound(
        "the run kept its buffer in memory (buffer.durability = \"memory\"): there is no log to "
        "read batches from");
  }
  auto reader = buffer::LogReader::Open(options.folder);
  if (reader.status().code() == StatusCode::kNotFound) {
    return NotFound("the run has no log of batches: " + reader.status().message());
  }
  FB_RETURN_IF_ERROR(reader.status());
  return std::unique_ptr<LoggedBatches>(std::make_unique<LogBatches>(std::move(*reader)));
}

}  // namespace forebay::apps
