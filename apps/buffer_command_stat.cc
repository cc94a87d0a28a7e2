// forebay buffer stat: what the log adds up to.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/buffer_command.h"
#include "apps/buffer_command_text.h"
#include "apps/report.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

using buffer::Fate;
using buffer::LogEvent;
using buffer::LogReader;
using buffer::LogRecord;
using buffer::LogState;

// Counts by power of two: bounded, whatever comes. Bucket i: values in [2^(i-1), 2^i), 0 in 0.
class Histogram {
 public:
  void Add(int64_t value) {
    const auto v = static_cast<uint64_t>(std::max<int64_t>(0, value));
    ++buckets_[static_cast<size_t>(std::bit_width(v))];
    ++count_;
    sum_ += static_cast<double>(v);
    max_ = std::max(max_, value);
  }
  int64_t count() const { return count_; }
  int64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  // (upper bound, count) of the buckets that hold something.
  std::vector<std::pair<uint64_t, int64_t>> Filled() const {
    std::vector<std::pair<uint64_t, int64_t>> out;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i] > 0)
        out.emplace_back(i == 0 ? 0 : (uint64_t{1} << (i - 1)) * 2 - 1, buckets_[i]);
    }
    return out;
  }
  nlohmann::json Json() const {
    nlohmann::json buckets = nlohmann::json::array();
    for (const auto& [upto, n] : Filled()) buckets.push_back({{"up_to", upto}, {"count", n}});
    return {{"count", count_}, {"mean", mean()}, {"max", max_}, {"histogram", buckets}};
  }

 private:
  std::array<int64_t, 65> buckets_{};
  int64_t count_ = 0, max_ = 0;
  double sum_ = 0;
};

struct Found {
  std::optional<LogState> state;
  std::string state_problem;
  int64_t segments = 0, disk_bytes = 0;
  int64_t records = 0, last_sequence = 0;
  Histogram bytes;  // of trajectories, encoded
  Histogram tokens, loss_tokens;
  std::map<std::string, int64_t> outcomes, fates;
  std::map<int64_t, int64_t> ages;  // of pending ones: versions behind -> trajectories
  int64_t version = -1;             // that the ages are counted from
  int64_t last_batch = 0, last_batch_version = 0, last_batch_trajectories = 0;
};

Status Look(LogReader& reader, bool quick, Found& found) {
  for (const buffer::SegmentInfo& segment : reader.segments()) {
    ++found.segments;
    found.disk_bytes += segment.bytes;
    found.records += segment.records_total();
    found.last_sequence = std::max(found.last_sequence, segment.last_sequence);
  }
  Result<LogState> state = reader.ReadState();
  if (state.ok()) {
    found.state = std::move(*state);
  } else {
    found.state_problem = state.status().message();
  }
  FB_RETURN_IF_ERROR(reader.LoadFates());
  std::map<int64_t, int64_t> pending_versions;
  const buffer::LogFilter filter{.payloads = !quick};
  FB_RETURN_IF_ERROR(reader.ForEach(filter, [&](const LogRecord& record) {
    if (record.event == LogEvent::kLease) {
      found.last_batch = record.batch;
      found.last_batch_version = record.learner_version;
      found.last_batch_trajectories = static_cast<int64_t>(record.trajectory_ids.size());
    }
    if (record.event != LogEvent::kTrajectory || !reader.IsNewest(record)) return true;
    const Fate fate = reader.FateOf(record.id.trajectory_id);
    ++found.fates[std::string(FateName(fate.kind))];
    if (fate.kind == Fate::Kind::kPending) ++pending_versions[record.min_version];
    found.version = std::max(found.version, record.min_version);
    found.bytes.Add(record.payload_bytes);
    if (quick) return true;
    if (const auto summary = PeekSummary(record.encoded)) {
      found.tokens.Add(summary->tokens);
      found.loss_tokens.Add(summary->loss_tokens);
      ++found.outcomes[std::string(OutcomeName(summary->outcome))];
    }
    return true;
  }));
  found.version = std::max(found.version, found.last_batch_version);
  for (const auto& [version, n] : pending_versions) {
    found.ages[found.version - version] += n;
  }
  return OkStatus();
}

nlohmann::json ToJson(const LogReader& reader, const Found& f, bool quick) {
  nlohmann::json out = {{"folder", reader.folder()},         {"segments", f.segments},
                        {"disk_bytes", f.disk_bytes},        {"records", f.records},
                        {"last_sequence", f.last_sequence},  {"trajectories", f.fates},
                        {"trajectory_bytes", f.bytes.Json()}};
  if (!quick) {
    out["tokens"] = f.tokens.Json();
    out["loss_tokens"] = f.loss_tokens.Json();
    out["outcomes"] = f.outcomes;
  }
  nlohmann::json ages = nlohmann::json::array();
  for (const auto& [age, n] : f.ages) ages.push_back({{"age", age}, {"trajectories", n}});
  out["staleness"] = {{"version", f.version}, {"pending", ages}};
  out["last_batch"] = {{"sequence", f.last_batch},
                       {"learner_version", f.last_batch_version},
                       {"trajectories", f.last_batch_trajectories}};
  if (!f.state) {
    out["state"] = nullptr;
    out["problem"] = f.state_problem;
    return out;
  }
  nlohmann::json batches = nlohmann::json::array();
  for (const LogState::LoggedBatch& batch : f.state->batches) {
    batches.push_back({{"sequence", batch.sequence},
                       {"learner_version", batch.learner_version},
                       {"groups", batch.groups},
                       {"committed", batch.committed}});
  }
  out["state"] = {{"ledger", nlohmann::json::parse(LedgerJson(f.state->ledger))},
                  {"group_size", f.state->group_size},
                  {"ready_groups", f.state->ready_groups},
                  {"partial_groups", f.state->partial_groups},
                  {"next_batch", f.state->next_batch},
                  {"committed_batch", f.state->committed_batch},
                  {"released_batch", f.state->released_batch},
                  {"batches", batches}};
  return out;
}

void PrintState(const LogState& state) {
  const buffer::Ledger& ledger = state.ledger;
  std::string reasons;
  for (int i = 0; i < buffer::kRejectReasons; ++i) {
    const int64_t n = ledger.rejected[static_cast<size_t>(i)];
    if (n == 0) continue;
    reasons += fmt::format("{}{} {}", reasons.empty() ? " (" : ", ",
                           RejectReasonName(static_cast<buffer::RejectReason>(i)), n);
  }
  if (!reasons.empty()) reasons += ")";
  fmt::print("ledger     {}{}\n", LedgerSum(ledger, reasons),
             ledger.balanced() ? "" : "  (NOT BALANCED)");
  fmt::print("groups     of {}: {} ready, {} partial\n", state.group_size, state.ready_groups,
             state.partial_groups);
  const auto retained =
      std::ranges::count_if(state.batches, [](const auto& batch) { return batch.committed; });
  fmt::print("batches    up to {}, committed up to {}; {} leased, {} committed and retained\n",
             state.next_batch - 1, state.committed_batch,
             static_cast<int64_t>(state.batches.size()) - retained, retained);
}

void PrintHistogram(const char* name, const Histogram& histogram) {
  if (histogram.count() == 0) return;
  fmt::print("{:<10} mean {:.0f}, max {}\n", name, histogram.mean(), histogram.max());
  int64_t most = 1;
  for (const auto& [upto, n] : histogram.Filled()) most = std::max(most, n);
  for (const auto& [upto, n] : histogram.Filled()) {
    fmt::print("           up to {:>9}  {:>9}  {}\n", upto, n,
               std::string(static_cast<size_t>((n * 40 + most - 1) / most), '#'));
  }
}

std::string CountsText(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [name, n] : counts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, n);
  }
  return text.empty() ? "none" : text;
}

void Print(const LogReader& reader, const Found& f) {
  fmt::print("folder     {}\n", reader.folder());
  fmt::print("log        {} segments, {}, {} records up to sequence {}\n", f.segments,
             BytesText(f.disk_bytes), f.records, f.last_sequence);
  if (f.state) {
    PrintState(*f.state);
  } else {
    fmt::print("state      {}\n", f.state_problem);
  }
  if (f.last_batch > 0) {
    fmt::print("last lease batch {} at version {}: {} trajectories\n", f.last_batch,
               f.last_batch_version, f.last_batch_trajectories);
  }
  fmt::print("in the log {} trajectories: {}\n", f.bytes.count(), CountsText(f.fates));
  if (!f.outcomes.empty()) fmt::print("outcomes   {}\n", CountsText(f.outcomes));
  if (!f.ages.empty()) {
    std::string ages;
    for (const auto& [age, n] : f.ages) {
      ages += fmt::format("{}{} behind: {}", ages.empty() ? "" : ", ", age, n);
    }
    fmt::print("staleness  pending, against version {}: {}\n", f.version, ages);
  }
  PrintHistogram("bytes", f.bytes);
  PrintHistogram("tokens", f.tokens);
}

}  // namespace

Status BufferStat(const BufferStatCommand& command) {
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, LogReader::Open(command.folder));
  Found found;
  FB_RETURN_IF_ERROR(Look(*reader, command.quick, found));
  if (command.json) {
    std::puts(JsonText(ToJson(*reader, found, command.quick)).c_str());
  } else {
    Print(*reader, found);
  }
  PrintNotes(*reader);
  return OkStatus();
}

}  // namespace forebay::apps
