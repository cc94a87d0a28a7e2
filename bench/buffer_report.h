// From windows to the fields of the benchmark: medians, their spread, ratios.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/buffer_payload.h"
#include "bench/buffer_raw.h"
#include "bench/buffer_runner.h"

namespace forebay::bench {

// What was measured: one contender under one load.
struct Cell {
  std::string contender;  // "in_process.sync", "rocksdb_sync"
  int writers = 64;
  int readers = 1;
  RecordSizes sizes = RecordSizes::k16KiB;
  friend auto operator<=>(const Cell&, const Cell&) = default;
};

// What a contender's acknowledgement survives.
enum class Promise { kNothing, kKill, kPowerLoss };
struct Contender {
  std::string name;
  bool served = false;  // in another process
  Promise promise = Promise::kNothing;
  std::string description;  // of a peer
  std::string absent;       // why it was not measured; "" if it was
};

class BufferReport {
 public:
  void Add(const Cell& cell, const WindowResult& result) { windows_[cell].push_back(result); }
  void Add(const RawLimits& limits) { raw_.push_back(limits); }

  // Every field of the contract; null where there is no window. Peers go below "peers".
  nlohmann::ordered_json Fields(const std::vector<Contender>& ours,
                                const std::vector<Contender>& peers) const;

 private:
  struct Figure {
    std::string_view name;
    double (*of)(const WindowResult&);
    bool more_is_better = false;
  };
  struct Known;  // the figures
  enum class Pick { kMedian, kBest };

  // Null without a window.
  nlohmann::ordered_json Value(const Cell& cell, const Figure& figure, Pick pick) const;
  nlohmann::ordered_json Load(const Cell& cell) const;
  nlohmann::ordered_json Loads(const std::string& contender, RecordSizes sizes) const;
  nlohmann::ordered_json Sides(const std::vector<Contender>& peers, RecordSizes sizes) const;
  nlohmann::ordered_json Readers(const std::string& contender) const;
  nlohmann::ordered_json Raw() const;
  nlohmann::ordered_json RawValue(double (*of)(const RawLimits&), bool more_is_better,
                                  Pick pick) const;
  // kBest: of each side's best window, which other work on the machine disturbs much less.
  nlohmann::ordered_json Ratios(const std::vector<Contender>& peers, Pick pick) const;

  std::map<Cell, std::vector<WindowResult>> windows_;
  std::vector<RawLimits> raw_;
};

}  // namespace forebay::bench
