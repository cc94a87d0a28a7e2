// Any bytes as a GGUF file: parsed, converted and dequantised without a crash, a hang or memory out
// of proportion.
#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/weights/gguf.h"
#include "forebay/weights/gguf_model.h"
#include "forebay/weights/gguf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace weights = forebay::weights;
  const auto file = weights::GgufFile::Parse(std::as_bytes(std::span(data, size)));
  if (!file.ok()) return 0;
  (void)weights::GgufConfigJson(*file);
  (void)weights::GgufGenerationConfigJson(*file);
  (void)weights::GgufTensors(*file);
  (void)weights::GgufTokenizerJson(*file);
  (void)weights::GgufChatTemplate(*file);
  return 0;
}
