// The frames of a WebSocket, as a client reads and writes them. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "forebay/base/status.h"

namespace forebay::http {

enum class WebSocketOpcode : uint8_t {
  kContinuation = 0,
  kText = 1,
  kBinary = 2,
  kClose = 8,
  kPing = 9,
  kPong = 10,
};

// One frame of a client: masked with `mask`.
std::string WebSocketFrame(WebSocketOpcode opcode, std::string_view payload, uint32_t mask);

// The payload of a close frame.
std::string WebSocketClosePayload(uint16_t code, std::string_view reason);
// "code 1001 (going away)"; "" payload: "no code".
std::string DescribeWebSocketClose(std::string_view payload);

// What the server must answer to the key of our handshake.
std::string WebSocketAccept(std::string_view key);
std::string Base64(std::string_view bytes);

struct WebSocketMessage {
  WebSocketOpcode opcode = WebSocketOpcode::kText;  // kText, kBinary, or a control frame's
  std::string payload;
};

// Puts the frames of a server together. Holds at most one message of `message_bytes_max` bytes.
class WebSocketReader {
 public:
  explicit WebSocketReader(size_t message_bytes_max) : message_bytes_max_(message_bytes_max) {}

  // Takes what it can from the front of `input`. A whole message or control frame; nullopt: it
  // needs more bytes. kDataLoss: against the protocol; kResourceExhausted: too long, told from its
  // header.
  Result<std::optional<WebSocketMessage>> Next(std::string* input);

 private:
  const size_t message_bytes_max_;
  std::optional<WebSocketOpcode> opcode_;  // of the message whose first part has come
  std::string parts_;
};

}  // namespace forebay::http
