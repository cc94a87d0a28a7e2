// Goal: payloads in shared memory are as good as those through the socket, whoever goes away first,
// and a client that misuses it is refused like any other.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/buffer/service/shared_area.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr AreaSizes kSizes{.append_bytes = 1 << 20, .reply_bytes = 1 << 20};

class SharedTest : public testing::Test {
 protected:
  void Start(ServerOptions options = {}) {
    options.listen = {"unix:" + folder_.path() + "/s.sock", "tcp:127.0.0.1:0"};
    options.folder = folder_.path();
    auto server = Server::Start({{"train", {.buffer = &buffer_, .group_size = 1}}}, options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = *std::move(server);
    unix_ = server_->addresses()[0];
    auto client = Client::Connect({.address = unix_, .producer = "good"});
    ASSERT_TRUE(client.ok()) << client.status().message();
    client_ = *std::move(client);
    table_ = *client_->Table("train");
  }

  std::string Append(int64_t bytes) {
    const int64_t id = client_->NewIds(1);
    std::string record = Record(id, id, 0, bytes);
    EXPECT_TRUE(table_->AppendEncodedAndWait(record, {}).ok());
    return record;
  }

  Taken Take() {
    auto taken = table_->Take({}, Now() + seconds(120));
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    return taken.ok() ? *std::move(taken) : Taken{};
  }

  // A goodbye with that reason; the others do not notice.
  void ExpectRefused(RawClient& raw, const std::string& reason) {
    std::optional<RawFrame> frame = raw.Next();
    while (frame.has_value() && frame->header.type != FrameType::kGoodbye) frame = raw.Next();
    ASSERT_TRUE(frame.has_value());
    EXPECT_THAT(frame->payload, HasSubstr(reason));
    EXPECT_TRUE(raw.Closed());
    Append(5000);
    EXPECT_EQ(client_->stats().reconnects, 0);
  }

  TempFolder folder_;
  FakeBuffer buffer_{{}};
  std::unique_ptr<Server> server_;
  std::string unix_;
  std::unique_ptr<Client> client_;
  RemoteTable* table_ = nullptr;
};

TEST_F(SharedTest, PayloadsDoNotGoThroughTheSocket) {
  Start();
  const std::string record = Append(1 << 20);
  const Taken taken = Take();
  ASSERT_EQ(taken.trajectories.size(), 1U);
  EXPECT_EQ(taken.trajectories[0].encoded, record);
  EXPECT_LT(client_->stats().bytes_out, 1000);
  EXPECT_LT(client_->stats().bytes_in, 1000);
}

TEST_F(SharedTest, WithoutItTheyDo) {
  ServerOptions options;
  options.shared_bytes_max = 0;
  Start(options);
  const std::string record = Append(1 << 20);
  const Taken taken = Take();
  ASSERT_EQ(taken.trajectories.size(), 1U);
  EXPECT_EQ(taken.trajectories[0].encoded, record);
  EXPECT_GT(client_->stats().bytes_out, 1 << 20);
  EXPECT_GT(client_->stats().bytes_in, 1 << 20);
}

TEST_F(SharedTest, RepliesThatDoNotFitAreSent) {
  Start();
  std::vector<std::string> records;
  std::vector<Taken> held;
  for (int i = 0; i < 40; ++i) {  // of 1 MiB each: more than the area has
    records.push_back(Append(1 << 20));
    held.push_back(Take());
  }
  for (size_t i = 0; i < held.size(); ++i) {
    ASSERT_EQ(held[i].trajectories.size(), 1U);
    EXPECT_EQ(held[i].trajectories[0].encoded, records[i]) << i;
  }
  const int64_t sent = client_->stats().bytes_in;
  EXPECT_GT(sent, int64_t{4} << 20);
  // What was given back is used again.
  held.clear();
  for (int i = 0; i < 40; ++i) {
    const std::string record = Append(1 << 20);
    EXPECT_EQ(Take().trajectories.at(0).encoded, record);
  }
  EXPECT_LT(client_->stats().bytes_in, sent + 10'000);
}

TEST_F(SharedTest, ATakeOutlivesItsServerAndItsClient) {
  Start();
  const std::string record = Append(1 << 20);
  const Taken taken = Take();
  server_.reset();
  client_.reset();
  ASSERT_EQ(taken.trajectories.size(), 1U);
  EXPECT_EQ(taken.trajectories[0].encoded, record);
}

TEST_F(SharedTest, AnAppendIsSentAgainAfterARestart) {
  FakeBuffer holds({.hold = true});
  ServerOptions options;
  options.folder = folder_.path();
  options.listen = {"unix:" + folder_.path() + "/s.sock"};
  auto server = Server::Start({{"train", {.buffer = &holds, .group_size = 1}}}, options);
  ASSERT_TRUE(server.ok()) << server.status().message();
  auto client = Client::Connect({.address = options.listen[0], .producer = "p"});
  ASSERT_TRUE(client.ok()) << client.status().message();
  const int64_t id = (*client)->NewIds(1);
  const std::string record = Record(id, id, 0, 1 << 20);
  std::optional<Status> done;
  (*(*client)->Table("train"))->AppendEncoded(record, {}, [&](Status status) {
    done = std::move(status);
  });
  ASSERT_TRUE(Eventually([&] { return holds.held() == 1; }));
  (*server)->Stop(Now());
  server = Server::Start({{"train", {.buffer = &buffer_, .group_size = 1}}}, options);
  ASSERT_TRUE(server.ok()) << server.status().message();
  (*client)->Close(Now() + seconds(120));
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->ok()) << done->message();
  EXPECT_EQ(buffer_.encoded(id), record);
  EXPECT_EQ((*client)->stats().resent_appends, 1);
  holds.LetGo();
}

TEST_F(SharedTest, OnlyWhatIsInsideIsAppended) {
  Start();
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  for (const SharedPiece& piece : std::vector<SharedPiece>{
           {kSizes.append_bytes, 1}, {0, kSizes.append_bytes + 1}, {kHuge, 2}, {2, kHuge}}) {
    RawClient raw(unix_);
    ASSERT_TRUE(raw.Greet("raw", "", 2));
    ASSERT_NE(raw.Share(kSizes), nullptr);
    const auto bytes = EncodeSharedPiece(piece);
    ASSERT_TRUE(
        raw.Send(FrameBytes({.type = FrameType::kAppendShared, .request = 1, .argument = 1000},
                            {bytes.data(), bytes.size()})));
    ExpectRefused(raw, "outside of the shared memory");
  }
}

TEST_F(SharedTest, WhatLiesThereIsCheckedAsAnyPayload) {
  Start();
  RawClient raw(unix_);
  ASSERT_TRUE(raw.Greet("raw", "", 2));
  const auto area = raw.Share(kSizes);
  ASSERT_NE(area, nullptr);
  const auto append = [&](uint64_t request, const std::string& payload) {
    std::memcpy(area->Append(0, payload.size()), payload.data(), payload.size());
    const auto bytes = EncodeSharedPiece({.offset = 0, .bytes = payload.size()});
    EXPECT_TRUE(raw.Send(
        FrameBytes({.type = FrameType::kAppendShared, .request = request, .argument = 1000},
                   {bytes.data(), bytes.size()})));
    const std::optional<RawFrame> frame = raw.Next();
    EXPECT_TRUE(frame.has_value());
    return frame.value_or(RawFrame{});
  };
  EXPECT_THAT(append(1, std::string(5000, 'x')).payload, HasSubstr("no encoded trajectory"));
  EXPECT_THAT(append(2, Record(int64_t{1} << 40, 1, 0, 5000)).payload, HasSubstr("2 * 2^40"));
  EXPECT_EQ(append(3, Record(int64_t{2} << 40, 1, 0, 5000)).header.type, FrameType::kAppended);
}

TEST_F(SharedTest, OnlyWhatWasLentIsReturned) {
  Start();
  RawClient raw(unix_);
  ASSERT_TRUE(raw.Greet("", "", 2));
  ASSERT_NE(raw.Share(kSizes), nullptr);
  const uint64_t offset = 0;
  ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kReplyReturned},
                                  {reinterpret_cast<const char*>(&offset), sizeof(offset)})));
  ExpectRefused(raw, "not lent");
}

TEST_F(SharedTest, ItIsSharedOnceAndOnlyOnThisMachine) {
  Start();
  {
    RawClient raw(unix_);
    ASSERT_TRUE(raw.Greet("", "", 2));
    ASSERT_NE(raw.Share(kSizes), nullptr);
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kShare}, EncodeAreaSizes(kSizes))));
    ExpectRefused(raw, "shared once");
  }
  {
    RawClient raw(unix_);
    ASSERT_TRUE(raw.Greet("", "", 2));
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kShare}, "x")));
    ExpectRefused(raw, "share");
  }
  {
    RawClient raw(unix_);  // version 1 does not know it
    ASSERT_TRUE(raw.Greet("", "", 1));
    ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kShare}, EncodeAreaSizes(kSizes))));
    ExpectRefused(raw, "unknown kind");
  }
  RawClient raw(server_->addresses()[1]);
  ASSERT_TRUE(raw.Greet("", "", 2));
  ASSERT_TRUE(raw.Send(FrameBytes({.type = FrameType::kShare}, EncodeAreaSizes(kSizes))));
  ExpectRefused(raw, "unknown kind");
}

TEST_F(SharedTest, ItIsBounded) {
  ServerOptions options;
  options.shared_bytes_max = int64_t{64} << 20;
  options.credit_bytes = 1 << 20;
  Start(options);
  std::vector<std::unique_ptr<RawClient>> raws;
  int shared = 0;
  for (int i = 0; i < 10; ++i) {
    raws.push_back(std::make_unique<RawClient>(unix_));
    ASSERT_TRUE(raws.back()->Greet("", "", 2));
    constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max() / 2;
    const auto area = raws.back()->Share({.append_bytes = kHuge, .reply_bytes = 15 << 20});
    if (area == nullptr) continue;
    ++shared;
    EXPECT_EQ(area->sizes().append_bytes, uint64_t{1} << 20);
  }
  EXPECT_EQ(shared, 3);  // of 16 MiB; the good one has 1
  raws.clear();          // those that went left room
  EXPECT_TRUE(Eventually([&] {
    RawClient raw(unix_);
    return raw.Greet("", "", 2) && raw.Share(kSizes) != nullptr;
  }));
  Append(1 << 20);
}

}  // namespace
}  // namespace forebay::buffer
