// Report: what a run ends with, as text and as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/run_actors.h"
#include "forebay/buffer/buffer.h"

namespace forebay::apps {

struct RunReport {
  std::string run;
  std::string mode;
  int64_t steps = 0, steps_target = 0;
  double seconds = 0;       // wall time of training, evaluations left out
  double fill_seconds = 0;  // of it, until the first batch was there
  double busy_seconds = 0;  // of it, in optimizer steps on the device
  double gap_seconds = 0;   // of it, with a batch at hand and nothing for the device to do
  std::optional<EvalResult> before, after;
  std::vector<double> step_rewards;  // mean reward of each batch
  std::vector<double> step_seconds;  // when each step ended, from the start of training
  int64_t tokens = 0, padded_tokens = 0, trained_episodes = 0, sampled_tokens = 0;
  int64_t programs = 0, compiles_after_warmup = 0;
  std::map<int64_t, int64_t> staleness;  // trajectories by age when trained on
  int64_t max_staleness = 0;             // the bound
  buffer::Ledger ledger;
  std::vector<int64_t> quarantined_tasks;
  std::string checkpoint;  // folder of the last one

  // Busy share of the time since the first batch: filling the empty pipeline happens once.
  double utilization() const {
    return seconds > fill_seconds ? busy_seconds / (seconds - fill_seconds) : 0;
  }
  // Of optimizer steps (compute and gap): what the host kept the device from.
  double dispatch_gap() const {
    return busy_seconds > 0 ? gap_seconds / (busy_seconds + gap_seconds) : 0;
  }
  double padding_waste() const {
    return padded_tokens > 0
               ? 1.0 - static_cast<double>(tokens) / static_cast<double>(padded_tokens)
               : 0;
  }
  int64_t max_staleness_trained() const {
    return staleness.empty() ? 0 : staleness.rbegin()->first;
  }
};

std::string FormatReport(const RunReport& report);
// "dispatched 4 = trained 2 + rejected 1 + ...": `reasons` stands behind the rejected ones.
std::string LedgerSum(const buffer::Ledger& ledger, std::string_view reasons = "");
std::string FormatLedger(const buffer::Ledger& ledger);
std::string LedgerJson(const buffer::Ledger& ledger);
// One object; the fields of bench's `utilization` have the same names.
std::string ReportJson(const RunReport& report);

}  // namespace forebay::apps
