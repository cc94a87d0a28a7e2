// RepairLog: makes the folder of a damaged buffer one that starts without complaint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

// One thing that was done, or would be.
struct RepairAction {
  std::string file;
  uint32_t segment = 0;            // 0: not of a segment
  int64_t offset = 0, bytes = 0;   // what was replaced
  std::vector<TrajectoryId> lost;  // whose records lay there, as far as it can still be read
  std::string what;
  std::string kept_as;  // where its bytes are now, below the folder; "": nothing was moved
};

struct RepairReport {
  std::vector<RepairAction> actions;
  std::vector<std::string> unrepaired;  // what it cannot mend, and what can be done about it
};

// Copies what is damaged to the sub-folder "quarantine", then writes each segment that needs it
// anew, aside, and renames it over the old one: whole records keep their places, damaged ranges
// become padding, the index is made again. Nothing else is touched, nothing is deleted, and doing
// it again does nothing. Trajectories that were lost count as quarantined from the next start on.
//
// `folder`: as for LogReader::Open. Holds the buffer's lock. kFailedPrecondition: another process
// has it, or it was written by a build with another format. Blocks on the disk; an error leaves the
// folder as it was but for the segments that were already mended.
Result<RepairReport> RepairLog(const std::string& folder, bool dry_run);

}  // namespace forebay::buffer
