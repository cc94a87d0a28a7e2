#include "apps/logged_batches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"

namespace forebay::apps {
namespace {

namespace fs = std::filesystem;

// A copy of the log, because opening a buffer writes: it recovers, and begins a new segment.
class Copy {
 public:
  static Result<std::unique_ptr<Copy>> Of(const std::string& folder) {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "forebay-replay-XXXXXX").string();
    if (error || ::mkdtemp(path.data()) == nullptr) {
      return ErrnoStatus("cannot make a temporary folder '" + path + "'", errno);
    }
    std::unique_ptr<Copy> copy(new Copy(path));
    fs::copy(folder, path + "/log", fs::copy_options::recursive, error);
    if (error) {
      return ErrnoStatus(fmt::format("cannot copy the log '{}' to '{}'", folder, path),
                         error.value());
    }
    return copy;
  }
  ~Copy() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  std::string log() const { return path_ + "/log"; }

 private:
  explicit Copy(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// A copy of the log, opened as if the batches up to `committed` were in the weights.
struct Opened {
  std::unique_ptr<Copy> copy;
  std::unique_ptr<buffer::Buffer> buffer;
  buffer::Recovery recovery;
};

class CopiedBatches final : public LoggedBatches {
 public:
  explicit CopiedBatches(buffer::BufferOptions options) : options_(std::move(options)) {}

  Result<buffer::Batch> Read(int64_t sequence) override {
    FB_ASSIGN_OR_RETURN(const Opened opened, OpenCopy(sequence - 1));
    if (opened.recovery.replay_batches == 0) {
      if (opened.recovery.quarantined_records > 0) {
        return DataLoss(fmt::format("batch {} cannot be read back from '{}': {}", sequence,
                                    options_.folder, fmt::join(opened.recovery.notes, "; ")));
      }
      return NotHere(sequence);
    }
    FB_ASSIGN_OR_RETURN(buffer::Batch batch, opened.buffer->Lease(1, 0, Now()));
    if (!batch.replay || batch.sequence != sequence) return NotHere(sequence);
    return batch;
  }

  Result<int64_t> CountAfter(int64_t sequence, int64_t last) override {
    FB_ASSIGN_OR_RETURN(const Opened opened, OpenCopy(sequence));
    return std::min(opened.recovery.replay_batches, last - sequence);
  }

 private:
  Status NotHere(int64_t sequence) const {
    return NotFound(fmt::format("batch {} is not in the log '{}'", sequence, options_.folder));
  }

  Result<Opened> OpenCopy(int64_t committed) const {
    Opened opened;
    FB_ASSIGN_OR_RETURN(opened.copy, Copy::Of(options_.folder));
    buffer::BufferOptions of_copy = options_;
    of_copy.folder = opened.copy->log();
    of_copy.durability = buffer::Durability::kOs;
    FB_ASSIGN_OR_RETURN(opened.buffer,
                        buffer::Buffer::Open(of_copy, committed, {}, &opened.recovery));
    return opened;
  }

  const buffer::BufferOptions options_;
};

}  // namespace

Result<std::unique_ptr<LoggedBatches>> LoggedBatches::Open(const buffer::BufferOptions& options) {
  if (options.durability == buffer::Durability::kMemory) {
    return NotFound(
        "the run kept its buffer in memory (buffer.durability = \"memory\"): there is no log to "
        "read batches from");
  }
  std::error_code error;
  if (!fs::is_directory(options.folder, error)) {
    return NotFound("'" + options.folder + "' is not there: the run has no log of batches");
  }
  return std::unique_ptr<LoggedBatches>(std::make_unique<CopiedBatches>(options));
}

}  // namespace forebay::apps
