// What the payloads of frames say, and their parsers: errors for hostile bytes, never more memory
// than a small multiple of what came in. docs/buffer_protocol.md has the same in words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/service/shared_area.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {

inline constexpr size_t kHelloBytesMax = 8192;
inline constexpr size_t kTokenBytesMax = 4096;
// Of requests other than appends.
inline constexpr size_t kRequestBytesMax = 64 << 10;

using SessionSecret = std::array<uint8_t, 16>;  // all zero: none

struct Hello {
  uint16_t version_min = 0, version_max = 0;
  std::string token;
  std::string producer;    // "": none
  SessionSecret secret{};  // of the session to go on with; none: register
};
std::string EncodeHello(const Hello& hello);
Result<Hello> ParseHello(std::string_view bytes);

struct WelcomeTable {
  std::string name;
  bool implied_dispatch = false;
  int32_t group_size = 0;
  uint32_t record_bytes_max = 0;
};
struct Welcome {
  uint16_t version = 0;
  uint64_t credit_bytes = 0;
  uint32_t ping_ms = 0;  // the server pings after that much silence
  uint32_t idle_ms = 0;  // and hangs up after that much
  int64_t producer_number = 0;
  int64_t epoch = 0;
  SessionSecret secret{};
  std::vector<WelcomeTable> tables;
};
std::string EncodeWelcome(const Welcome& welcome);
Result<Welcome> ParseWelcome(std::string_view bytes);

struct TakeRequest {
  int64_t groups = 1, learner_version = 0;
  Selector selector = Selector::kOldest;
  int64_t expires_ms = 60000;
};
std::string EncodeTake(const TakeRequest& take);
Result<TakeRequest> ParseTake(std::string_view bytes);

// The reply to a take: u64 take, u32 count, u32 0; then TakenEntry x count; then the encoded
// trajectories, one after the other.
inline constexpr size_t kTakenHeadBytes = 16;
inline constexpr size_t kTakenEntryBytes = 48;
std::string EncodeTakenIndex(const Taken& taken);
// The views point into `bytes`.
Result<Taken> ParseTaken(std::string_view bytes);

struct LeaseRequest {
  int64_t groups = 1, learner_version = 0;
};
std::string EncodeLease(const LeaseRequest& lease);
Result<LeaseRequest> ParseLeaseRequest(std::string_view bytes);

struct ReadBatchRequest {
  int64_t sequence = 0;
  int32_t shard = 0, shards = 1;
};
std::string EncodeReadBatch(const ReadBatchRequest& request);
Result<ReadBatchRequest> ParseReadBatch(std::string_view bytes);

std::string EncodeBatch(const Batch& batch);
Result<Batch> ParseBatch(std::string_view bytes);

std::string EncodeAreaSizes(const AreaSizes& sizes);
Result<AreaSizes> ParseAreaSizes(std::string_view bytes);

// Where a payload lies in its part of the shared memory.
struct SharedPiece {
  uint64_t offset = 0, bytes = 0;
};
inline constexpr size_t kSharedPieceBytes = 16;
std::array<char, kSharedPieceBytes> EncodeSharedPiece(const SharedPiece& piece);
Result<SharedPiece> ParseSharedPiece(std::string_view bytes);

// One number: a take id, a batch sequence, a group id.
std::string EncodeNumber(int64_t number);
Result<int64_t> ParseNumber(std::string_view bytes);

std::string EncodeId(const TrajectoryId& id);
Result<TrajectoryId> ParseId(std::string_view bytes);

struct InspectRequest {
  int64_t from = 0, limit = 0;
};
std::string EncodeInspect(const InspectRequest& request);
Result<InspectRequest> ParseInspect(std::string_view bytes);
std::string EncodeGroups(const std::vector<GroupInfo>& groups);
Result<std::vector<GroupInfo>> ParseGroups(std::string_view bytes);

std::string EncodeStats(const Ledger& ledger, const BufferStats& stats);
Status ParseStats(std::string_view bytes, Ledger* ledger, BufferStats* stats);

// [A-Za-z0-9._-]{1,128}
bool ValidName(std::string_view name);

}  // namespace forebay::buffer
