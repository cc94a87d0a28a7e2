// RowWriter: trajectories as rows of a file that other tools read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "forebay/base/status.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {

// Not thread-safe. Memory is bounded by the largest trajectory and some tens of MiB.
class RowWriter {
 public:
  virtual ~RowWriter() = default;
  virtual Status Add(const Trajectory& trajectory, const buffer::Fate& fate) = 0;
  // Writes what is left. The file is incomplete without it. Does not sync.
  virtual Status Finish() = 0;
};

// One JSON object a line. The descriptor must outlive the writer.
std::unique_ptr<RowWriter> MakeJsonRows(int fd);
// The same fields as columns of a Parquet file.
Result<std::unique_ptr<RowWriter>> MakeParquetRows(int fd);

}  // namespace forebay::apps
