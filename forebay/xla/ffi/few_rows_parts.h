// How the kernels of few rows share a product among threads, and where they keep what they lay out
// for it. Private to xla/ffi.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "forebay/xla/ffi/few_rows.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::ffi {

// Columns that a thread takes at a time: long beside taking them, short beside the product, so that
// threads end together.
inline int64_t ChunkColumns(const FewRowsCode& code, DType dtype, int64_t rows, int64_t depth) {
  constexpr int64_t kChunkBytes = 48 << 10;
  const int64_t tile = code.tile(rows);
  const int64_t tile_bytes = tile * depth * static_cast<int64_t>(ByteSize(dtype));
  return std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, tile_bytes)) * tile;
}

// Chunks of columns that several threads work through, each from a place of its own on, so that it
// reads a weight as one stream; a thread that has none left takes from the others'.
class SharedChunks {
 public:
  SharedChunks(int64_t chunks, int64_t threads) : chunks_(chunks) {
    for (int64_t i = 0; i < threads; ++i) {
      runs_.emplace_back(chunks * i / threads, chunks * (i + 1) / threads);
    }
  }
  // Calls fn of chunks until each has been taken by this or another thread. `first`: the run to
  // begin with, below `threads`.
  template <typename Fn>
  void Work(int64_t first, const Fn& fn) {
    for (size_t i = 0; i < runs_.size(); ++i) {
      Run& run = runs_[(static_cast<size_t>(first) + i) % runs_.size()];
      for (int64_t chunk = run.next++; chunk < run.end; chunk = run.next++) {
        fn(chunk);
        done_.fetch_add(1, std::memory_order_release);
      }
    }
  }
  // Until all chunks are done: microseconds after Work, unless a thread lost its processor.
  void Wait() const {
    constexpr int kSpins = 2000;
    for (int spins = 0; done_.load(std::memory_order_acquire) < chunks_; ++spins) {
      if (spins >= kSpins) std::this_thread::yield();
    }
  }

 private:
  struct alignas(64) Run {
    Run(int64_t first, int64_t last) : next(first), end(last) {}
    std::atomic<int64_t> next;
    const int64_t end;
  };
  const int64_t chunks_;
  std::deque<Run> runs_;
  std::atomic<int64_t> done_ = 0;
};

// Uninitialised memory of the calling thread, aligned for vectors, valid until the thread asks for
// the same kUse again. It is kept: a large array is new pages each time that it is allocated.
template <int kUse>
void* Scratch(int64_t bytes) {
  struct alignas(64) Line {
    char bytes[64];
  };
  thread_local std::vector<Line> lines;
  const auto count = static_cast<size_t>(bytes + 63) / 64;
  if (lines.size() < count) lines.resize(count);
  return lines.data();
}

// x [rows, depth] as `code` wants it, in Scratch<kUse>.
template <int kUse>
const void* Packed(const FewRowsCode& code, const void* x, int64_t rows, int64_t depth) {
  const int64_t bytes = code.packed_bytes(rows, depth);
  if (bytes == 0) return nullptr;
  void* packed = Scratch<kUse>(bytes);
  code.pack(x, rows, depth, 0, depth, packed);
  return packed;
}

}  // namespace forebay::xla::ffi
