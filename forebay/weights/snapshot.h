// HostTensor and Snapshot: model weights in host memory, and the unit that is published to engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "forebay/base/status.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {

// An immutable array in host memory, row-major. Copies share the bytes; the memory (or mapped file)
// lives until the last copy goes.
class HostTensor {
 public:
  HostTensor() = default;
  // `owner` keeps `bytes` alive. CHECKs bytes.size() == shape.bytes().
  HostTensor(xla::Shape shape, std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  // Uninitialised memory to fill through `mutable_bytes` before sharing.
  static HostTensor Allocate(xla::Shape shape, std::span<std::byte>* mutable_bytes);

  const xla::Shape& shape() const { return shape_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // The elements as T. CHECKs the element size.
  template <typename T>
  std::span<const T> as() const {
    FB_CHECK(xla::ByteSize(shape_.dtype) == sizeof(T), "element size");
    return {reinterpret_cast<const T*>(bytes_.data()), static_cast<size_t>(shape_.elements())};
  }

 private:
  xla::Shape shape_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

// Named weights of one policy version. Names are those of the Hugging Face checkpoint
// ("model.layers.0.self_attn.q_proj.weight"); layouts too ([out, in]).
using TensorMap = std::map<std::string, HostTensor>;

struct Snapshot {
  int64_t policy_version = 0;
  TensorMap tensors;
};

// Converts to f32 / bf16 / f16 (round to nearest even). kInvalidArgument for a non-float source.
Result<HostTensor> ConvertFloat(const HostTensor& tensor, xla::DType dtype);

// XXH3-128 (hex) over names, shapes and bytes: equal weights have equal digests.
std::string Digest(const TensorMap& tensors);

}  // namespace forebay::weights
