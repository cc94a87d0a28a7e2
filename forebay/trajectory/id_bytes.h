// The 32 bytes of a TrajectoryId, as encodings and messages hold them.
#pragma once

#include <cstdint>

#include "forebay/base/bytes.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay {

inline void PutId(const TrajectoryId& id, ByteWriter& out) {
  out.Put(id.trajectory_id);
  out.Put(id.group_id);
  out.Put(id.member);
  out.Put(id.attempt);
  out.Put(id.task_id);
}

// Whoever asks checks `in`, and the ranges.
inline TrajectoryId GetId(ByteReader& in) {
  TrajectoryId id;
  id.trajectory_id = in.Get<int64_t>();
  id.group_id = in.Get<int64_t>();
  id.member = in.Get<int32_t>();
  id.attempt = in.Get<int32_t>();
  id.task_id = in.Get<int64_t>();
  return id;
}

}  // namespace forebay
