// The C ABI of the Rust library in this folder (the `parquet` crate of Apache arrow-rs). Private to
// apps/parquet_file.cc, which documents the types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::apps {

struct FfiParquet;

struct FfiParquetError {
  uint8_t* message = nullptr;  // owned by Rust until forebay_parquet_error_free
  size_t message_size = 0;
  int32_t os_error = 0;  // errno of the write that failed; 0: another failure
};

// One leaf column of a row group. Levels are null where the column has none.
struct FfiParquetColumn {
  int32_t kind = 0;  // 0 int32, 1 int64, 2 float, 3 double, 4 text
  const void* values = nullptr;
  size_t values_size = 0;               // in elements; text: in bytes
  const uint64_t* text_ends = nullptr;  // text: where each value ends in `values`
  size_t text_ends_size = 0;
  const int16_t* definition_levels = nullptr;
  const int16_t* repetition_levels = nullptr;
  size_t levels_size = 0;
};

extern "C" {
void forebay_parquet_error_free(FfiParquetError error);
// Writes to a copy of the descriptor, from its position on. `schema` is a Parquet message type.
bool forebay_parquet_new(int32_t fd, const char* schema, size_t schema_size, FfiParquet** out,
                         FfiParquetError* error);
bool forebay_parquet_write_row_group(FfiParquet* file, const FfiParquetColumn* columns,
                                     size_t columns_size, FfiParquetError* error);
// Writes the footer. Nothing may be written after it.
bool forebay_parquet_finish(FfiParquet* file, FfiParquetError* error);
void forebay_parquet_free(FfiParquet* file);
}  // extern "C"

}  // namespace forebay::apps
