// WebSocket: frames as the RFC has them, and a client against servers that do as they should or
// not.
#include "forebay/base/websocket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/http/http_testing.h"
#include "forebay/base/http/websocket_frames.h"
#include "forebay/base/loop.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

using http::WebSocketMessage;
using http::WebSocketOpcode;
using http::WebSocketReader;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// A server's frame: no mask.
std::string Frame(int first, std::string_view payload) {
  std::string frame(1, static_cast<char>(first));
  if (payload.size() < 126) {
    frame.push_back(static_cast<char>(payload.size()));
  } else if (payload.size() <= 0xffff) {
    frame.push_back(126);
    frame.push_back(static_cast<char>(payload.size() >> 8));
    frame.push_back(static_cast<char>(payload.size()));
  } else {
    frame.push_back(127);
    for (int i = 7; i >= 0; --i) frame.push_back(static_cast<char>(payload.size() >> (8 * i)));
  }
  return frame.append(payload);
}
std::string Text(std::string_view payload) { return Frame(0x81, payload); }

TEST(WebSocketFramesTest, AClientsFrameIsMasked) {
  // RFC 6455, section 5.7.
  EXPECT_EQ(http::WebSocketFrame(WebSocketOpcode::kText, "Hello", 0x37fa213d),
            std::string("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", 11));
  EXPECT_EQ(http::WebSocketFrame(WebSocketOpcode::kText, std::string(300, 'x'), 0).substr(0, 4),
            std::string("\x81\xfe\x01\x2c", 4));
  EXPECT_EQ(http::WebSocketFrame(WebSocketOpcode::kText, std::string(70'000, 'x'), 0).size(),
            70'000U + 14);
  // Section 1.3.
  EXPECT_EQ(http::WebSocketAccept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
  EXPECT_EQ(http::DescribeWebSocketClose(http::WebSocketClosePayload(1001, "away\n")),
            "code 1001 (away?)");
  EXPECT_EQ(http::DescribeWebSocketClose(""), "no code");
}

TEST(WebSocketFramesTest, MessagesComeWholeHoweverTheyAreCut) {
  const std::string big(70'000, 'b');
  const std::string stream = Text("a") + Frame(0x01, "par") + Frame(0x89, "ping") +
                             Frame(0x00, "t") + Frame(0x80, "s") + Frame(0x82, big) + Text("");
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Rng rng(seed);
    WebSocketReader reader(1 << 20);
    std::vector<std::string> got;
    std::string input;
    for (size_t at = 0; at < stream.size();) {
      const size_t bytes = std::min<size_t>(stream.size() - at, 1 + rng.Below(5000));
      input += stream.substr(at, bytes);
      at += bytes;
      while (true) {
        auto next = reader.Next(&input);
        ASSERT_TRUE(next.ok());
        if (!next->has_value()) break;
        got.push_back((*next)->payload);
      }
    }
    EXPECT_EQ(got, (std::vector<std::string>{"a", "ping", "parts", big, ""}));
    EXPECT_TRUE(input.empty());
  }
}

TEST(WebSocketFramesTest, WhatBreaksTheProtocolIsRefused) {
  const std::vector<std::string> wrong = {
      Frame(0xc1, "x"),  // a reserved bit
      std::string("\x81\x81"
                  "abcdx",
                  7),  // masked
      Frame(0x83, "x"),
      Frame(0x8b, "x"),                    // unknown kinds
      Frame(0x09, "x"),                    // a control frame in parts
      Frame(0x89, std::string(126, 'x')),  // ... that is too long
      Frame(0x80, "x"),                    // a part of nothing
      Frame(0x01, "x") + Text("y"),        // a message inside a message
  };
  for (std::string input : wrong) {
    WebSocketReader reader(1000);
    const auto next = reader.Next(&input);
    EXPECT_EQ(next.status().code(), StatusCode::kDataLoss) << input;
  }
  // Told from the header, before anything is taken; parts count together.
  for (std::string input :
       {Frame(0x82, std::string(1001, 'x')).substr(0, 4),
        std::string("\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff", 10),
        Frame(0x01, std::string(600, 'x')) + Frame(0x80, std::string(600, 'x'))}) {
    WebSocketReader reader(1000);
    EXPECT_EQ(reader.Next(&input).status().code(), StatusCode::kResourceExhausted);
  }
  std::string fits = Frame(0x82, std::string(1000, 'x'));
  EXPECT_TRUE(WebSocketReader(1000).Next(&fits).ok());
}

TEST(WebSocketFramesTest, AnyBytesAreFramesOrAnError) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    std::string input;
    for (uint64_t i = rng.Below(40); i > 0; --i) input.push_back(static_cast<char>(rng.Next()));
    WebSocketReader reader(100);
    while (true) {
      const auto next = reader.Next(&input);
      if (!next.ok() || !next->has_value()) break;
      EXPECT_LE((*next)->payload.size(), 125U);
    }
  }
}

// Does the server's part of the handshake.
void Accept(RawConnection& peer) {
  const std::string request = peer.ReadUntil("\r\n\r\n");
  EXPECT_THAT(request, HasSubstr("Upgrade: websocket\r\n"));
  const std::string_view field = "Sec-WebSocket-Key: ";
  const size_t at = request.find(field) + field.size();
  const std::string key = request.substr(at, request.find("\r\n", at) - at);
  peer.Send(
      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Accept: " +
      http::WebSocketAccept(key) + "\r\n\r\n");
}

std::string Url(const RawServer& server, const std::string& target = "/ws") {
  return "ws://127.0.0.1:" + std::to_string(server.port()) + target;
}

class WebSocketTest : public ::testing::Test {
 public:
  Status Connect(const std::string& url, WebSocketOptions options = {},
                 Duration deadline = seconds(120)) {
    Status status;
    RunTask(*loop_,
            [](WebSocketTest* t, std::string where, WebSocketOptions o, Duration d,
               Status* out) -> Task<void> {
              Task<Result<std::unique_ptr<WebSocket>>> connecting =
                  WebSocket::Connect(*t->loop_, std::move(where), std::move(o), t->Soon(d));
              Result<std::unique_ptr<WebSocket>> socket = co_await std::move(connecting);
              *out = socket.status();
              if (socket.ok()) t->socket_ = std::move(*socket);
            }(this, url, std::move(options), deadline, &status));
    return status;
  }
  Status Send(std::string text) {
    Status status;
    RunTask(*loop_, [](WebSocketTest* t, std::string what, Status* out) -> Task<void> {
      Task<Status> sending = t->socket_->Send(std::move(what), t->Soon());
      *out = co_await std::move(sending);
    }(this, std::move(text), &status));
    return status;
  }
  Result<std::string> Receive(Duration deadline = seconds(120)) {
    Result<std::string> message = Internal("none");
    RunTask(*loop_, [](WebSocketTest* t, Duration d, Result<std::string>* out) -> Task<void> {
      Task<Result<std::string>> receiving = t->socket_->Receive(t->Soon(d));
      *out = co_await std::move(receiving);
    }(this, deadline, &message));
    return message;
  }
  void Close() {
    RunTask(*loop_, [](WebSocketTest* t) -> Task<void> {
      Task<void> closing = t->socket_->Close(t->Soon());
      co_await std::move(closing);
    }(this));
  }
  TimePoint Soon(Duration d = seconds(120)) const { return loop_->Now() + d; }

  std::unique_ptr<Loop> loop_ = MakeLoop();
  std::unique_ptr<WebSocket> socket_;
};

TEST_F(WebSocketTest, MessagesGoBothWays) {
  const std::string big(200'000, 'x');
  RawServer server([&big](RawConnection& peer) {
    Accept(peer);
    const std::string frame = peer.ReadUntil(std::string("\x81\x85", 2));
    peer.Send(Text("one") + Frame(0x01, "t") + Frame(0x80, "wo") + Text(big));
    peer.ReadAll();
  });
  ASSERT_EQ(Connect(Url(server)), OkStatus());
  EXPECT_EQ(Send("Hello"), OkStatus());
  EXPECT_EQ(*Receive(), "one");
  EXPECT_EQ(*Receive(), "two");
  EXPECT_EQ(*Receive(), big);
  EXPECT_EQ(Receive(milliseconds(20)).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(socket_->broken());
  socket_.reset();
}

TEST_F(WebSocketTest, PingsAreAnsweredWhileNobodyReceives) {
  std::promise<std::string> pong;
  RawServer server([&pong](RawConnection& peer) {
    Accept(peer);
    peer.Send(Frame(0x89, "are you there"));
    pong.set_value(peer.ReadUntil(std::string("\x8a\x8d", 2)));
    peer.ReadAll();
  });
  ASSERT_EQ(Connect(Url(server)), OkStatus());
  std::future<std::string> answer = pong.get_future();
  RunTask(*loop_, [](WebSocketTest* t, std::future<std::string>* f) -> Task<void> {
    while (f->wait_for(seconds(0)) != std::future_status::ready) {
      co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
    }
  }(this, &answer));
  EXPECT_THAT(answer.get(), HasSubstr("\x8a\x8d"));
  socket_.reset();
}

TEST_F(WebSocketTest, ThePeersGoodbyeIsToldAfterItsMessages) {
  RawServer server([](RawConnection& peer) {
    Accept(peer);
    peer.Send(Text("last") + Frame(0x88, http::WebSocketClosePayload(1011, "broken")));
    peer.ReadAll();
  });
  ASSERT_EQ(Connect(Url(server)), OkStatus());
  EXPECT_EQ(*Receive(), "last");
  const auto end = Receive();
  EXPECT_EQ(end.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(end.status().message(), HasSubstr("code 1011 (broken)"));
  EXPECT_THAT(end.status().message(), HasSubstr("127.0.0.1"));
  EXPECT_EQ(Send("x").code(), StatusCode::kUnavailable);
  socket_.reset();
}

TEST_F(WebSocketTest, OurGoodbyeIsSaidAndAnswered) {
  std::promise<bool> heard;
  RawServer server([&heard](RawConnection& peer) {
    Accept(peer);
    const std::string frame("\x88\x82", 2);
    heard.set_value(peer.ReadUntil(frame).find(frame) != std::string::npos);
    peer.Send(Frame(0x88, http::WebSocketClosePayload(1000, "")));
    peer.ReadAll();
  });
  ASSERT_EQ(Connect(Url(server)), OkStatus());
  Close();
  EXPECT_TRUE(heard.get_future().get());
  EXPECT_TRUE(socket_->broken());
  socket_.reset();
}

TEST_F(WebSocketTest, APeerThatVanishesOrTalksNonsenseIsAnError) {
  {
    RawServer server([](RawConnection& peer) { Accept(peer); });
    ASSERT_EQ(Connect(Url(server)), OkStatus());
    EXPECT_EQ(Receive().status().code(), StatusCode::kUnavailable);
    socket_.reset();
  }
  {
    RawServer server([](RawConnection& peer) {
      Accept(peer);
      peer.Send("\xff\xff\xff");
      peer.ReadAll();
    });
    ASSERT_EQ(Connect(Url(server)), OkStatus());
    EXPECT_EQ(Receive().status().code(), StatusCode::kDataLoss);
    socket_.reset();
  }
}

TEST_F(WebSocketTest, AFloodEndsIt) {
  RawServer server([](RawConnection& peer) {
    Accept(peer);
    while (peer.Send(Text("flood"))) {
    }
  });
  ASSERT_EQ(Connect(Url(server), {.messages_max = 10}), OkStatus());
  RunTask(*loop_, [](WebSocketTest* t) -> Task<void> {
    while (!t->socket_->broken()) co_await t->loop_->SleepUntil(t->Soon(milliseconds(1)));
  }(this));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*Receive(), "flood");
  EXPECT_EQ(Receive().status().code(), StatusCode::kResourceExhausted);
  socket_.reset();
}

TEST_F(WebSocketTest, AServerThatDoesNotOpenOneIsExplained) {
  const auto refuse = [this](std::string answer) {
    RawServer server([&answer](RawConnection& peer) {
      peer.ReadUntil("\r\n\r\n");
      peer.Send(answer);
      peer.ReadAll();
    });
    return Connect(Url(server));
  };
  const Status forbidden = refuse("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
  EXPECT_EQ(forbidden.code(), StatusCode::kUnavailable);
  EXPECT_THAT(forbidden.message(), HasSubstr("403 (Forbidden)"));
  EXPECT_EQ(refuse("HTTP/1.1 200 OK\r\n\r\n").code(), StatusCode::kUnavailable);
  EXPECT_EQ(refuse("HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n").code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(refuse("nonsense\r\n\r\n").code(), StatusCode::kDataLoss);
  EXPECT_EQ(Connect("ws://127.0.0.1:1/").code(), StatusCode::kUnavailable);
  EXPECT_EQ(Connect("gopher://x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Connect("ws://127.0.0.1:1/", {.headers = {{"A", "b\r\nC: d"}}}).code(),
            StatusCode::kInvalidArgument);
  RawServer silent([](RawConnection& peer) { peer.ReadAll(); });
  EXPECT_EQ(Connect(Url(silent), {}, milliseconds(50)).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(WebSocketTest, TheHandshakeCarriesHeaders) {
  std::promise<std::string> asked;
  RawServer server([&asked](RawConnection& peer) {
    asked.set_value(peer.ReadUntil("\r\n\r\n"));
    peer.Send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    peer.ReadAll();
  });
  EXPECT_FALSE(Connect(Url(server, "/a?b=c"), {.headers = {{"Authorization", "Bearer x"}}}).ok());
  const std::string request = asked.get_future().get();
  EXPECT_THAT(request, HasSubstr("GET /a?b=c HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr("Authorization: Bearer x\r\n"));
}

}  // namespace
}  // namespace forebay
