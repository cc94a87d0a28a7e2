#include "forebay/base/http/websocket_frames.h"

#include <fmt/core.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/status.h"

namespace forebay::http {
namespace {

constexpr uint8_t kFinal = 0x80;
constexpr uint8_t kReserved = 0x70;
constexpr uint8_t kMasked = 0x80;
constexpr size_t kControlBytesMax = 125;
constexpr size_t kReasonShown = 200;

void AppendBig(std::string* out, uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t ReadBig(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

bool IsControl(WebSocketOpcode opcode) { return static_cast<uint8_t>(opcode) >= 8; }

Status Wrong(std::string_view what) {
  return DataLoss(fmt::format("the peer breaks the WebSocket protocol: {}", what));
}

}  // namespace

std::string WebSocketFrame(WebSocketOpcode opcode, std::string_view payload, uint32_t mask) {
  std::string frame;
  frame.reserve(payload.size() + 14);
  frame.push_back(static_cast<char>(kFinal | static_cast<uint8_t>(opcode)));
  if (payload.size() < 126) {
    frame.push_back(static_cast<char>(kMasked | payload.size()));
  } else if (payload.size() <= 0xffff) {
    frame.push_back(static_cast<char>(kMasked | 126));
    AppendBig(&frame, payload.size(), 2);
  } else {
    frame.push_back(static_cast<char>(kMasked | 127));
    AppendBig(&frame, payload.size(), 8);
  }
  std::string key;
  AppendBig(&key, mask, 4);
  frame += key;
  for (size_t i = 0; i < payload.size(); ++i) {
    frame.push_back(static_cast<char>(payload[i] ^ key[i % 4]));
  }
  return frame;
}

std::string WebSocketClosePayload(uint16_t code, std::string_view reason) {
  std::string payload;
  AppendBig(&payload, code, 2);
  payload += reason.substr(0, kControlBytesMax - 2);
  return payload;
}

std::string DescribeWebSocketClose(std::string_view payload) {
  if (payload.size() < 2) return "no code";
  std::string reason(payload.substr(2, kReasonShown));
  std::ranges::replace_if(reason, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  const uint64_t code = ReadBig(payload.substr(0, 2));
  return reason.empty() ? fmt::format("code {}", code) : fmt::format("code {} ({})", code, reason);
}

std::string Base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string WebSocketAccept(std::string_view key) {
  const std::string text = std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";  // RFC 6455
  std::array<unsigned char, SHA_DIGEST_LENGTH> digest;
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return Base64({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

Result<std::optional<WebSocketMessage>> WebSocketReader::Next(std::string* input) {
  while (true) {
    const std::string_view bytes = *input;
    if (bytes.size() < 2) return std::optional<WebSocketMessage>();
    const auto first = static_cast<uint8_t>(bytes[0]);
    const auto second = static_cast<uint8_t>(bytes[1]);
    const auto opcode = static_cast<WebSocketOpcode>(first & 0x0f);
    const bool final = (first & kFinal) != 0;
    if ((first & kReserved) != 0) return Wrong("reserved bits are set");
    if ((second & kMasked) != 0) return Wrong("a server's frame is masked");
    if (static_cast<uint8_t>(opcode) > 10 ||
        (static_cast<uint8_t>(opcode) > 2 && static_cast<uint8_t>(opcode) < 8)) {
      return Wrong("a frame of an unknown kind");
    }
    const bool control = IsControl(opcode);
    const uint8_t length = second & 0x7f;
    if (control && (!final || length > kControlBytesMax)) {
      return Wrong("a control frame that is cut or too long");
    }
    if (!control && (opcode == WebSocketOpcode::kContinuation) != opcode_.has_value()) {
      return Wrong("parts of messages in the wrong order");
    }
    const size_t header = length == 127 ? 10 : length == 126 ? 4 : 2;
    if (bytes.size() < header) return std::optional<WebSocketMessage>();
    const uint64_t size = header == 2 ? length : ReadBig(bytes.substr(2, header - 2));
    if (!control && size > message_bytes_max_ - std::min(parts_.size(), message_bytes_max_)) {
      return ResourceExhausted(
          fmt::format("a message of the peer is longer than {} bytes", message_bytes_max_));
    }
    if (bytes.size() - header < size) return std::optional<WebSocketMessage>();
    const auto payload = bytes.substr(header, static_cast<size_t>(size));
    if (control) {
      WebSocketMessage message{.opcode = opcode, .payload = std::string(payload)};
      input->erase(0, header + static_cast<size_t>(size));
      return std::optional<WebSocketMessage>(std::move(message));
    }
    if (!opcode_) opcode_ = opcode;
    parts_.append(payload);
    input->erase(0, header + static_cast<size_t>(size));
    if (!final) continue;
    WebSocketMessage message{.opcode = *opcode_, .payload = std::exchange(parts_, {})};
    opcode_.reset();
    return std::optional<WebSocketMessage>(std::move(message));
  }
}

}  // namespace forebay::http
