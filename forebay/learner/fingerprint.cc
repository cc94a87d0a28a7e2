#include "forebay/learner/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "forebay/learner/step_metrics.h"

namespace forebay::learner {
namespace {

constexpr std::string_view kBitsPrefix = "0x";
constexpr size_t kBitsDigits = 16;

std::string Bits(double value) {
  return fmt::format("{}{:016x}", kBitsPrefix, std::bit_cast<uint64_t>(value));
}

std::string IdsDigest(const std::vector<int64_t>& ids) {
  return BytesDigest({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t)});
}

}  // namespace

std::vector<FingerprintField> Fingerprint(const StepMetrics& m) {
  return {
      {"batch", std::to_string(m.batch_sequence)},
      {"policy_version", std::to_string(m.policy_version)},
      {"trajectory_ids", IdsDigest(m.trajectory_ids)},
      {"trajectories", m.batch_digest},
      {"reward_mean", Bits(m.reward_mean)},
      {"reward_std", Bits(m.reward_std)},
      {"zero_advantage", std::to_string(m.zero_advantage)},
      {"tokens", std::to_string(m.tokens)},
      {"loss_tokens", std::to_string(m.loss_tokens)},
      {"packed_tokens", std::to_string(m.packed_tokens)},
      {"padded_tokens", std::to_string(m.padded_tokens)},
      {"micro_batches", std::to_string(m.micro_batches)},
      {"learning_rate", Bits(m.learning_rate)},
      {"loss", Bits(m.loss)},
      {"ratio_mean", Bits(m.ratio_mean)},
      {"clip_fraction", Bits(m.clip_fraction)},
      {"capped_fraction", Bits(m.capped_fraction)},
      {"kl", Bits(m.kl)},
      {"entropy", Bits(m.entropy)},
      {"logprob_gap_max", Bits(m.logprob_gap_max)},
      {"grad_norm", Bits(m.grad_norm)},
      {"updated", m.updated ? "yes" : "no"},
      {"weights", m.weights_digest},
  };
}

std::string ReadableBits(std::string_view bits) {
  if (!bits.starts_with(kBitsPrefix) || bits.size() != kBitsPrefix.size() + kBitsDigits) {
    return std::string(bits);
  }
  const char* const end = bits.data() + bits.size();
  uint64_t raw = 0;
  const auto parsed = std::from_chars(bits.data() + kBitsPrefix.size(), end, raw, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::string(bits);
  return fmt::format("{}", std::bit_cast<double>(raw));
}

std::string BytesDigest(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace forebay::learner
