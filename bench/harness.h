// What every benchmark shares: medians with their spread, two sides interleaved, a history of
// results.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::bench {

struct BenchOptions {
  bool quick = false;  // within 60 s on 2 cores
  bool json = false;
  std::string dump;     // a folder that takes the StableHLO of what is measured; "" for none
  std::string only;     // buffer: measure what has this in its name; "" for all
  int64_t records = 0;  // startup: so many; 0 for its own number
  // Says what is going on, on stderr.
  void Say(const std::string& sentence) const;
};

// Seconds (or any other unit) of repeated measurements.
struct Spread {
  double median = 0, min = 0, max = 0;
  int repeats = 0;
};
// CHECKs that there is a sample.
Spread Summarize(std::vector<double> samples);
nlohmann::ordered_json ToJson(const Spread& spread);

// One side of a comparison: `run` does the work once and returns its seconds.
struct Side {
  std::string name;
  std::function<Result<double>()> run;
};
// What a side took: by the clock, and of the processors (all threads of this process), which other
// work on the machine disturbs much less.
struct SideTimes {
  Spread seconds, cpu_seconds;
};
// Runs every side once unmeasured, then `repeats` rounds of all sides, every other round backwards,
// so that drift of the machine meets all of them alike. The first error ends it.
Result<std::vector<SideTimes>> Interleave(std::span<const Side> sides, int repeats);

// What all threads of this process have computed so far.
double CpuSeconds();

// The machine's load average of the last minute; what is measured on a busy machine is noise.
double LoadAverage();

// Appends one line to runs/bench_history.jsonl below the source tree: time, load, name, fields.
Status AppendHistory(const std::string& name, const BenchOptions& options,
                     const nlohmann::ordered_json& fields);

}  // namespace forebay::bench
