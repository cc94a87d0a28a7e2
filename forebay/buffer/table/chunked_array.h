// ChunkedArray: a vector that grows without moving what is in it, so that growth costs neither a
// copy of millions of elements nor twice their memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace forebay::buffer {

// Not thread-safe. Elements are trivially copyable; a new one is value-initialized.
template <typename T>
class ChunkedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr uint32_t kChunkBits = 10;
  static constexpr uint32_t kChunk = uint32_t{1} << kChunkBits;

  ChunkedArray() = default;
  ChunkedArray(const ChunkedArray& other) : size_(other.size_) {
    for (const auto& chunk : other.chunks_) {
      chunks_.push_back(std::make_unique<T[]>(kChunk));
      std::copy_n(chunk.get(), kChunk, chunks_.back().get());
    }
  }
  ChunkedArray& operator=(const ChunkedArray& other) {
    if (this != &other) *this = ChunkedArray(other);
    return *this;
  }
  ChunkedArray(ChunkedArray&&) noexcept = default;
  ChunkedArray& operator=(ChunkedArray&&) noexcept = default;
  ~ChunkedArray() = default;

  T& operator[](uint32_t i) { return chunks_[i >> kChunkBits][i & (kChunk - 1)]; }
  const T& operator[](uint32_t i) const { return chunks_[i >> kChunkBits][i & (kChunk - 1)]; }
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Keeps one chunk more than it needs: a size that swings around a boundary allocates nothing.
  void Resize(uint32_t size) {
    const size_t needed = (static_cast<size_t>(size) + kChunk - 1) >> kChunkBits;
    while (chunks_.size() < needed) chunks_.push_back(std::make_unique<T[]>(kChunk));
    if (chunks_.size() > needed + 1) chunks_.resize(needed + 1);
    for (uint32_t i = size_; i < size; ++i) (*this)[i] = T{};
    size_ = size;
  }
  void PushBack(const T& value) {
    if (static_cast<size_t>(size_) >> kChunkBits == chunks_.size()) {
      chunks_.push_back(std::make_unique<T[]>(kChunk));
    }
    (*this)[size_++] = value;
  }
  void PopBack() {
    --size_;
    if (chunks_.size() > (static_cast<size_t>(size_) >> kChunkBits) + 2) chunks_.pop_back();
  }
  T& Back() { return (*this)[size_ - 1]; }

  int64_t memory_bytes() const {
    return static_cast<int64_t>(chunks_.size() * (kChunk * sizeof(T) + 16) +
                                chunks_.capacity() * sizeof(void*));
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  uint32_t size_ = 0;
};

}  // namespace forebay::buffer
