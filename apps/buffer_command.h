// `forebay buffer ...`: what operators do with the log of a buffer. One function each; they print
// their result to stdout and return why they failed. All but repair change nothing, take no lock
// and work on a live run; docs/buffer_tools.md describes them for users.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace CLI {
class App;
}

namespace forebay::apps {

struct BufferApp {
  CLI::App* app = nullptr;
  std::function<Status()> run;  // the subcommand that was asked for; call it when app->parsed()
};
// Adds `buffer` and its subcommands.
BufferApp AddBuffer(CLI::App& root);

struct BufferLsCommand {
  std::string folder;
  bool json = false;
};
Status BufferLs(const BufferLsCommand& command);

struct BufferStatCommand {
  std::string folder;
  bool quick = false;  // without lengths and outcomes, which need every trajectory's bytes
  bool json = false;
};
Status BufferStat(const BufferStatCommand& command);

struct BufferVerifyCommand {
  std::string folder;
  bool json = false;
};
// kDataLoss when something is damaged.
Status BufferVerify(const BufferVerifyCommand& command);

struct BufferTailCommand {
  std::string folder;
  int64_t lines = 10;
  bool follow = false;             // until interrupted
  std::vector<std::string> types;  // record types; none: all
  bool json = false;
};
Status BufferTail(const BufferTailCommand& command);

struct BufferExportCommand {
  std::string folder;
  std::string format = "jsonl";
  std::string output;  // "" or "-": stdout (jsonl only)
  bool overwrite = false;
  int64_t from_batch = 0, to_batch = 0;   // 0: no limit
  std::vector<std::string> outcomes;      // none: all
  bool pending = false, trained = false;  // neither: all
  bool quiet = false;
};
// kAlreadyExists for an output that is there. kCancelled after an interrupt; nothing is left then.
Status BufferExport(const BufferExportCommand& command);

struct BufferRepairCommand {
  std::string folder;
  bool dry_run = false;
  bool json = false;
};
// kFailedPrecondition while another process has the buffer. kDataLoss when something is left that
// it cannot repair.
Status BufferRepair(const BufferRepairCommand& command);

}  // namespace forebay::apps
