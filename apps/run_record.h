// What a run directory says of its own past, read back: under which configuration each step was
// taken (starts.jsonl) and what it gave (metrics.jsonl). The lines are written by TrainRun and
// StepLog.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::xla {
class Client;
}

namespace forebay::apps {

// "cpu PJRT C API ...": the platform and its version. Other compilers give other bits.
std::string PluginName(const xla::Client& client);

// One start of the program on a run: `forebay train`, or a resume.
struct StartRecord {
  int64_t after_step = 0;  // the step it went on from
  std::string config_id;   // names the configuration in the lines of its steps
  std::string config;      // complete, as control::FormatConfig
  std::string plugin;      // PluginName
};

// A StartRecord of this configuration.
StartRecord MakeStart(const control::Config& config, int64_t after_step, const std::string& plugin);
std::string StartLine(const StartRecord& start);  // for starts.jsonl

struct StepRecord {
  int64_t step = 0;
  std::string config_id;  // "" if not recorded
  // learner::Fingerprint by name; empty if not recorded (a run of an older program).
  std::map<std::string, std::string> fingerprint;
};

struct RunRecord {
  // By config_id; of equal ones the last.
  std::map<std::string, StartRecord> starts;
  // The last line of each step. A step that is repeated (after a crash, from a checkpoint) gives up
  // the lines of those after it.
  std::map<int64_t, StepRecord> steps;
  std::string starts_file;  // for errors
};

// Reads both files; lines that are torn or not of this kind are skipped. Changes nothing. kNotFound
// when the folder holds no run or the run has no step.
Result<RunRecord> ReadRunRecord(const std::string& run);

// The configuration that the step was taken under, and what starts.jsonl says of that start.
// kNotFound when it is not recorded: names the file.
struct StepConfig {
  control::Config config;
  StartRecord start;
};
Result<StepConfig> ConfigOfStep(const RunRecord& record, int64_t step,
                                const std::vector<std::string>& sets);

}  // namespace forebay::apps
