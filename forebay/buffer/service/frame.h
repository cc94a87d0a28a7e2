// Frames: what both directions of a connection are made of (docs/buffer_protocol.md).
//
// A frame is a header of 32 bytes and `length` bytes of payload. The header has its own checksum,
// so that a length is trusted, or refused, before anything is allocated for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::buffer {

inline constexpr size_t kFrameHeaderBytes = 32;
inline constexpr uint16_t kProtocolVersion = 2;  // 2: shared memory
inline constexpr uint16_t kProtocolVersionMin = 1;
inline constexpr uint32_t kProtocolMagic = 0x50424246;  // "FBBP"

enum class FrameType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kGoodbye = 3,  // argument: a StatusCode; payload: the reason. The last frame of a connection
  kPing = 4,
  kPong = 5,
  kShare = 6,   // payload: AreaSizes that the client would like
  kShared = 7,  // payload: AreaSizes that it gets; the memory's descriptor comes with it

  // Answers to requests.
  kDone = 8,            // nothing to say
  kFailed = 9,          // argument: a StatusCode; payload: the message
  kReply = 10,          // payload: by the request
  kReplyShared = 11,    // the same, in shared memory; payload: SharedPiece
  kReplyReturned = 12,  // from the client: payload: u64 offset, of each piece that it has done with

  kAppend = 16,    // argument: milliseconds to its deadline; extra: priority, an f32
  kAppended = 17,  // payload: u64 request, of each append that is durable
  kDispatch = 18,
  kReject = 19,  // argument: a RejectReason
  kCloseGroup = 20,
  kAppendShared = 21,  // as kAppend; payload: SharedPiece

  kTake = 32,
  kAcknowledge = 33,
  kGiveBack = 34,
  kLease = 35,
  kReadBatch = 36,
  kMarkTrained = 37,
  kCommit = 38,
  kRelease = 39,

  kPause = 48,  // argument: bit 0 appends, bit 1 readers
  kUnblock = 49,
  kInspect = 50,
  kStats = 51,
  kTail = 52,
  kTailRecords = 53,
};

struct FrameHeader {
  uint32_t length = 0;  // of the payload
  FrameType type = FrameType::kPing;
  uint8_t flags = 0;     // kFrame...
  uint16_t table = 0;    // its index in the welcome
  uint64_t request = 0;  // chosen by the client, not 0; comes back in the answer
  uint32_t argument = 0;
  uint32_t extra = 0;
  uint32_t payload_crc = 0;  // CRC32C of the payload with kFrameHasCrc, else 0
};
inline constexpr uint8_t kFrameHasCrc = 1;

using FrameHeaderBytes = std::array<char, kFrameHeaderBytes>;
FrameHeaderBytes EncodeFrameHeader(const FrameHeader& header);

// kDataLoss: the checksum is wrong (not of this protocol, or damaged); kResourceExhausted: longer
// than `length_max`. `bytes` are kFrameHeaderBytes.
Result<FrameHeader> ParseFrameHeader(std::string_view bytes, uint32_t length_max);

// kDataLoss when the frame has a payload checksum and it is wrong.
Status CheckPayload(const FrameHeader& header, std::string_view payload);

}  // namespace forebay::buffer
