// ParquetFile: rows of one Parquet file, written group by group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::apps {

// The values of one leaf column, and for columns in lists or optional ones the levels of the Dremel
// encoding. Use the vector that fits the schema's type, and only it.
struct ParquetColumn {
  enum class Kind : int32_t { kInt32 = 0, kInt64 = 1, kFloat = 2, kDouble = 3, kText = 4 };
  // Where a value stands: always there; may be null; in a list (the element is there).
  enum class Shape : uint8_t { kRequired, kOptional, kRepeated };
  Kind kind = Kind::kInt32;
  Shape shape = Shape::kRequired;

  std::vector<int32_t> int32s;
  std::vector<int64_t> int64s;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::string text;
  std::vector<uint64_t> text_ends;
  std::vector<int16_t> definition_levels, repetition_levels;

  void AddText(std::string_view value) {
    text.append(value);
    text_ends.push_back(text.size());
  }
  // kOptional: one row's level.
  void AddPresence(bool present) { definition_levels.push_back(present ? 1 : 0); }
  // kRepeated: the levels of one row's list of so many elements.
  void AddList(size_t elements);
  size_t bytes() const;
  void Clear();
};

// Not thread-safe. Errors of the disk keep their kind (kResourceExhausted for a full one); anything
// else is kInternal.
class ParquetFile {
 public:
  // Writes to the open file, which must outlive this object. `schema`: a Parquet message type.
  static Result<std::unique_ptr<ParquetFile>> Create(int fd, std::string_view schema);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  // One row group; the leaf columns in the schema's order. Blocks on the disk.
  Status WriteRowGroup(const std::vector<ParquetColumn>& columns);
  // Writes the footer, without which the file is none. Does not sync.
  Status Finish();

 private:
  struct Impl;
  explicit ParquetFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay::apps
