// What the recovery benchmark writes and trains on: trajectories whose content follows from their
// id, and the learner's checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {

inline constexpr int32_t kRecoveryGroupSize = 2;
// The members of a group have consecutive ids, of which the first is the group's.
Trajectory RecoveryTrajectory(int64_t group_id, int32_t member);
// Whether it is what was written under its id.
bool IsRecoveryTrajectory(const Trajectory& trajectory);

buffer::BufferOptions RecoveryBufferOptions(const std::string& folder,
                                            const std::string& durability);

// To the server of this folder, which may be about to start. `producer` may be "".
Result<std::unique_ptr<buffer::Client>> ConnectToRecoveryServer(const std::string& folder,
                                                                const std::string& producer);

// What the weights that it stands for were trained on.
struct TrainedCheckpoint {
  int64_t batch = 0;  // all up to this one
  std::vector<int64_t> trained;
  int64_t wrong = 0;  // trajectories that were not what was written under their id
};
// Written aside and renamed. An empty one when there is no file.
Status WriteCheckpoint(const std::string& path, const TrainedCheckpoint& checkpoint);
Result<TrainedCheckpoint> ReadCheckpoint(const std::string& path);

}  // namespace forebay::bench
