// Goal: whatever happens to the connection or the server, each append that was acknowledged is
// stored exactly once, and whoever lost a producer's name cannot append under it.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/buffer/service/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// Passes bytes between clients and a server, and breaks connections at random: sometimes after the
// server has got a request and before the client gets its answer.
class Breaker {
 public:
  Breaker(std::string listen, std::string target) : target_(std::move(target)) {
    address_ = *ParseAddress(listen);
    listener_ = *Listen(address_);
    thread_ = std::thread([this] { Run(); });
  }
  ~Breaker() {
    ending_ = true;
    thread_.join();
    for (std::thread& pair : pairs_) pair.join();
  }
  // From now on connections live for `bytes` answers' bytes at most (0: for ever).
  void BreakAfter(int64_t bytes) { bytes_ = bytes; }

 private:
  void Run() {
    while (!ending_) {
      if (!WaitReadable(listener_.get(), Now() + milliseconds(10))) continue;
      Fd client(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
      if (!client.valid()) continue;
      auto server = ConnectSocket(*ParseAddress(target_), Now() + seconds(120));
      if (!server.ok()) continue;
      pairs_.emplace_back(
          [this, c = std::move(client), s = *std::move(server)] { Pass(c.get(), s.get()); });
    }
  }
  void Pass(int client, int server) {
    int64_t left = bytes_ == 0 ? INT64_MAX : bytes_.load();
    std::array<char, 65536> bytes;
    while (!ending_) {
      bool idle = true;
      for (const auto& [from, to] : {std::pair(client, server), std::pair(server, client)}) {
        const ssize_t n = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return;
        if (n < 0) continue;
        idle = false;
        if (from == server && (left -= n) < 0) return;  // the answer is lost
        for (ssize_t sent = 0; sent < n;) {
          const ssize_t k =
              send(to, bytes.data() + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
          if (k > 0) sent += k;
          if (k < 0 && errno != EAGAIN) return;
          if (k < 0 && ending_) return;
        }
      }
      if (idle) usleep(200);
    }
  }

  const std::string target_;
  Address address_;
  Fd listener_;
  std::atomic<bool> ending_{false};
  std::atomic<int64_t> bytes_{0};
  std::vector<std::thread> pairs_;
  std::thread thread_;
};

class ReconnectTest : public testing::Test {
 protected:
  void StartServer(ServerOptions options = {}) {
    options.listen = {"unix:" + folder_.path() + "/s.sock"};
    options.folder = folder_.path();
    auto server = Server::Start({{"train", {.buffer = &buffer_, .group_size = 1}}}, options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = *std::move(server);
  }
  std::unique_ptr<Client> Connect(const std::string& socket = "s.sock",
                                  const std::string& producer = "actor") {
    options_.address = "unix:" + folder_.path() + "/" + socket;
    options_.producer = producer;
    auto client = Client::Connect(options_);
    EXPECT_TRUE(client.ok()) << client.status().message();
    return client.ok() ? *std::move(client) : nullptr;
  }

  TempFolder folder_;
  ClientOptions options_;
  FakeBuffer buffer_{{.acknowledge_after = milliseconds(1)}};
  std::unique_ptr<Server> server_;
};

TEST_F(ReconnectTest, LostAcknowledgementsStoreNothingTwice) {
  StartServer();
  Breaker breaker("unix:" + folder_.path() + "/b.sock", "unix:" + folder_.path() + "/s.sock");
  breaker.BreakAfter(700);
  const std::unique_ptr<Client> client = Connect("b.sock");
  RemoteTable* table = *client->Table("train");
  std::vector<std::thread> threads;
  Mutex mutex;
  std::map<int64_t, std::string> acknowledged;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 60; ++i) {
        const int64_t id = client->NewIds(1);
        std::string record = Record(id, id, 0, 200 + 100 * i);
        const Status status = table->AppendEncodedAndWait(record, {});
        EXPECT_TRUE(status.ok()) << status.message();
        const MutexLock lock(mutex);
        acknowledged[id] = std::move(record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(client->stats().reconnects, 3);
  EXPECT_GT(client->stats().resent_appends, 3);
  EXPECT_GT(buffer_.duplicates(), 0);  // sent twice, stored once
  EXPECT_EQ(buffer_.stored(), 8 * 60);
  for (const auto& [id, record] : acknowledged) EXPECT_EQ(buffer_.encoded(id), record);
  EXPECT_EQ(client->epoch(), 1);
  EXPECT_EQ(server_->stats().refused[static_cast<size_t>(Refusal::kFenced)], 0);
}

TEST_F(ReconnectTest, AsynchronousAppendsToo) {
  StartServer();
  Breaker breaker("unix:" + folder_.path() + "/b.sock", "unix:" + folder_.path() + "/s.sock");
  // Less than all acknowledgements are, more than those of the few that are under way.
  breaker.BreakAfter(2000);
  const std::unique_ptr<Client> client = Connect("b.sock");
  RemoteTable* table = *client->Table("train");
  std::atomic<int> acknowledged{0};
  for (int i = 0; i < 1000; ++i) {
    const int64_t id = client->NewIds(1);
    table->AppendEncoded(Record(id, id), {}, [&](Status status) {
      EXPECT_TRUE(status.ok()) << status.message();
      ++acknowledged;
    });
    if (i % 10 == 0) ASSERT_TRUE(Eventually([&] { return acknowledged == i + 1; }));
  }
  client->Close(Now() + seconds(120));
  EXPECT_EQ(acknowledged, 1000);
  EXPECT_EQ(buffer_.stored(), 1000);
  EXPECT_GT(client->stats().reconnects, 0);
}

TEST_F(ReconnectTest, ARestartedServerKnowsItsProducers) {
  StartServer();
  const std::unique_ptr<Client> client = Connect();
  RemoteTable* table = *client->Table("train");
  std::atomic<bool> stop{false};
  std::atomic<int> appended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const int64_t id = client->NewIds(1);
        const Status status = table->AppendEncodedAndWait(Record(id, id), {});
        EXPECT_TRUE(status.ok()) << status.message();
        ++appended;
      }
    });
  }
  for (int round = 0; round < 4; ++round) {
    const int before = appended;
    EXPECT_TRUE(Eventually([&] { return appended > before + 20; }));
    server_->Stop(Now());  // at once: answers are lost
    server_.reset();
    StartServer();
  }
  const int before = appended;
  EXPECT_TRUE(Eventually([&] { return appended > before + 20; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(buffer_.stored(), appended);
  EXPECT_EQ(client->epoch(), 1);
  EXPECT_GE(client->stats().reconnects, 4);
}

TEST_F(ReconnectTest, ALateWriterIsFenced) {
  StartServer();
  const std::unique_ptr<Client> old = Connect();
  RemoteTable* table = *old->Table("train");
  const int64_t first = old->NewIds(1);
  ASSERT_TRUE(table->AppendEncodedAndWait(Record(first, first), {}).ok());
  const std::unique_ptr<Client> holder = Connect();
  EXPECT_EQ(holder->epoch(), 2);
  EXPECT_NE(holder->producer_number(), old->producer_number());
  const int64_t late = old->NewIds(1);
  const Status fenced = table->AppendEncodedAndWait(Record(late, late), {});
  EXPECT_EQ(fenced.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(fenced.message(), HasSubstr("'actor'"));
  EXPECT_THAT(fenced.message(), HasSubstr("fenced"));
  EXPECT_EQ(buffer_.stored(), 1);
  EXPECT_TRUE(Eventually(
      [&] { return server_->stats().refused[static_cast<size_t>(Refusal::kFenced)] > 0; }));
  const int64_t id = holder->NewIds(1);
  EXPECT_TRUE((*holder->Table("train"))->AppendEncodedAndWait(Record(id, id), {}).ok());
  // It may still read.
  EXPECT_TRUE(table->ledger().ok());
}

TEST_F(ReconnectTest, AFencedWriterCannotComeBack) {
  StartServer();
  const std::unique_ptr<Client> old = Connect();
  server_->Stop(Now());
  server_.reset();
  StartServer();
  const std::unique_ptr<Client> holder = Connect();
  const int64_t late = old->NewIds(1);
  RemoteTable* table = *old->Table("train");
  EXPECT_TRUE(Eventually([&] {
    return table->AppendEncodedAndWait(Record(late, late), {.deadline = Now() + seconds(1)})
               .code() == StatusCode::kFailedPrecondition;
  }));
  const int64_t id = holder->NewIds(1);
  EXPECT_TRUE((*holder->Table("train"))->AppendEncodedAndWait(Record(id, id), {}).ok());
}

TEST_F(ReconnectTest, WithoutAServerCallsEndInTime) {
  StartServer();
  options_.reconnect_deadline = seconds(3);
  const std::unique_ptr<Client> client = Connect();
  RemoteTable* table = *client->Table("train");
  ASSERT_TRUE(table->ledger().ok());
  server_.reset();
  const int64_t id = client->NewIds(1);
  // Its own deadline is shorter than the client's patience, then longer.
  EXPECT_EQ(
      table->AppendEncodedAndWait(Record(id, id), {.deadline = Now() + milliseconds(50)}).code(),
      StatusCode::kDeadlineExceeded);
  const Status lost = table->AppendEncodedAndWait(Record(id, id), {});
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_THAT(lost.message(), HasSubstr("s.sock"));
  EXPECT_FALSE(table->ledger().ok());
  // It comes back all the same.
  StartServer();
  EXPECT_TRUE(Eventually([&] { return table->AppendEncodedAndWait(Record(id, id), {}).ok(); }));
  EXPECT_TRUE(Eventually([&] { return table->ledger().ok(); }));
}

TEST_F(ReconnectTest, NobodyThere) {
  options_.connect_deadline = milliseconds(200);
  options_.address = "unix:" + folder_.path() + "/nobody.sock";
  const Status status = Client::Connect(options_).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("nobody.sock"));
}

TEST_F(ReconnectTest, ATakeWhoseCallerHasGoneIsGivenBack) {
  StartServer();
  const std::unique_ptr<Client> client = Connect();
  RemoteTable* table = *client->Table("train");
  // The reply is on its way, or not asked for any more: either way the group stays available.
  for (int i = 0; i < 20; ++i) {
    std::thread reader([&] {
      const auto taken = table->Take({}, Now() + milliseconds(1));
      if (taken.ok()) {
        EXPECT_TRUE(table->GiveBack(taken->take_id).ok());
      }
    });
    if (i == 10) {
      const int64_t id = client->NewIds(1);
      EXPECT_TRUE(table->AppendEncodedAndWait(Record(id, id), {}).ok());
    }
    reader.join();
  }
  EXPECT_TRUE(table->Take({}, Now() + seconds(120)).ok());
}

}  // namespace
}  // namespace forebay::buffer
