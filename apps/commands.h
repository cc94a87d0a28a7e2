// The commands of `forebay`, one function each. They print their result to stdout and return why
// they failed.
#pragma once

#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::apps {

struct TrainCommand {
  std::string config;             // TOML file; unused with `resume`
  std::vector<std::string> sets;  // "learner.learning_rate=3e-5"
  std::string run;                // run directory; "" makes runs/<config name>
  bool overwrite = false;         // replace a run that is there
  bool resume = false;            // go on with the run in `run`, under its saved configuration
  bool quiet = false;             // no progress display
};
// Trains to run.steps and prints the report. kCancelled after SIGINT or SIGTERM (resumable).
Status Train(const TrainCommand& command);

struct CompareCommand {
  std::string config;
  std::vector<std::string> sets;
  std::string run;  // two run directories are made below it: sync and decoupled
  bool overwrite = false;
  bool json = false;
};
// Runs the synchronous loop and the decoupled one on the same work and prints both.
Status Compare(const CompareCommand& command);

struct ExportCommand {
  std::string source;     // a run directory or a model (a folder, a .gguf file)
  int64_t step = -1;      // of a run; -1: the newest checkpoint
  std::string output;     // the Hugging Face folder to write
  bool adapters = false;  // of a run: only the LoRA adapters, as PEFT reads them
};
// Writes the weights of a run's checkpoint, or of a model, as a Hugging Face folder.
Status Export(const ExportCommand& command);

struct ReplayCommand {
  std::string run;                // run directory; nothing in it is changed
  int64_t step = 0;               // unused with `list`
  std::vector<std::string> sets;  // changes to the configuration of the step
  bool list = false;              // print which steps can be replayed
  bool json = false;
};
// Takes an optimizer step again from the batch log and compares the bits. kInternal when they
// differ: names the first difference.
Status ReplayRun(const ReplayCommand& command);

struct PlanCommand {
  std::string config;
  std::vector<std::string> sets;
  std::string topology;  // "v5p:4x4x8"
  std::string compiler;  // the TPU compiler's file; "" is the installed one
  bool json = false;
};
// Compiles a configuration's optimizer step for a pod and prints what it takes there.
// kResourceExhausted when it does not fit in the chips' memory.
Status PlanStep(const PlanCommand& command);

struct AuditCommand {
  std::string run;
  bool json = false;
};
Status AuditRun(const AuditCommand& command);

struct DevicesCommand {
  std::string plugin;  // "" is the default one
};
Status Devices(const DevicesCommand& command);

Status PrintConfigKeys();

// Exit code of a command: 0 for OK, else by kind (README.md lists them).
int ExitCode(const Status& status);

}  // namespace forebay::apps
