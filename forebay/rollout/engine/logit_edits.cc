#include "forebay/rollout/engine/logit_edits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "forebay/base/check.h"
#include "forebay/rollout/engine.h"

namespace forebay::rollout {
namespace {

bool Penalises(const GenerateRequest& request) {
  return request.repetition_penalty != 1 || request.presence_penalty != 0 ||
         request.frequency_penalty != 0;
}

}  // namespace

bool LogitEdits::Needs(const GenerateRequest& request) {
  return !request.logit_bias.empty() || Penalises(request);
}

LogitEdits::LogitEdits(int64_t slots, int64_t vocab_size, int64_t context)
    : capacity_(std::min(vocab_size, context + kLogitBiasMax)), rows_(static_cast<size_t>(slots)) {}

LogitEdits::Entry& LogitEdits::At(Row& row, int32_t token) {
  const auto [place, is_new] = row.places.try_emplace(token, row.entries.size());
  if (is_new) row.entries.push_back({.token = token});
  return row.entries[place->second];
}

void LogitEdits::Begin(int64_t slot, const GenerateRequest& request) {
  Row& row = rows_[static_cast<size_t>(slot)];
  FB_CHECK(!row.active, "a slot's row begins once");
  if (!Needs(request)) return;
  row.active = true;
  ++active_;
  row.repetition = static_cast<float>(request.repetition_penalty);
  row.presence = static_cast<float>(request.presence_penalty);
  row.frequency = static_cast<float>(request.frequency_penalty);
  for (const auto& [token, bias] : request.logit_bias) At(row, token).bias += bias;
  if (row.repetition != 1) {
    for (const int32_t token : request.prompt) At(row, token).factor = row.repetition;
  }
}

void LogitEdits::Sampled(int64_t slot, int32_t token) {
  Row& row = rows_[static_cast<size_t>(slot)];
  if (!row.active) return;
  if (row.repetition == 1 && row.presence == 0 && row.frequency == 0) return;
  Entry& entry = At(row, token);
  entry.factor = row.repetition;
  ++entry.count;
  entry.subtract = row.presence + row.frequency * static_cast<float>(entry.count);
}

void LogitEdits::End(int64_t slot) {
  Row& row = rows_[static_cast<size_t>(slot)];
  if (row.active) --active_;
  row = Row{};
}

int64_t LogitEdits::longest() const {
  size_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.entries.size());
  return static_cast<int64_t>(longest);
}

LogitEdits::Arrays LogitEdits::Pack(int64_t width) const {
  FB_CHECK(width >= longest() && width <= capacity_, "the rows fit");
  const size_t n = rows_.size() * static_cast<size_t>(width);
  Arrays out{.tokens = std::vector<int32_t>(n, -1),
             .biases = std::vector<float>(n, 0),
             .factors = std::vector<float>(n, 1),
             .subtract = std::vector<float>(n, 0)};
  for (size_t slot = 0; slot < rows_.size(); ++slot) {
    size_t i = slot * static_cast<size_t>(width);
    for (const Entry& entry : rows_[slot].entries) {
      out.tokens[i] = entry.token;
      out.biases[i] = entry.bias;
      out.factors[i] = entry.factor;
      out.subtract[i] = entry.subtract;
      ++i;
    }
  }
  return out;
}

}  // namespace forebay::rollout
