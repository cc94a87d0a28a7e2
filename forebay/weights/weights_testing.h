// For tests: a folder that goes away, files that are cut and flipped, and GGUF files made to order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/weights/gguf.h"
#include "forebay/weights/snapshot.h"

namespace forebay::weights {

// A new folder, removed with what is in it.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

std::span<const std::byte> BytesOf(std::string_view text);

// An f32 tensor of the given numbers.
HostTensor FloatTensor(std::vector<int64_t> dims, const std::vector<float>& values);

// Writes GGUF version 3, and whatever a test wants wrong in it.
class GgufBuilder {
 public:
  void Uint(std::string_view key, uint32_t value);
  void Float(std::string_view key, float value);
  void String(std::string_view key, std::string_view value);
  void Strings(std::string_view key, const std::vector<std::string>& values);
  void Ints(std::string_view key, const std::vector<int32_t>& values);
  void Floats(std::string_view key, const std::vector<float>& values);
  void Bool(std::string_view key, bool value);
  // A key of any type, its value given as the file's bytes.
  void Raw(std::string_view key, uint32_t type, std::string_view value);
  // `dims` row-major, as in GgufTensor.
  void Tensor(std::string_view name, GgmlType type, const std::vector<int64_t>& dims,
              std::string_view bytes);
  void FloatTensor(std::string_view name, const std::vector<int64_t>& dims,
                   std::span<const float> values);
  // As Tensor, with the type, dimensions (in the file's order) and offset as given.
  void RawTensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims,
                 uint64_t offset, std::string_view bytes);

  std::string Build(uint32_t version = 3) const;

  // The metadata of a llama with the sizes of tests/goldens/parity/llama, and its tensors as
  // llama.cpp's converter would write them.
  static GgufBuilder ParityLlama(const TensorMap& hugging_face);

 private:
  std::string metadata_, tensors_, data_;
  uint64_t keys_ = 0, tensor_count_ = 0;
};

// The little-endian bytes of a number.
template <typename T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// A u64 length and the text.
std::string RawString(std::string_view text);

}  // namespace forebay::weights
