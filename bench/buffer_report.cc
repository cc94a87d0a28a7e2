#include "bench/buffer_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
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

double Appends(const WindowResult& r) { return r.appends_per_s; }
double BytesPerSecond(const WindowResult& r) { return r.bytes_per_s; }
double InsertP50(const WindowResult& r) { return r.insert.p50_us; }
double InsertP99(const WindowResult& r) { return r.insert.p99_us; }
double InsertP999(const WindowResult& r) { return r.insert.p999_us; }
double SampleP50(const WindowResult& r) { return r.sample.p50_us; }
double SampleP999(const WindowResult& r) { return r.sample.p999_us; }

template <typename T, typename Of>
Spread SpreadOf(const std::vector<T>& repeats, Of of) {
  std::vector<double> values;
  values.reserve(repeats.size());
  for (const T& repeat : repeats) values.push_back(of(repeat));
  return Summarize(std::move(values));
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

const std::vector<BufferReport::NamedFigure>& BufferReport::Figures() {
  static const std::vector<NamedFigure> figures = {
      {"appends_per_s", Appends},    {"bytes_per_s", BytesPerSecond}, {"p50_us", InsertP50},
      {"p99_us", InsertP99},         {"p999_us", InsertP999},         {"sample_p50_us", SampleP50},
      {"sample_p999_us", SampleP999}};
  return figures;
}

ordered_json BufferReport::Median(const Cell& cell, Figure of) const {
  const auto found = windows_.find(cell);
  if (found == windows_.end()) return nullptr;
  return SpreadOf(found->second, of).median;
}

ordered_json BufferReport::Load(const Cell& cell) const {
  ordered_json load, spread;
  for (const NamedFigure& figure : Figures()) {
    load[figure.name] = Median(cell, figure.of);
    const auto found = windows_.find(cell);
    if (found != windows_.end()) spread[figure.name] = ToJson(SpreadOf(found->second, figure.of));
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
  const auto bytes = [](const RawLimits& r) { return r.bytes_per_s; };
  const auto p50 = [](const RawLimits& r) { return r.write_16k.p50_us; };
  const auto p99 = [](const RawLimits& r) { return r.write_16k.p99_us; };
  const Spread bytes_spread = SpreadOf(raw_, bytes);
  const Spread p50_spread = SpreadOf(raw_, p50);
  const Spread p99_spread = SpreadOf(raw_, p99);
  return {{"bytes_per_s_1mib", bytes_spread.median},
          {"write_16k_p50_us", p50_spread.median},
          {"write_16k_p99_us", p99_spread.median},
          {"spread",
           {{"bytes_per_s_1mib", ToJson(bytes_spread)},
            {"write_16k_p50_us", ToJson(p50_spread)},
            {"write_16k_p99_us", ToJson(p99_spread)}}}};
}

void BufferReport::AddRatios(const std::vector<Contender>& peers, ordered_json& fields) const {
  const auto appends = [&](const char* contender) {
    return Median({.contender = contender, .writers = kManyWriters}, Appends);
  };
  const ordered_json sync = appends("in_process.sync");
  const ordered_json served = appends("served.sync");
  const ordered_json served_os = appends("served.os");
  fields["vs_rocksdb_sync"] = Ratio(sync, appends("rocksdb_sync"));
  fields["vs_lmdb"] = Ratio(sync, appends("lmdb_sync"));
  fields["vs_sqlite"] = Ratio(sync, appends("sqlite_full"));
  fields["os_vs_moodycamel"] = Ratio(appends("in_process.os"), appends("moodycamel"));
  fields["memory_vs_moodycamel"] = Ratio(appends("in_process.memory"), appends("moodycamel"));
  fields["served_vs_reverb"] = Ratio(served, appends("reverb"));
  fields["served_vs_redis_always"] = Ratio(served, appends("redis_always"));
  fields["served_vs_nats_always"] = Ratio(served, appends("nats_always"));
  fields["served_os_vs_reverb"] = Ratio(served_os, appends("reverb"));
  fields["served_os_vs_redis_everysec"] = Ratio(served_os, appends("redis_everysec"));

  const ordered_json raw = fields["raw"];
  const auto raw_figure = [&](const char* name) {
    return raw.is_object() ? raw[name] : ordered_json(nullptr);
  };
  fields["raw_fraction"] =
      Ratio(Median({.contender = "in_process.sync", .writers = kManyWriters}, BytesPerSecond),
            raw_figure("bytes_per_s_1mib"));
  const Cell one{.contender = "in_process.sync", .writers = 1};
  fields["sync_w1_p50_vs_raw"] = Ratio(Median(one, InsertP50), raw_figure("write_16k_p50_us"));
  fields["sync_w1_p99_vs_raw"] = Ratio(Median(one, InsertP99), raw_figure("write_16k_p99_us"));
  fields["sample_p50_vs_reverb"] =
      Ratio(Median({.contender = "served.sync", .writers = kManyWriters}, SampleP50),
            Median({.contender = "reverb", .writers = kManyWriters}, SampleP50));

  // Against the best of the served peers whose acknowledgement promises as much or, for the one
  // that survives a kill only, no more.
  for (const auto& [ours, promise] :
       {std::pair{"served.sync", Promise::kPowerLoss}, std::pair{"served.os", Promise::kKill}}) {
    ordered_json best = nullptr;
    for (const Contender& peer : peers) {
      if (!peer.served || peer.promise != promise) continue;
      const ordered_json p999 =
          Median({.contender = peer.name, .writers = kManyWriters}, InsertP999);
      if (p999.is_number() && (best.is_null() || p999 < best)) best = p999;
    }
    const std::string name =
        promise == Promise::kPowerLoss ? "served_p999_vs_best_peer" : "served_os_p999_vs_best_peer";
    fields[name] = Ratio(Median({.contender = ours, .writers = kManyWriters}, InsertP999), best);
  }
}

ordered_json BufferReport::Fields(const std::vector<Contender>& ours,
                                  const std::vector<Contender>& peers) const {
  ordered_json fields = Sides(peers, RecordSizes::k16KiB);
  fields["raw"] = Raw();
  AddRatios(peers, fields);
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
