#include "apps/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <string_view>

#include "apps/run_actors.h"
#include "forebay/buffer/buffer.h"

namespace forebay::apps {
namespace {

std::string FormatEval(std::string_view when, const EvalResult& e) {
  std::string out = fmt::format("  {:<10} {:.3f}  over {} episodes", when, e.reward, e.episodes);
  for (const auto& [component, reward] : e.components)
    out += fmt::format("  {} {:.3f}", component, reward);
  if (e.failed > 0) out += fmt::format("  ({} failed)", e.failed);
  return out + fmt::format("  in {:.0f} s\n", e.seconds);
}

// How the reward of the batches moved: the mean of the first and of the last few.
std::string FormatTraining(std::span<const double> rewards) {
  constexpr size_t kWindow = 4;
  if (rewards.size() < 2) return {};
  const size_t count = std::min(kWindow, rewards.size() / 2);
  const auto mean = [count](std::span<const double> part) {
    return std::accumulate(part.begin(), part.end(), 0.0) / static_cast<double>(count);
  };
  return fmt::format("reward in training    {:.3f} in the first {} steps, {:.3f} in the last\n",
                     mean(rewards.first(count)), count, mean(rewards.last(count)));
}

nlohmann::json EvalJson(const std::optional<EvalResult>& e) {
  if (!e) return nullptr;
  return {{"reward", e->reward},
          {"episodes", e->episodes},
          {"failed", e->failed},
          {"components", e->components}};
}

nlohmann::json LedgerValue(const buffer::Ledger& l) {
  nlohmann::json rejected = nlohmann::json::object();
  for (int i = 0; i < buffer::kRejectReasons; ++i) {
    rejected[std::string(buffer::RejectReasonName(static_cast<buffer::RejectReason>(i)))] =
        l.rejected[static_cast<size_t>(i)];
  }
  return {{"dispatched", l.dispatched}, {"trained", l.trained}, {"pending", l.pending},
          {"in_flight", l.in_flight},   {"rejected", rejected}, {"late", l.late},
          {"balanced", l.balanced()}};
}

}  // namespace

std::string LedgerJson(const buffer::Ledger& ledger) { return LedgerValue(ledger).dump(); }

std::string LedgerSum(const buffer::Ledger& l, std::string_view reasons) {
  return fmt::format("dispatched {} = trained {} + rejected {}{} + pending {} + in flight {}",
                     l.dispatched, l.trained, l.rejected_total(), reasons, l.pending, l.in_flight);
}

std::string FormatLedger(const buffer::Ledger& l) {
  std::string out = LedgerSum(l) + (l.balanced() ? "  (balanced)" : "  (NOT BALANCED)");
  for (int i = 0; i < buffer::kRejectReasons; ++i) {
    if (l.rejected[static_cast<size_t>(i)] == 0) continue;
    const auto reason = static_cast<buffer::RejectReason>(i);
    // Its name stands in logs and protocols, and says too little: most of them were not lost by a
    // crash.
    const char* const meaning = reason == buffer::RejectReason::kLostInCrash
                                    ? " (under way when the run was interrupted or killed)"
                                    : "";
    out += fmt::format("\n    rejected as {}{}: {}", buffer::RejectReasonName(reason), meaning,
                       l.rejected[static_cast<size_t>(i)]);
  }
  if (l.late > 0) out += fmt::format("\n    late results dropped: {}", l.late);
  return out;
}

std::string FormatReport(const RunReport& r) {
  std::string out = fmt::format("\n{} of {} steps ({}), {} episodes trained on, {:.0f} s\n",
                                r.steps, r.steps_target, r.mode, r.trained_episodes, r.seconds);
  if (r.before || r.after) {
    out += "reward on held-out tasks\n";
    if (r.before) out += FormatEval("before", *r.before);
    if (r.after) out += FormatEval("after", *r.after);
  }
  out += FormatTraining(r.step_rewards);
  // Without adding up anything else: a step without a token for the device changes no weight.
  if (r.steps > 0 && r.trained_episodes > 0 && r.tokens == 0) {
    out +=
        "nothing was learnt: in every group all rewards were equal, so no step changed the "
        "weights\n";
  }
  out += fmt::format(
      "learner busy          {:.1f} % of the time; dispatch gaps {:.1f} % of its steps\n"
      "trained               {:.0f} tok/s; sampled {:.0f} tok/s\n"
      "padding waste         {:.1f} %\n"
      "compiled programs     {}; {} after warm-up\n"
      "staleness             ",
      100 * r.utilization(), 100 * r.dispatch_gap(),
      r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0,
      r.seconds > 0 ? static_cast<double>(r.sampled_tokens) / r.seconds : 0,
      100 * r.padding_waste(), r.programs, r.compiles_after_warmup);
  for (const auto& [age, count] : r.staleness) out += fmt::format("{}: {}  ", age, count);
  out += fmt::format("(bound {})\nledger                {}\n", r.max_staleness,
                     FormatLedger(r.ledger));
  if (const size_t count = r.quarantined_tasks.size(); count > 0) {
    constexpr size_t kShown = 10;
    const auto shown = std::span(r.quarantined_tasks).first(std::min(count, kShown));
    out += fmt::format("quarantined tasks     {}{}\n", fmt::join(shown, ", "),
                       count > kShown ? fmt::format(" and {} more", count - kShown) : "");
  }
  if (!r.run.empty()) out += fmt::format("report                {}/report.json\n", r.run);
  if (!r.checkpoint.empty()) {
    out += fmt::format("checkpoint            {}\n", r.checkpoint);
    out += fmt::format("next                  forebay export {} FOLDER; forebay audit {}\n", r.run,
                       r.run);
  }
  return out;
}

std::string ReportJson(const RunReport& r) {
  nlohmann::json staleness = nlohmann::json::object();
  for (const auto& [age, count] : r.staleness) staleness[std::to_string(age)] = count;
  const nlohmann::json out = {{"mode", r.mode},
                              {"steps", r.steps},
                              {"seconds", r.seconds},
                              {"fill_seconds", r.fill_seconds},
                              {"utilization", r.utilization()},
                              {"dispatch_gap_fraction", r.dispatch_gap()},
                              {"before", EvalJson(r.before)},
                              {"after", EvalJson(r.after)},
                              {"step_rewards", r.step_rewards},
                              {"step_seconds", r.step_seconds},
                              {"trained_episodes", r.trained_episodes},
                              {"tokens", r.tokens},
                              {"padding_waste", r.padding_waste()},
                              {"recompiles_after_warmup", r.compiles_after_warmup},
                              {"staleness", staleness},
                              {"max_staleness_trained", r.max_staleness_trained()},
                              {"max_staleness", r.max_staleness},
                              {"ledger", LedgerValue(r.ledger)},
                              {"ledger_balanced", r.ledger.balanced()}};
  return out.dump();
}

}  // namespace forebay::apps
