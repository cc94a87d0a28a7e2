// ByteReader: numbers and strings from the front of a span, never past its end.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::weights {

// Little-endian, as the machines that Forebay runs on. After a read past the end, failed() stays
// true and reads give zeros.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> Bytes(uint64_t size) {
    if (failed_ || size > bytes_.size() - at_) {
      failed_ = true;
      return {};
    }
    const auto result = bytes_.subspan(at_, size);
    at_ += size;
    return result;
  }
  template <typename T>
  T Number() {
    T value{};
    if (const auto from = Bytes(sizeof(T)); !failed_) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  std::string_view String() {
    const auto from = Bytes(Number<uint64_t>());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

  bool failed() const { return failed_; }
  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  Status Truncated(std::string_view in) const {
    return DataLoss(
        fmt::format("{} ends behind the end of the file ({} bytes), near offset {}: the file is "
                    "truncated or corrupt",
                    in, bytes_.size(), at_));
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace forebay::weights
