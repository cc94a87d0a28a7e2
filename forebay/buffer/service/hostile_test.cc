// Goal: whatever one client does, it is refused with a reason and counted, and a client beside it
// does not notice.
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class HostileTest : public testing::Test {
 protected:
  // A test shortens the one deadline that it is about: good_ has to keep them, too.
  static ServerOptions WithToken() {
    ServerOptions options;
    options.token = "the token";
    options.idle_deadline = std::chrono::minutes(10);
    return options;
  }

  void Start(ServerOptions options, bool tls = false) {
    options.listen = {"tcp:127.0.0.1:0", "unix:" + folder_.path() + "/s.sock"};
    if (tls) {
      MakeCertificate(folder_.path(), "server", "127.0.0.1");
      options.certificate_file = folder_.path() + "/server.crt";
      options.key_file = folder_.path() + "/server.key";
    }
    auto server = Server::Start({{"train", {.buffer = &buffer_, .group_size = 1}}}, options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = *std::move(server);
    tcp_ = server_->addresses()[0];
    ClientOptions good{.address = server_->addresses()[1], .producer = "good"};
    auto client = Client::Connect(good);
    ASSERT_TRUE(client.ok()) << client.status().message();
    good_ = *std::move(client);
    GoodWorks();
  }

  void GoodWorks() {
    const int64_t id = good_->NewIds(1);
    RemoteTable* table = *good_->Table("train");
    EXPECT_TRUE(table->AppendEncodedAndWait(Record(id, id), {}).ok());
    EXPECT_EQ(good_->stats().reconnects, 0);
  }

  // The next frames until a goodbye: its reason.
  static std::string Reason(RawClient& client, StatusCode* code = nullptr) {
    while (const std::optional<RawFrame> frame = client.Next()) {
      if (frame->header.type != FrameType::kGoodbye) continue;
      if (code != nullptr) *code = static_cast<StatusCode>(frame->header.argument);
      return frame->payload;
    }
    return "(no goodbye)";
  }

  int64_t Refused(Refusal refusal) const {
    return server_->stats().refused[static_cast<size_t>(refusal)];
  }

  void ExpectRefused(Refusal refusal) {
    EXPECT_TRUE(Eventually([&] { return Refused(refusal) > 0; })) << RefusalName(refusal);
    bool noted = false;
    for (const std::string& line : server_->refusals()) {
      noted = noted || line.find(RefusalName(refusal)) != std::string::npos;
    }
    EXPECT_TRUE(noted) << RefusalName(refusal);
    GoodWorks();
  }

  TempFolder folder_;
  FakeBuffer buffer_{{}};
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> good_;
  std::string tcp_;
};

TEST_F(HostileTest, WrongToken) {
  Start(WithToken());
  for (const std::string token : {"", "the toke", "the token ", "another"}) {
    RawClient raw(tcp_);
    ASSERT_TRUE(raw.Send(HelloBytes({.version_min = 1, .version_max = 1, .token = token})));
    StatusCode code{};
    EXPECT_THAT(Reason(raw, &code), HasSubstr("token"));
    EXPECT_EQ(code, StatusCode::kFailedPrecondition);
    EXPECT_TRUE(raw.Closed());
  }
  // Counted once the connection is gone on the other side too.
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kToken) == 4; }));
  ClientOptions options{.address = tcp_, .token = "wrong", .producer = "bad"};
  const Status status = Client::Connect(options).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("token"));
  options.token = "the token";
  EXPECT_TRUE(Client::Connect(options).ok());
  ExpectRefused(Refusal::kToken);
}

TEST_F(HostileTest, AnotherVersion) {
  Start(WithToken());
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Send(HelloBytes({.version_min = 7, .version_max = 9, .token = "the token"})));
  StatusCode code{};
  EXPECT_THAT(Reason(raw, &code), HasSubstr("versions 1 to 2"));
  EXPECT_EQ(code, StatusCode::kUnimplemented);
  ExpectRefused(Refusal::kVersion);
  // One that can do more and less is served.
  RawClient newer(tcp_);
  ASSERT_TRUE(newer.Send(HelloBytes({.version_min = 0, .version_max = 9, .token = "the token"})));
  const std::optional<RawFrame> frame = newer.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kWelcome);
  EXPECT_EQ(ParseWelcome(frame->payload)->version, kProtocolVersion);
}

TEST_F(HostileTest, Garbage) {
  Start(WithToken());
  Rng rng(5);
  for (int i = 0; i < 20; ++i) {
    RawClient raw(tcp_);
    std::string bytes(32 + rng.Below(5000), '\0');
    for (char& c : bytes) c = static_cast<char>(rng.Below(256));
    raw.Send(i == 0 ? "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" : bytes);
    EXPECT_THAT(Reason(raw), HasSubstr("checksum"));
    EXPECT_TRUE(raw.Closed());
  }
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kFrame) == 20; }));
  ExpectRefused(Refusal::kFrame);
}

TEST_F(HostileTest, OversizedFrame) {
  Start(WithToken());
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Greet("big", "the token"));
  const FrameHeaderBytes header = EncodeFrameHeader(
      {.length = 0xfffffff0, .type = FrameType::kAppend, .table = 0, .request = 1});
  // The header alone is enough.
  ASSERT_TRUE(raw.Send({header.data(), header.size()}));
  EXPECT_THAT(Reason(raw), HasSubstr("4294967280 bytes"));
  ExpectRefused(Refusal::kOversized);
  // Before the hello, little is allowed.
  RawClient early(tcp_);
  const FrameHeaderBytes hello = EncodeFrameHeader({.length = 100'000, .type = FrameType::kHello});
  ASSERT_TRUE(early.Send({hello.data(), hello.size()}));
  EXPECT_THAT(Reason(early), HasSubstr("100000 bytes"));
}

TEST_F(HostileTest, SlowHello) {
  ServerOptions options = WithToken();
  options.hello_deadline = seconds(2);
  Start(options);
  RawClient raw(tcp_);  // says nothing
  RawClient drip(tcp_);
  const std::string hello = HelloBytes({.version_min = 1, .version_max = 1, .token = "the token"});
  std::thread dripping([&] {
    for (const char c : hello) {
      if (!drip.Send({&c, 1})) break;
      std::this_thread::sleep_for(milliseconds(200));
    }
  });
  EXPECT_THAT(Reason(raw), HasSubstr("hello"));
  dripping.join();
  EXPECT_TRUE(drip.Closed());
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kSlowHello) == 2; }));
  ExpectRefused(Refusal::kSlowHello);
}

TEST_F(HostileTest, SlowLoris) {
  ServerOptions options = WithToken();
  options.frame_deadline = seconds(1);
  Start(options);
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Greet("slow", "the token"));
  const std::string frame = FrameBytes({.type = FrameType::kAppend, .request = 1, .argument = 1000},
                                       std::string(10'000, 'x'));
  // A byte now and then is no silence, but the frame does not end in time.
  for (size_t i = 0; i < frame.size() && Refused(Refusal::kSlowFrame) == 0; ++i) {
    if (!raw.Send({&frame[i], 1})) break;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_THAT(Reason(raw), HasSubstr("did not end in time"));
  ExpectRefused(Refusal::kSlowFrame);
  EXPECT_EQ(server_->stats().append_bytes, 0);  // nothing was held for it
}

TEST_F(HostileTest, HalfOpenConnection) {
  ServerOptions options = WithToken();
  options.ping_after = milliseconds(200);
  options.idle_deadline = seconds(3);
  Start(options);
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Greet("", "the token"));
  // It is pinged, does not answer, and is let go.
  const std::optional<RawFrame> ping = raw.Next();
  ASSERT_TRUE(ping.has_value());
  EXPECT_EQ(ping->header.type, FrameType::kPing);
  EXPECT_THAT(Reason(raw), HasSubstr("pings"));
  EXPECT_TRUE(raw.Closed());
  ExpectRefused(Refusal::kIdle);
  // One that answers is kept, however silent it is.
  RawClient alive(tcp_);
  ASSERT_TRUE(alive.Greet("", "the token"));
  for (int i = 0; i < 8; ++i) {
    const std::optional<RawFrame> frame = alive.Next();
    ASSERT_TRUE(frame.has_value());
    ASSERT_EQ(frame->header.type, FrameType::kPing);
    ASSERT_TRUE(alive.Send(FrameBytes({.type = FrameType::kPong}, "")));
  }
}

TEST_F(HostileTest, HalfATlsHandshake) {
  ServerOptions options = WithToken();
  options.hello_deadline = seconds(2);
  Start(options, /*tls=*/true);
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)));
  EXPECT_TRUE(raw.Closed());
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kSlowHello) == 1; }));
  // Plain talk to a TLS port.
  RawClient plain(tcp_);
  ASSERT_TRUE(plain.Send(HelloBytes({.version_min = 1, .version_max = 1, .token = "the token"})));
  EXPECT_TRUE(plain.Closed());
  ExpectRefused(Refusal::kTls);
}

TEST_F(HostileTest, ACertificateThatIsNotTrusted) {
  Start(WithToken(), /*tls=*/true);
  MakeCertificate(folder_.path(), "other", "127.0.0.1");
  ClientOptions options{.address = tcp_, .token = "the token", .producer = "p"};
  options.ca_file = folder_.path() + "/other.crt";
  EXPECT_THAT(Client::Connect(options).status().message(), HasSubstr("not trusted"));
  options.ca_file = folder_.path() + "/server.crt";
  options.server_name = "elsewhere.example";
  EXPECT_FALSE(Client::Connect(options).ok());
  options.server_name = "";
  EXPECT_TRUE(Client::Connect(options).ok());
  options.ca_file = folder_.path() + "/nothing.crt";
  EXPECT_EQ(Client::Connect(options).status().code(), StatusCode::kInvalidArgument);
  GoodWorks();
}

TEST_F(HostileTest, TooManyConnections) {
  ServerOptions options;
  options.connections_max = 3;
  Start(options);
  RawClient one(tcp_);
  RawClient two(tcp_);
  ASSERT_TRUE(one.Greet());
  ASSERT_TRUE(two.Greet());
  {
    RawClient three(tcp_);
    EXPECT_THAT(Reason(three), HasSubstr("connections_max"));
    EXPECT_TRUE(three.Closed());
  }
  ExpectRefused(Refusal::kConnections);
}

TEST_F(HostileTest, AReaderThatDoesNotRead) {
  ServerOptions options = WithToken();
  options.write_deadline = seconds(1);
  Start(options);
  RemoteTable* table = *good_->Table("train");
  std::map<int64_t, bool> all;
  for (int i = 0; i < 40; ++i) {
    const int64_t id = good_->NewIds(1);
    ASSERT_TRUE(table->AppendEncodedAndWait(Record(id, id, 0, 1 << 20), {}).ok());
    all[id] = false;
  }
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Greet("", "the token"));
  for (uint64_t i = 1; i <= 2; ++i) {
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kTake, .request = i, .argument = 1000},
                                    EncodeTake({.groups = 20}))));
  }
  ExpectRefused(Refusal::kSlowReader);
  // What it did not read is there for others, at once.
  EXPECT_GT(buffer_.given_back(), 0);
  const auto taken = table->Take({.groups = 10}, Now() + seconds(120));
  EXPECT_TRUE(taken.ok()) << taken.status().message();
}

TEST_F(HostileTest, AFloodWhoseAnswersNobodyReads) {
  ServerOptions options = WithToken();
  options.write_deadline = seconds(1);
  Start(options);
  std::string pings, appends;
  while (pings.size() < size_t{1} << 20) {
    pings += FrameBytes({.type = FrameType::kPing}, {});
    appends += FrameBytes({.type = FrameType::kAppend, .table = 9, .request = 1}, "x");
  }
  for (const std::string& flood : {pings, appends}) {
    RawClient raw(tcp_);
    ASSERT_TRUE(raw.Greet("", "the token"));
    int sent = 0;  // MiB; the sockets hold some
    while (sent < 256 && raw.Send(flood)) ++sent;
    EXPECT_LT(sent, 64);
  }
  ExpectRefused(Refusal::kSlowReader);
}

TEST_F(HostileTest, WhoIsNotReadFromMayGo) {
  FakeBuffer held({.hold = true});
  ServerOptions options;
  options.listen = {"unix:" + folder_.path() + "/s.sock"};
  options.append_bytes_max = 1000;
  auto server = Server::Start(
      {{"train", {.buffer = &held, .implied_dispatch = false, .group_size = 1}}}, options);
  ASSERT_TRUE(server.ok());
  RawClient stays(options.listen[0]);
  ASSERT_TRUE(stays.Greet());
  {
    RawClient goes(options.listen[0]);
    ASSERT_TRUE(goes.Greet());
    for (uint64_t i = 1; i <= 8; ++i) {
      ASSERT_TRUE(goes.Send(FrameBytes({.type = FrameType::kAppend, .request = i, .argument = 1000},
                                       Record(static_cast<int64_t>(i), 1, 0, 300))));
    }
    ASSERT_TRUE(Eventually([&] { return (*server)->stats().append_bytes > 1000; }));
    ASSERT_TRUE(goes.Send(FrameBytes({.type = FrameType::kPing}, {})));
  }
  EXPECT_TRUE(Eventually([&] { return (*server)->stats().connections == 1; }));
  held.LetGo();
  ASSERT_TRUE(stays.Send(FrameBytes({.type = FrameType::kPing}, {})));
  EXPECT_TRUE(stays.Next().has_value());
}

TEST_F(HostileTest, MoreThanItsCredit) {
  FakeBuffer held({.hold = true});
  ServerOptions options;
  options.listen = {"tcp:127.0.0.1:0"};
  options.credit_bytes = 1000;
  auto server = Server::Start(
      {{"train", {.buffer = &held, .implied_dispatch = false, .group_size = 1}}}, options);
  ASSERT_TRUE(server.ok());
  RawClient raw((*server)->addresses()[0]);
  ASSERT_TRUE(raw.Greet());
  EXPECT_EQ(raw.welcome().credit_bytes, 1000U);
  for (uint64_t i = 1; i <= 8; ++i) {
    raw.Send(FrameBytes({.type = FrameType::kAppend, .request = i, .argument = 1000},
                        Record(static_cast<int64_t>(i), 1, 0, 300)));
  }
  EXPECT_THAT(Reason(raw), HasSubstr("1000 bytes"));
  // Counts are published at the end of the pass that sent the reason.
  const auto refused = [&] {
    return (*server)->stats().refused[static_cast<size_t>(Refusal::kCredit)];
  };
  EXPECT_TRUE(Eventually([&] { return refused() > 0; }));
  EXPECT_EQ(refused(), 1);
  held.LetGo();
}

TEST_F(HostileTest, TooManyRequests) {
  ServerOptions options;
  options.requests_max = 4;
  Start(options);
  RemoteTable* table = *good_->Table("train");
  ASSERT_TRUE(table->Acknowledge(1).code() == StatusCode::kNotFound);
  ASSERT_TRUE(table->Take({}, Now() + seconds(120)).ok());  // nothing is ready from here on
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Greet());
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kTake, .request = i, .argument = 60'000},
                                    EncodeTake({.groups = 1000}))));
  }
  const std::optional<RawFrame> frame = raw.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kFailed);
  EXPECT_EQ(frame->header.request, 5U);
  EXPECT_THAT(frame->payload, HasSubstr("requests_max"));
  GoodWorks();
}

TEST_F(HostileTest, OutOfTurnAndUnknown) {
  Start({});
  {
    RawClient raw(tcp_);  // no hello
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kTake, .request = 1}, EncodeTake({}))));
    EXPECT_THAT(Reason(raw), HasSubstr("hello"));
  }
  {
    RawClient raw(tcp_);  // two
    ASSERT_TRUE(raw.Greet());
    ASSERT_TRUE(raw.Send(HelloBytes({.version_min = 1, .version_max = 1})));
    EXPECT_THAT(Reason(raw), HasSubstr("hello"));
  }
  {
    RawClient raw(tcp_);
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kHello}, "not a hello")));
    EXPECT_THAT(Reason(raw), HasSubstr("hello"));
  }
  {
    RawClient raw(tcp_);
    ASSERT_TRUE(raw.Greet());
    ASSERT_TRUE(raw.Send(FrameBytes({.type = static_cast<FrameType>(200), .request = 1}, "")));
    EXPECT_THAT(Reason(raw), HasSubstr("200"));
  }
  {
    RawClient raw(tcp_);
    ASSERT_TRUE(raw.Greet());
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kTake, .request = 1}, "x")));
    EXPECT_THAT(Reason(raw), HasSubstr("take"));
  }
  {
    RawClient raw(tcp_);  // a table that is not there is no reason to hang up
    ASSERT_TRUE(raw.Greet());
    ASSERT_TRUE(
        raw.Send(FrameBytes({.type = FrameType::kTake, .table = 9, .request = 1}, EncodeTake({}))));
    const std::optional<RawFrame> frame = raw.Next();
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(frame->header.type, FrameType::kFailed);
    EXPECT_EQ(static_cast<StatusCode>(frame->header.argument), StatusCode::kNotFound);
  }
  ExpectRefused(Refusal::kMessage);
}

TEST_F(HostileTest, AppendsWithoutAProducerOrWithAnothersIds) {
  Start({});
  RawClient raw(tcp_);
  ASSERT_TRUE(raw.Greet());
  ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kAppend, .request = 1, .argument = 1000},
                                  Record(int64_t{1} << 40, 1))));
  std::optional<RawFrame> frame = raw.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kFailed);
  EXPECT_THAT(frame->payload, HasSubstr("producer"));
  RawClient thief(tcp_);
  ASSERT_TRUE(thief.Greet("thief"));
  ASSERT_TRUE(thief.Send(FrameBytes({.type = FrameType::kAppend, .request = 1, .argument = 1000},
                                    Record(int64_t{1} << 40, 1))));
  frame = thief.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kFailed);
  EXPECT_THAT(frame->payload, HasSubstr("2 * 2^40"));
  GoodWorks();
}

}  // namespace
}  // namespace forebay::buffer
