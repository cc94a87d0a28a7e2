#include "bench/buffer_report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/buffer_payload.h"
#include "bench/buffer_raw.h"
#include "bench/buffer_runner.h"
#include "bench/harness.h"

namespace forebay::bench {
namespace {

using nlohmann::ordered_json;

constexpr int kManyWriters = 64;

double RawBytes(const RawLimits& r) { return r.bytes_per_s; }
double RawP50(const RawLimits& r) { return r.write_16k.p50_us; }
double RawP99(const RawLimits& r) { return r.write_16k.p99_us; }

// Of the repeats that have the figure: a window may end before the first batch was sampled.
template <typename T, typename Of>
std::optional<Spread> SpreadOf(const std::vector<T>& repeats, Of of) {
  std::vector<double> values;
  values.reserve(repeats.size());
  for (const T& repeat : repeats) {
    const double value = of(repeat);
    if (!std::isnan(value)) values.push_back(value);
  }
  if (values.empty()) return std::nullopt;
  return Summarize(std::move(values));
}

double OrNone(const Percentiles& of, double value) {
  return of.count > 0 ? value : std::numeric_limits<double>::quiet_NaN();
}

ordered_json SpreadJson(const std::optional<Spread>& spread) {
  return spread ? ToJson(*spread) : ordered_json(nullptr);
}

ordered_json Picked(const std::optional<Spread>& spread, bool more_is_better, bool best) {
  if (!spread) return nullptr;
  if (!best) return spread->median;
  return more_is_better ? spread->max : spread->min;
}

// Null when either side is missing.
ordered_json Ratio(const ordered_json& a, const ordered_json& b) {
  if (!a.is_number() || !b.is_number() || b.get<double>() <= 0) return nullptr;
  return a.get<double>() / b.get<double>();
}

const char* PromiseName(Promise promise) {
  switch (promise) {
    case Promise::kNothing:
      return "memory";
    case Promise::kKill:
      return "kill";
    case Promise::kPowerLoss:
      return "power loss";
  }
  return "";
}

// fields["a"]["b"] for "a.b".
ordered_json& At(ordered_json& fields, std::string_view path) {
  ordered_json* at = &fields;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    at = &(*at)[std::string(path.substr(0, dot))];
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  }
  return *at;
}

}  // namespace

struct BufferReport::Known {
  static constexpr Figure kAppends = {"appends_per_s",
                                      [](const WindowResult& r) { return r.appends_per_s; }, true};
  static constexpr Figure kBytes = {"bytes_per_s",
                                    [](const WindowResult& r) { return r.bytes_per_s; }, true};
  static constexpr Figure kP50 = {
      "p50_us", [](const WindowResult& r) { return OrNone(r.insert, r.insert.p50_us); }};
  static constexpr Figure kP99 = {
      "p99_us", [](const WindowResult& r) { return OrNone(r.insert, r.insert.p99_us); }};
  static constexpr Figure kP999 = {
      "p999_us", [](const WindowResult& r) { return OrNone(r.insert, r.insert.p999_us); }};
  static constexpr Figure kSampleP50 = {
      "sample_p50_us", [](const WindowResult& r) { return OrNone(r.sample, r.sample.p50_us); }};
  static constexpr Figure kSampleP999 = {
      "sample_p999_us", [](const WindowResult& r) { return OrNone(r.sample, r.sample.p999_us); }};
  static constexpr std::array kAll = {kAppends, kBytes, kP50, kP99, kP999, kSampleP50, kSampleP999};
};

ordered_json BufferReport::Value(const Cell& cell, const Figure& figure, Pick pick) const {
  const auto found = windows_.find(cell);
  if (found == windows_.end()) return nullptr;
  return Picked(SpreadOf(found->second, figure.of), figure.more_is_better, pick == Pick::kBest);
}

ordered_json BufferReport::RawValue(double (*of)(const RawLimits&), bool more_is_better,
                                    Pick pick) const {
  return Picked(SpreadOf(raw_, of), more_is_better, pick == Pick::kBest);
}

ordered_json BufferReport::Load(const Cell& cell) const {
  ordered_json load, spread;
  const auto found = windows_.find(cell);
  for (const Figure& figure : Known::kAll) {
    load[figure.name] = Value(cell, figure, Pick::kMedian);
    if (found != windows_.end())
      spread[figure.name] = SpreadJson(SpreadOf(found->second, figure.of));
  }
  load["spread"] = std::move(spread);
  return load;
}

ordered_json BufferReport::Loads(const std::string& contender, RecordSizes sizes) const {
  ordered_json loads;
  for (const int writers : {1, 8, kManyWriters}) {
    const Cell cell{.contender = contender, .writers = writers, .sizes = sizes};
    if (sizes == RecordSizes::kMix && !windows_.contains(cell)) continue;
    loads[fmt::format("w{}", writers)] = Load(cell);
  }
  return loads;
}

ordered_json BufferReport::Sides(const std::vector<Contender>& peers, RecordSizes sizes) const {
  ordered_json fields;
  // In the order of the contract, measured or not.
  for (const char* name :
       {"in_process.memory", "in_process.os", "in_process.sync", "served.os", "served.sync"}) {
    At(fields, name) = Loads(name, sizes);
  }
  for (const Contender& peer : peers) fields["peers"][peer.name] = Loads(peer.name, sizes);
  return fields;
}

ordered_json BufferReport::Readers(const std::string& contender) const {
  ordered_json fields;
  for (const int readers : {1, 2, 4}) {
    fields[fmt::format("r{}", readers)] =
        Load({.contender = contender, .writers = kManyWriters, .readers = readers});
  }
  return fields;
}

ordered_json BufferReport::Raw() const {
  if (raw_.empty()) return nullptr;
  return {{"bytes_per_s_1mib", RawValue(RawBytes, true, Pick::kMedian)},
          {"write_16k_p50_us", RawValue(RawP50, false, Pick::kMedian)},
          {"write_16k_p99_us", RawValue(RawP99, false, Pick::kMedian)},
          {"spread",
           {{"bytes_per_s_1mib", SpreadJson(SpreadOf(raw_, RawBytes))},
            {"write_16k_p50_us", SpreadJson(SpreadOf(raw_, RawP50))},
            {"write_16k_p99_us", SpreadJson(SpreadOf(raw_, RawP99))}}}};
}

ordered_json BufferReport::Ratios(const std::vector<Contender>& peers, Pick pick) const {
  ordered_json fields;
  const auto value = [&](const char* contender, const Figure& figure, int writers = kManyWriters) {
    return Value({.contender = contender, .writers = writers}, figure, pick);
  };
  const auto ratio = [&](const char* ours, const char* peer, const Figure& figure) {
    return Ratio(value(ours, figure), value(peer, figure));
  };
  fields["raw_fraction"] =
      Ratio(value("in_process.sync", Known::kBytes), RawValue(RawBytes, true, pick));
  fields["vs_rocksdb_sync"] = ratio("in_process.sync", "rocksdb_sync", Known::kAppends);
  fields["vs_lmdb"] = ratio("in_process.sync", "lmdb_sync", Known::kAppends);
  fields["vs_sqlite"] = ratio("in_process.sync", "sqlite_full", Known::kAppends);
  fields["os_vs_moodycamel"] = ratio("in_process.os", "moodycamel", Known::kAppends);
  fields["memory_vs_moodycamel"] = ratio("in_process.memory", "moodycamel", Known::kAppends);
  fields["served_vs_reverb"] = ratio("served.sync", "reverb", Known::kAppends);
  fields["served_vs_redis_always"] = ratio("served.sync", "redis_always", Known::kAppends);
  fields["served_vs_nats_always"] = ratio("served.sync", "nats_always", Known::kAppends);
  fields["served_os_vs_reverb"] = ratio("served.os", "reverb", Known::kAppends);
  fields["served_os_vs_redis_everysec"] = ratio("served.os", "redis_everysec", Known::kAppends);
  // From here on less is better.
  fields["sync_w1_p50_vs_raw"] =
      Ratio(value("in_process.sync", Known::kP50, 1), RawValue(RawP50, false, pick));
  fields["sync_w1_p99_vs_raw"] =
      Ratio(value("in_process.sync", Known::kP99, 1), RawValue(RawP99, false, pick));
  fields["sample_p50_vs_reverb"] = ratio("served.sync", "reverb", Known::kSampleP50);
  // Against the best of the served peers that promise the same.
  const auto lowest = [&](Promise promise) {
    ordered_json best = nullptr;
    for (const Contender& peer : peers) {
      if (!peer.served || peer.promise != promise) continue;
      const ordered_json p999 = value(peer.name.c_str(), Known::kP999);
      if (p999.is_number() && (best.is_null() || p999 < best)) best = p999;
    }
    return best;
  };
  fields["served_p999_vs_best_peer"] =
      Ratio(value("served.sync", Known::kP999), lowest(Promise::kPowerLoss));
  fields["served_os_p999_vs_best_peer"] =
      Ratio(value("served.os", Known::kP999), lowest(Promise::kKill));
  return fields;
}

ordered_json BufferReport::Fields(const std::vector<Contender>& ours,
                                  const std::vector<Contender>& peers) const {
  ordered_json fields = Sides(peers, RecordSizes::k16KiB);
  fields["raw"] = Raw();
  fields.update(Ratios(peers, Pick::kMedian));
  fields["of_best_windows"] = Ratios(peers, Pick::kBest);
  fields["readers"] = Readers("in_process.sync");
  fields["readers_os"] = Readers("in_process.os");
  fields["mix"] = Sides(peers, RecordSizes::kMix);
  fields["absent"] = ordered_json::object();
  for (const auto* side : {&ours, &peers}) {
    for (const Contender& contender : *side) {
      if (!contender.absent.empty()) fields["absent"][contender.name] = contender.absent;
    }
  }
  for (const Contender& peer : peers) {
    fields["peers"][peer.name]["description"] = peer.description;
    fields["peers"][peer.name]["acknowledged_survives"] = PromiseName(peer.promise);
  }
  return fields;
}

}  // namespace forebay::bench
