#include "apps/parquet_file.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/parquet_ffi/parquet_ffi.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::apps {
namespace {

// Frees the error.
Status FromFfi(const FfiParquetError& error) {
  std::string message(reinterpret_cast<const char*>(error.message), error.message_size);
  forebay_parquet_error_free(error);
  if (error.os_error != 0) return ErrnoStatus("cannot write the Parquet file", error.os_error);
  return Internal("the Parquet library failed: " + std::move(message));
}

FfiParquetColumn ToFfi(const ParquetColumn& column) {
  FfiParquetColumn ffi{.kind = static_cast<int32_t>(column.kind)};
  const auto set = [&ffi](const auto& values) {
    ffi.values = values.data();
    ffi.values_size = values.size();
  };
  switch (column.kind) {
    case ParquetColumn::Kind::kInt32:
      set(column.int32s);
      break;
    case ParquetColumn::Kind::kInt64:
      set(column.int64s);
      break;
    case ParquetColumn::Kind::kFloat:
      set(column.floats);
      break;
    case ParquetColumn::Kind::kDouble:
      set(column.doubles);
      break;
    case ParquetColumn::Kind::kText:
      set(column.text);
      ffi.text_ends = column.text_ends.data();
      ffi.text_ends_size = column.text_ends.size();
      break;
  }
  if (column.shape != ParquetColumn::Shape::kRequired) {
    ffi.definition_levels = column.definition_levels.data();
    ffi.levels_size = column.definition_levels.size();
  }
  if (column.shape == ParquetColumn::Shape::kRepeated) {
    ffi.repetition_levels = column.repetition_levels.data();
  }
  return ffi;
}

}  // namespace

void ParquetColumn::AddList(size_t elements) {
  if (elements == 0) {
    definition_levels.push_back(0);
    repetition_levels.push_back(0);
    return;
  }
  definition_levels.insert(definition_levels.end(), elements, int16_t{1});
  repetition_levels.push_back(0);
  repetition_levels.insert(repetition_levels.end(), elements - 1, int16_t{1});
}

size_t ParquetColumn::bytes() const {
  return int32s.size() * 4 + int64s.size() * 8 + floats.size() * 4 + doubles.size() * 8 +
         text.size() + text_ends.size() * 8 + definition_levels.size() * 2 +
         repetition_levels.size() * 2;
}

void ParquetColumn::Clear() {
  int32s.clear();
  int64s.clear();
  floats.clear();
  doubles.clear();
  text.clear();
  text_ends.clear();
  definition_levels.clear();
  repetition_levels.clear();
}

struct ParquetFile::Impl {
  FfiParquet* handle = nullptr;
  ~Impl() { forebay_parquet_free(handle); }
};

ParquetFile::ParquetFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ParquetFile::~ParquetFile() = default;

Result<std::unique_ptr<ParquetFile>> ParquetFile::Create(int fd, std::string_view schema) {
  auto impl = std::make_unique<Impl>();
  FfiParquetError error;
  if (!forebay_parquet_new(fd, schema.data(), schema.size(), &impl->handle, &error)) {
    return FromFfi(error);
  }
  return std::unique_ptr<ParquetFile>(new ParquetFile(std::move(impl)));
}

Status ParquetFile::WriteRowGroup(const std::vector<ParquetColumn>& columns) {
  std::vector<FfiParquetColumn> ffi;
  ffi.reserve(columns.size());
  for (const ParquetColumn& column : columns) ffi.push_back(ToFfi(column));
  FfiParquetError error;
  if (!forebay_parquet_write_row_group(impl_->handle, ffi.data(), ffi.size(), &error)) {
    return FromFfi(error);
  }
  return OkStatus();
}

Status ParquetFile::Finish() {
  FfiParquetError error;
  if (!forebay_parquet_finish(impl_->handle, &error)) return FromFfi(error);
  return OkStatus();
}

}  // namespace forebay::apps
