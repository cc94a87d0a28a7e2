#include "bench/peers/reverb_wire.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

// Protocol buffers' wire format.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void PutNumber(std::string& out, uint32_t field, uint64_t value) {
  PutVarint(out, (field << 3) | kVarint);
  PutVarint(out, value);
}
void PutFixed64(std::string& out, uint32_t field, uint64_t value) {
  PutVarint(out, (field << 3) | kFixed64);
  for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i));
}
void PutBytes(std::string& out, uint32_t field, std::string_view value) {
  PutVarint(out, (field << 3) | kBytes);
  PutVarint(out, value.size());
  out += value;
}
// The header of a message of which `inside` bytes were made and `more` follow.
std::string Around(uint32_t field, const std::string& inside, size_t more) {
  std::string out;
  PutVarint(out, (field << 3) | kBytes);
  PutVarint(out, inside.size() + more);
  return out + inside;
}

struct Field {
  uint32_t number = 0, type = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

// Reads one field after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  // nullopt at the end, and for good when the bytes are malformed.
  std::optional<Field> Next() {
    uint64_t tag = 0;
    if (bytes_.empty() || !Varint(tag)) return std::nullopt;
    Field field{.number = static_cast<uint32_t>(tag >> 3), .type = static_cast<uint32_t>(tag & 7)};
    if (field.type == kVarint) return Varint(field.value) ? std::optional(field) : std::nullopt;
    uint64_t size = 0;
    if (field.type == kFixed64) {
      size = 8;
    } else if (field.type == kFixed32) {
      size = 4;
    } else if (field.type != kBytes || !Varint(size)) {
      return Broken();
    }
    if (size > bytes_.size()) return Broken();
    field.bytes = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return field;
  }
  bool ok() const { return ok_; }

 private:
  std::nullopt_t Broken() {
    ok_ = false;
    bytes_ = {};
    return std::nullopt;
  }
  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[0]);
      bytes_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    Broken();
    return false;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

// Below `bytes`, along the path of field numbers, every leaf.
bool Collect(std::string_view bytes, const uint32_t* path, size_t depth,
             std::vector<std::string_view>& leaves) {
  Fields fields(bytes);
  while (const auto field = fields.Next()) {
    if (field->number != path[0] || field->type != kBytes) continue;
    if (depth == 1) {
      leaves.push_back(field->bytes);
    } else if (!Collect(field->bytes, path + 1, depth - 1, leaves)) {
      return false;
    }
  }
  return fields.ok();
}

}  // namespace

std::string ReverbInsertPrefix(uint64_t key, std::string_view table, size_t tensor_bytes) {
  constexpr uint64_t kUint8 = 4;                    // tensorflow.DataType
  constexpr uint64_t kOne = 0x3ff0'0000'0000'0000;  // 1.0
  std::string slice;
  PutNumber(slice, 1, key);
  PutNumber(slice, 3, 1);  // length; offset and index are 0
  std::string item;
  PutNumber(item, 1, key);
  PutBytes(item, 2, table);
  PutFixed64(item, 5, kOne);  // priority
  PutBytes(item, 8, Around(1, Around(1, slice, 0), 0));
  std::string request;
  PutBytes(request, 2, item);

  // The chunk: a tensor of shape [1, tensor_bytes].
  std::string range;
  PutNumber(range, 1, key);  // an episode of its own, from step 0 to 0
  std::string rows, columns;
  PutNumber(rows, 1, 1);
  PutNumber(columns, 1, tensor_bytes);
  std::string shape;
  PutBytes(shape, 2, rows);
  PutBytes(shape, 2, columns);
  std::string tensor;
  PutNumber(tensor, 1, kUint8);
  PutBytes(tensor, 2, shape);
  tensor += Around(4, "", tensor_bytes);  // tensor_content
  std::string chunk;
  PutNumber(chunk, 1, key);
  PutBytes(chunk, 2, range);
  PutNumber(chunk, 6, 1);  // data_tensors_len
  PutNumber(chunk, 7, tensor_bytes);
  chunk += Around(5, Around(1, tensor, tensor_bytes), tensor_bytes);
  return request + Around(1, chunk, tensor_bytes);
}

std::string ReverbSampleRequest(std::string_view table, int64_t samples) {
  std::string request;
  PutBytes(request, 1, table);
  PutNumber(request, 2, static_cast<uint64_t>(samples));
  return request;
}

std::string ReverbResetRequest(std::string_view table) {
  std::string request;
  PutBytes(request, 1, table);
  return request;
}

Result<std::vector<std::string_view>> ReverbSampledTensors(std::string_view response) {
  // entries, data (a chunk), data (its tensors), tensors, tensor_content
  constexpr uint32_t kPath[] = {1, 2, 5, 1, 4};
  std::vector<std::string_view> tensors;
  if (!Collect(response, kPath, std::size(kPath), tensors)) {
    return DataLoss("a sample of Reverb's is not a SampleStreamResponse");
  }
  return tensors;
}

Result<size_t> ReverbConfirmed(std::string_view response) {
  Fields fields(response);
  size_t confirmed = 0;
  while (const auto field = fields.Next()) {
    if (field->number != 1) continue;
    if (field->type == kVarint) ++confirmed;
    // Packed: bare varints, each of them ending with a byte below 0x80.
    for (const char c : field->bytes) confirmed += static_cast<uint8_t>(c) < 0x80 ? 1 : 0;
  }
  if (!fields.ok()) return DataLoss("a confirmation of Reverb's is not an InsertStreamResponse");
  return confirmed;
}

}  // namespace forebay::bench
