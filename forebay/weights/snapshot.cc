#include "forebay/weights/snapshot.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/weights/half.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using xla::DType;

// A cache line, and what PJRT's CPU plugin takes without a copy.
constexpr std::align_val_t kAlignment{64};

template <typename From, typename Convert>
void ToFloats(const HostTensor& tensor, Convert convert, std::span<float> out) {
  const auto in = tensor.as<From>();
  for (size_t i = 0; i < in.size(); ++i) out[i] = convert(in[i]);
}

template <typename To, typename Convert>
void FromFloats(std::span<const float> in, Convert convert, std::span<std::byte> out) {
  auto* to = reinterpret_cast<To*>(out.data());
  for (size_t i = 0; i < in.size(); ++i) to[i] = convert(in[i]);
}

HostTensor ToFloat32(const HostTensor& tensor) {
  std::span<std::byte> bytes;
  HostTensor result =
      HostTensor::Allocate({.dtype = DType::kF32, .dims = tensor.shape().dims}, &bytes);
  const std::span<float> out{reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  if (tensor.shape().dtype == DType::kF16) {
    ToFloats<uint16_t>(tensor, HalfToFloat, out);
  } else {
    ToFloats<uint16_t>(tensor, BFloat16ToFloat, out);
  }
  return result;
}

}  // namespace

HostTensor::HostTensor(xla::Shape shape, std::span<const std::byte> bytes,
                       std::shared_ptr<const void> owner)
    : shape_(std::move(shape)), bytes_(bytes), owner_(std::move(owner)) {
  FB_CHECK(static_cast<int64_t>(bytes_.size()) == shape_.bytes(),
           "a tensor's bytes must fill its shape");
}

HostTensor HostTensor::Allocate(xla::Shape shape, std::span<std::byte>* mutable_bytes) {
  const auto size = static_cast<size_t>(shape.bytes());
  std::shared_ptr<void> memory(::operator new(size, kAlignment),
                               [](void* p) { ::operator delete(p, kAlignment); });
  *mutable_bytes = {static_cast<std::byte*>(memory.get()), size};
  return {std::move(shape), *mutable_bytes, std::move(memory)};
}

Result<HostTensor> ConvertFloat(const HostTensor& tensor, xla::DType dtype) {
  const DType from = tensor.shape().dtype;
  if (!xla::IsFloat(from) || !xla::IsFloat(dtype)) {
    return InvalidArgument(fmt::format("cannot convert {} to {}: only f32, bf16 and f16 convert",
                                       tensor.shape().ToString(), xla::Name(dtype)));
  }
  if (from == dtype) return tensor;
  const HostTensor floats = from == DType::kF32 ? tensor : ToFloat32(tensor);
  if (dtype == DType::kF32) return floats;

  std::span<std::byte> bytes;
  HostTensor result = HostTensor::Allocate({.dtype = dtype, .dims = tensor.shape().dims}, &bytes);
  if (dtype == DType::kF16) {
    FromFloats<uint16_t>(floats.as<float>(), FloatToHalf, bytes);
  } else {
    FromFloats<uint16_t>(floats.as<float>(), FloatToBFloat16, bytes);
  }
  return result;
}

std::string Digest(const TensorMap& tensors) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  FB_CHECK(state != nullptr, "out of memory");
  XXH3_128bits_reset(state.get());
  const auto add = [&](const void* data, size_t size) {
    XXH3_128bits_update(state.get(), data, size);
  };
  // Lengths go in before contents, so that no two maps give one byte sequence.
  const auto add_number = [&](uint64_t number) { add(&number, sizeof(number)); };
  const auto add_text = [&](std::string_view text) {
    add_number(text.size());
    add(text.data(), text.size());
  };
  for (const auto& [name, tensor] : tensors) {
    add_text(name);
    add_text(xla::Name(tensor.shape().dtype));
    add_number(tensor.shape().dims.size());
    for (const int64_t dim : tensor.shape().dims) add_number(static_cast<uint64_t>(dim));
    add(tensor.bytes().data(), tensor.bytes().size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace forebay::weights
