#include "bench/harness.h"

#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::bench {
double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void BenchOptions::Say(const std::string& sentence) const {
  std::fprintf(stderr, "bench: %s\n", sentence.c_str());
}

Spread Summarize(std::vector<double> samples) {
  FB_CHECK(!samples.empty(), "a spread needs a sample");
  std::ranges::sort(samples);
  const size_t n = samples.size();
  return {.median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2,
          .min = samples.front(),
          .max = samples.back(),
          .repeats = static_cast<int>(n)};
}

nlohmann::ordered_json ToJson(const Spread& spread) {
  return {{"median", spread.median},
          {"min", spread.min},
          {"max", spread.max},
          {"repeats", spread.repeats}};
}

Result<std::vector<SideTimes>> Interleave(std::span<const Side> sides, int repeats) {
  struct Samples {
    std::vector<double> seconds, cpu_seconds;
  };
  std::vector<Samples> samples(sides.size());
  for (int round = -1; round < repeats; ++round) {
    for (size_t i = 0; i < sides.size(); ++i) {
      const bool backwards = round >= 0 && round % 2 == 0;
      const size_t side = backwards ? sides.size() - 1 - i : i;
      const double cpu = CpuSeconds();
      auto seconds = sides[side].run();
      if (!seconds.ok()) return seconds.status().WithContext(sides[side].name);
      if (round < 0) continue;
      samples[side].seconds.push_back(*seconds);
      samples[side].cpu_seconds.push_back(CpuSeconds() - cpu);
    }
  }
  std::vector<SideTimes> times;
  times.reserve(samples.size());
  for (Samples& side : samples) {
    times.push_back({Summarize(std::move(side.seconds)), Summarize(std::move(side.cpu_seconds))});
  }
  return times;
}

double LoadAverage() {
  std::array<double, 1> load = {0};
  return getloadavg(load.data(), 1) == 1 ? load[0] : 0;
}

Status AppendHistory(const std::string& name, const BenchOptions& options,
                     const nlohmann::ordered_json& fields) {
  const std::string folder = std::string(FOREBAY_SOURCE_DIR) + "/runs";
  FB_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string path = folder + "/bench_history.jsonl";
  const nlohmann::ordered_json line = {{"unix_us", WallMicros()},
                                       {"bench", name},
                                       {"quick", options.quick},
                                       {"load_average", LoadAverage()},
                                       {"fields", fields}};
  std::FILE* const file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) return ErrnoStatus("cannot open " + path, errno);
  const std::string text = line.dump() + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) return ErrnoStatus("cannot write " + path, errno);
  return OkStatus();
}

}  // namespace forebay::bench
