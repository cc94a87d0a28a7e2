// Any bytes as a safetensors file: its tensors lie within it, and every byte of them can be read.
#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/base/check.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace weights = forebay::weights;
  const auto tensors = weights::ParseSafetensors(std::as_bytes(std::span(data, size)), nullptr);
  if (!tensors.ok()) return 0;
  size_t bytes = 0;
  for (const auto& [name, tensor] : *tensors) bytes += tensor.bytes().size();
  FB_CHECK(bytes <= size, "tensors lie within the file");
  (void)weights::Digest(*tensors);
  return 0;
}
