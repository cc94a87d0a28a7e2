// What LogReader::ReplayLog gives. Private to log_reader*.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/table/table.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

struct LogReader::Replayed {
  explicit Replayed(int64_t state_sequence) : sequence(state_sequence) {}
  Table table{1};
  int64_t sequence = 0;            // of the last record
  std::vector<TrajectoryId> lost;  // pending by the state, and their record is not where it was
  int64_t lost_unnamed = 0;        // the same, of a state that names only ids
};

}  // namespace forebay::buffer
