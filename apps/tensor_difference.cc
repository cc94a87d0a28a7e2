#include "apps/tensor_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::apps {
namespace {

std::string Element(const weights::HostTensor& tensor, size_t index) {
  const size_t size = xla::ByteSize(tensor.shape().dtype);
  const std::byte* const at = tensor.bytes().data() + index * size;
  if (tensor.shape().dtype == xla::DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return fmt::format("{}", value);
  }
  std::string bits = "0x";
  for (size_t i = size; i > 0; --i) bits += fmt::format("{:02x}", static_cast<unsigned>(at[i - 1]));
  return bits;
}

}  // namespace

std::string FirstTensorDifference(const weights::TensorMap& left, const weights::TensorMap& right) {
  for (const auto& [name, a] : left) {
    const auto found = right.find(name);
    if (found == right.end()) return fmt::format("tensor {} is in one of them only", name);
    const weights::HostTensor& b = found->second;
    if (a.shape() != b.shape()) return fmt::format("tensor {} has another shape", name);
    const auto [at, other] = std::ranges::mismatch(a.bytes(), b.bytes());
    if (at == a.bytes().end()) continue;
    const auto index = static_cast<size_t>(at - a.bytes().begin()) / xla::ByteSize(a.shape().dtype);
    return fmt::format("tensor {} differs first in element {}: {} and {}", name, index,
                       Element(a, index), Element(b, index));
  }
  for (const auto& [name, tensor] : right) {
    if (!left.contains(name)) return fmt::format("tensor {} is in one of them only", name);
  }
  return "";
}

}  // namespace forebay::apps
