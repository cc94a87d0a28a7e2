#include "forebay/xla/shard/divisible.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

// "1, 2, 5 or 10": what divides `size`.
std::string DivisorsText(int64_t size) {
  constexpr size_t kShownMax = 12;
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= size && divisors.size() < kShownMax; ++d) {
    if (size % d == 0) divisors.push_back(d);
  }
  std::string out;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const bool last = i + 1 == divisors.size();
    if (i > 0) out += last ? " or " : ", ";
    out += std::to_string(divisors[i]);
  }
  return out;
}

}  // namespace

std::string NotDivisibleText(const Shape& shape, int64_t dim, const Axes& axes, const Mesh& mesh) {
  const int64_t size = shape.dims[static_cast<size_t>(dim)];
  return fmt::format(
      "dimension {} of {} has size {}, which the axis {} of size {} does not divide; with this "
      "array {} may have size {}",
      dim, shape.ToString(), size, axes.ToString(), mesh.Size(axes), axes.ToString(),
      DivisorsText(size));
}

}  // namespace forebay::xla
