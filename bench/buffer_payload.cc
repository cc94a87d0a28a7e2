#include "bench/buffer_payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/buffer_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::bench {
namespace {

// Each writer has a range of ids of its own and uses it in order, as a producer does.
constexpr int64_t kWritersMax = 1 << 12;
constexpr int64_t kIdsPerWriter = kIdBaseUnit / kWritersMax;
constexpr int32_t kVocabulary = 151'936;
constexpr size_t kMixSizes = 16;
constexpr size_t kTailBytes = 64;
// Where the codec (trajectory/codec.cc) puts trajectory_id and, after it, group_id. The constructor
// of WriterPayloads checks it against PeekId.
constexpr size_t kIdOffset = 28;

Trajectory MakeTrajectory(std::mt19937_64& random, size_t tokens) {
  Trajectory t;
  t.id = {.trajectory_id = 1, .group_id = 0, .member = 0, .attempt = 0, .task_id = 1};
  t.environment = "bench";
  std::uniform_int_distribution<int32_t> token(0, kVocabulary - 1);
  std::uniform_real_distribution<float> logprob(-8.0F, -0.01F);
  const auto prompt = static_cast<int32_t>(tokens / 2);
  const auto all = static_cast<int32_t>(tokens);
  for (int32_t i = 0; i < all; ++i) {
    t.tokens.push_back(token(random));
    t.loss_mask.push_back(i >= prompt ? 1 : 0);
    t.rollout_logprobs.push_back(i >= prompt ? logprob(random) : 0.0F);
  }
  t.versions.push_back({.policy_version = 0, .tokens = all - prompt});
  t.turns.push_back({.kind = TurnKind::kPrompt, .begin = 0, .end = prompt});
  t.turns.push_back({.kind = TurnKind::kAction, .begin = prompt, .end = all});
  t.rewards["task"] = std::uniform_real_distribution<double>(0, 1)(random);
  return t;
}

uint64_t SeedOf(int writer, size_t index) {
  return static_cast<uint64_t>(writer) * kMixSizes + index + 1;
}

// The middles of equal slices of the distribution, so that few records stand for it.
std::vector<size_t> MixSizes() {
  std::mt19937_64 random(77);
  std::lognormal_distribution<double> size(std::log(16384.0), 0.9);
  std::vector<double> drawn(kMixSizes * 256);
  for (double& x : drawn) x = std::clamp(size(random), 2048.0, 131072.0);
  std::ranges::sort(drawn);
  std::vector<size_t> sizes;
  sizes.reserve(kMixSizes);
  for (size_t i = 0; i < kMixSizes; ++i) sizes.push_back(static_cast<size_t>(drawn[i * 256 + 128]));
  return sizes;
}

}  // namespace

std::string EncodedTrajectory(uint64_t seed, size_t bytes) {
  FB_CHECK(bytes >= 512 && bytes <= kRecordBytesMax, "a size outside of the benchmark's");
  std::mt19937_64 random(seed);
  // 4 bytes a token, 1/8 of mask, and 4 of log-probability for every second one; two take 13.
  const size_t fixed = Encode(MakeTrajectory(random, 2)).size() - 13;
  size_t tokens = (bytes - fixed) * 8 / 49;
  std::string encoded = Encode(MakeTrajectory(random, tokens));
  while (encoded.size() > bytes) encoded = Encode(MakeTrajectory(random, --tokens));
  return encoded;
}

std::vector<size_t> WriterSizes(RecordSizes sizes, int writer) {
  if (sizes == RecordSizes::k16KiB) return {16384};
  std::vector<size_t> mix = MixSizes();
  std::mt19937_64 random(static_cast<uint64_t>(writer) + 1);
  std::ranges::shuffle(mix, random);
  return mix;
}

int64_t RecordId(int writer, int64_t seq) { return (writer * kIdsPerWriter) + seq; }

WriterPayloads::WriterPayloads(RecordSizes sizes, int writer, int64_t id_base)
    : writer_(writer), id_base_(id_base) {
  FB_CHECK(writer >= 0 && writer < kWritersMax, "more writers than an id can name");
  const std::vector<size_t> bytes = WriterSizes(sizes, writer);
  for (size_t i = 0; i < bytes.size(); ++i) {
    encoded_.push_back(EncodedTrajectory(SeedOf(writer, i), bytes[i]));
  }
  const Record first = Next();
  const auto id = PeekId(first.bytes);
  FB_CHECK(id && id->trajectory_id == id_base + RecordId(writer, 0), "the codec moved the id");
  next_seq_ = 0;
}

Record WriterPayloads::Next() {
  const int64_t seq = next_seq_++;
  std::string& encoded = encoded_[static_cast<size_t>(seq) % encoded_.size()];
  const int64_t id = id_base_ + RecordId(writer_, seq);
  std::memcpy(encoded.data() + kIdOffset, &id, sizeof(id));
  std::memcpy(encoded.data() + kIdOffset + sizeof(id), &id, sizeof(id));
  return {.writer = writer_, .seq = seq, .bytes = encoded};
}

PayloadChecker::PayloadChecker(RecordSizes sizes, int writers) {
  for (int writer = 0; writer < writers; ++writer) {
    std::vector<Expected>& expected = expected_.emplace_back();
    const std::vector<size_t> bytes = WriterSizes(sizes, writer);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const std::string encoded = EncodedTrajectory(SeedOf(writer, i), bytes[i]);
      expected.push_back({encoded.size(), encoded.substr(encoded.size() - kTailBytes)});
    }
  }
}

Result<PayloadChecker::Identity> PayloadChecker::Identify(std::string_view bytes) const {
  const auto id = PeekId(bytes);
  if (!id) return DataLoss("a sampled record is not an encoded trajectory");
  const int64_t number = id->trajectory_id % kIdBaseUnit;
  const int64_t writer = number / kIdsPerWriter;
  const int64_t seq = number % kIdsPerWriter;
  if (number < 0 || writer >= static_cast<int64_t>(expected_.size())) {
    return DataLoss(
        fmt::format("a sampled record has id {}, which nobody wrote", id->trajectory_id));
  }
  const std::vector<Expected>& of_writer = expected_[static_cast<size_t>(writer)];
  const Expected& expected = of_writer[static_cast<size_t>(seq) % of_writer.size()];
  if (bytes.size() != expected.size || !bytes.ends_with(expected.tail)) {
    return DataLoss(fmt::format("record {} of writer {} came back with other bytes ({} of {})", seq,
                                writer, bytes.size(), expected.size));
  }
  return Identity{static_cast<int>(writer), seq};
}

}  // namespace forebay::bench
