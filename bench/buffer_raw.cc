#include "bench/buffer_raw.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/buffer_runner.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kFileBytes = 256 * kMiB;
constexpr size_t kPage = 4096;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

struct RawDisk::State {
  std::string path;
  Fd fd;
  std::unique_ptr<char, FreeMemory> block;

  // Overwrites blocks in order for `seconds`; the nanoseconds of each. `elapsed`: of all together.
  Result<std::vector<uint32_t>> Write(size_t block_bytes, double seconds, double& elapsed) const {
    std::vector<uint32_t> nanoseconds;
    nanoseconds.reserve(size_t{1} << 16);
    const TimePoint begin = Now();
    const TimePoint end = begin + FromSeconds(seconds);
    TimePoint before = begin;
    for (size_t offset = 0; before < end; offset = (offset + block_bytes) % kFileBytes) {
      const ssize_t wrote = pwrite(fd.get(), block.get(), block_bytes, static_cast<off_t>(offset));
      if (wrote != static_cast<ssize_t>(block_bytes)) {
        return ErrnoStatus("cannot write " + path, errno);
      }
      const TimePoint after = Now();
      nanoseconds.push_back(static_cast<uint32_t>(
          std::min<int64_t>((after - before).count(), std::numeric_limits<uint32_t>::max())));
      before = after;
    }
    elapsed = Seconds(before - begin);
    return nanoseconds;
  }
};

RawDisk::RawDisk(std::unique_ptr<State> state) : state_(std::move(state)) {}
RawDisk::~RawDisk() { unlink(state_->path.c_str()); }

Result<std::unique_ptr<RawDisk>> RawDisk::Create(const std::string& folder) {
  auto state = std::make_unique<State>();
  state->path = folder + "/raw";
  state->fd =
      Fd(open(state->path.c_str(), O_CREAT | O_RDWR | O_DIRECT | O_DSYNC | O_CLOEXEC, 0644));
  if (!state->fd.valid() && errno == EINVAL) {
    return FailedPrecondition(folder + " is on a file system without O_DIRECT: build on a disk");
  }
  if (!state->fd.valid()) return ErrnoStatus("cannot create " + state->path, errno);
  state->block.reset(static_cast<char*>(std::aligned_alloc(kPage, kMiB)));
  if (state->block == nullptr) return ResourceExhausted("no memory for a block");
  std::unique_ptr<RawDisk> disk(new RawDisk(std::move(state)));
  State& made = *disk->state_;
  std::memset(made.block.get(), 0, kMiB);
  for (size_t offset = 0; offset < kFileBytes; offset += kMiB) {
    if (pwrite(made.fd.get(), made.block.get(), kMiB, static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(kMiB)) {
      return ErrnoStatus("cannot write " + made.path, errno);
    }
  }
  std::mt19937 random(1);
  for (size_t i = 0; i < kMiB; ++i) made.block.get()[i] = static_cast<char>(random());
  return disk;
}

Result<RawLimits> RawDisk::Measure(double seconds) {
  RawLimits limits;
  double elapsed = 0;
  FB_ASSIGN_OR_RETURN(const auto large, state_->Write(kMiB, seconds / 2, elapsed));
  limits.bytes_per_s = static_cast<double>(large.size() * kMiB) / elapsed;
  FB_ASSIGN_OR_RETURN(auto small, state_->Write(16 << 10, seconds / 2, elapsed));
  limits.write_16k = PercentilesOf(std::move(small));
  return limits;
}

}  // namespace forebay::bench
