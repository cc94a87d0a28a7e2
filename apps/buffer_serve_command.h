// `forebay buffer serve`: a buffer for actors and readers in other processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/buffer_command.h"
#include "forebay/base/status.h"

namespace CLI {
class App;
}

namespace forebay::apps {

struct BufferServeCommand {
  std::string folder;               // a table's log is in folder/TABLE
  std::vector<std::string> tables;  // none: "train"
  std::vector<std::string> listen;  // none: unix:FOLDER/buffer.sock
  std::string durability = "sync";
  int32_t group_size = 8;
  int64_t max_staleness = 4;
  int64_t memory_mb_max = 1024, disk_gb_max = 16, record_mb_max = 16;
  std::string token_file, certificate_file, key_file;
};
// Serves until an interrupt, then stops in order: OK.
Status BufferServe(const BufferServeCommand& command);

// Adds `serve` to `buffer`.
void AddServe(CLI::App& parent, BufferApp& buffer);

}  // namespace forebay::apps
