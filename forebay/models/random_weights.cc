#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "forebay/base/rng.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"

namespace forebay::models {
namespace {

// FNV-1a: ties a tensor's values to its name, whatever the others are.
uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

weights::TensorMap RandomWeights(const Model& model, uint64_t seed, double scale) {
  weights::TensorMap tensors;
  for (const ParamSpec& spec : model.Params(LayerLayout::kPerLayer)) {
    std::span<std::byte> bytes;
    weights::HostTensor tensor = weights::HostTensor::Allocate(spec.shape, &bytes);
    const std::span<float> values(reinterpret_cast<float*>(bytes.data()),
                                  static_cast<size_t>(spec.shape.elements()));
    Rng rng(DeriveSeed(seed, HashName(spec.name)));
    for (float& value : values) {
      value = spec.start ? *spec.start : static_cast<float>(scale * rng.Normal());
    }
    tensors[spec.name] = tensor;
  }
  return tensors;
}

}  // namespace forebay::models
