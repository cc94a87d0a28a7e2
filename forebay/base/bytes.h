// ByteWriter and ByteReader: little-endian binary forms (log records, wire frames), bounded on
// reading.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace forebay {

static_assert(std::endian::native == std::endian::little,
              "columns are copied as they lie in memory");

template <typename T>
concept WireNumber = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// Appends numbers, strings and columns to a string.
class ByteWriter {
 public:
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  template <WireNumber T>
  void Put(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }
  // A u32 length, then the bytes.
  void PutString(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  // The elements only: the reader must know how many.
  template <WireNumber T>
  void PutColumn(const std::vector<T>& column) {
    bytes_.append(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(T));
  }
  size_t size() const { return bytes_.size(); }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what ByteWriter wrote. After the first read that does not fit, ok() is false and every read
// gives zeros: check once, at the end. Never allocates more than the bytes that are there.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <WireNumber T>
  T Get() {
    T value{};
    const std::string_view raw = GetRaw(sizeof(T));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string_view GetRaw(size_t n) {
    if (!ok_ || n > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view out = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return out;
  }
  std::string_view GetString() {
    const auto n = Get<uint32_t>();
    return GetRaw(n);
  }
  template <WireNumber T>
  std::vector<T> GetColumn(size_t count) {
    std::vector<T> column;
    if (!ok_ || count > bytes_.size() / sizeof(T)) {
      ok_ = false;
      return column;
    }
    column.resize(count);
    if (count > 0) std::memcpy(column.data(), GetRaw(count * sizeof(T)).data(), count * sizeof(T));
    return column;
  }
  // True when `count` items of at least `bytes_each` can still follow; else the reader fails. Ask
  // before reserving for a count that was read.
  bool Fits(uint64_t count, size_t bytes_each) {
    if (ok_ && count > bytes_.size() / bytes_each) ok_ = false;
    return ok_;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && bytes_.empty(); }
  size_t remaining() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace forebay
