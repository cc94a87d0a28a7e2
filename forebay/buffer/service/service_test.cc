// Goal: every call of a buffer works through a socket as it does in process, for many threads at
// once, and the server's rules about ids and tables hold.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/more_time_testing.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/client.h"
#include "forebay/buffer/server.h"
#include "forebay/buffer/service/fake_buffer_testing.h"
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

struct Parameters {
  bool tls;
  int32_t connections;
  bool shared = true;  // memory, on a Unix socket
};

class ServiceTest : public testing::TestWithParam<Parameters> {
 protected:
  void Start(const FakeOptions& fake, ServerOptions options = {}) {
    train_ = std::make_unique<FakeBuffer>(fake);
    eval_ = std::make_unique<FakeBuffer>(FakeOptions{});
    client_options_.connections = GetParam().connections;
    client_options_.producer = "actor";
    if (GetParam().tls) {
      MakeCertificate(folder_.path(), "server", "127.0.0.1");
      options.listen = {"tcp:127.0.0.1:0"};
      options.certificate_file = folder_.path() + "/server.crt";
      options.key_file = folder_.path() + "/server.key";
      options.token = client_options_.token = "a token";
      client_options_.ca_file = folder_.path() + "/server.crt";
    } else {
      options.listen = {"unix:" + folder_.path() + "/buffer.sock"};
      if (!GetParam().shared) options.shared_bytes_max = 0;
    }
    auto server = Server::Start(
        {{"train", {.buffer = train_.get(), .group_size = fake.group_size}},
         {"eval", {.buffer = eval_.get(), .implied_dispatch = false, .group_size = 1}}},
        options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = *std::move(server);
    client_options_.address = server_->addresses()[0];
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
    table_ = *client_->Table("train");
  }

  std::unique_ptr<Client> Connect() {
    auto client = Client::Connect(client_options_);
    EXPECT_TRUE(client.ok()) << client.status().message();
    return client.ok() ? *std::move(client) : nullptr;
  }

  TempFolder folder_;
  std::unique_ptr<FakeBuffer> train_, eval_;
  ClientOptions client_options_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  RemoteTable* table_ = nullptr;
};

TEST_P(ServiceTest, AppendsArriveOnce) {
  Start({.acknowledge_after = milliseconds(1)});
  EXPECT_THAT(client_->tables(), ElementsAre("eval", "train"));
  EXPECT_EQ(table_->group_size(), 1);
  EXPECT_TRUE(table_->implied_dispatch());
  constexpr int kThreads = 16;
  constexpr int kEach = 50;
  std::vector<std::thread> threads;
  Mutex mutex;
  std::map<int64_t, std::string> sent;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int64_t id = client_->NewIds(1);
        // Some larger than any buffer on the way.
        std::string record = Record(id, id, 0, i == 7 && t < 4 ? 3 << 20 : 100 + 997 * i);
        const Status status = table_->AppendEncodedAndWait(record, {});
        EXPECT_TRUE(status.ok()) << status.message();
        const MutexLock lock(mutex);
        sent[id] = std::move(record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(train_->stored(), kThreads * kEach);
  for (const auto& [id, record] : sent) EXPECT_EQ(train_->encoded(id), record) << id;
  EXPECT_EQ(client_->stats().appends, kThreads * kEach);
  EXPECT_EQ(client_->stats().unacknowledged_bytes, 0);
  EXPECT_TRUE(Eventually([&] { return server_->stats().appends == kThreads * kEach; }));
  EXPECT_EQ(server_->stats().append_bytes, 0);
}

TEST_P(ServiceTest, AsynchronousAppends) {
  Start({.acknowledge_after = milliseconds(1)});
  std::atomic<int> acknowledged{0};
  for (int i = 0; i < 500; ++i) {
    const int64_t id = client_->NewIds(1);
    table_->AppendEncoded(Record(id, id, 0, 2000), {}, [&](Status status) {
      EXPECT_TRUE(status.ok()) << status.message();
      ++acknowledged;
    });
  }
  client_->Close(Now() + seconds(120));
  EXPECT_EQ(acknowledged, 500);
  EXPECT_EQ(train_->stored(), 500);
}

TEST_P(ServiceTest, UnacknowledgedBytesAreBounded) {
  client_options_.unacknowledged_bytes_max = 10'000;
  Start({.hold = true});
  std::atomic<int> called{0};
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) {
      const int64_t id = client_->NewIds(1);
      table_->AppendEncoded(Record(id, id, 0, 2000), {}, [](Status) {});
      ++called;
    }
  });
  EXPECT_TRUE(Eventually([&] { return train_->held() >= 4; }));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_LE(called, 5);
  train_->LetGo();
  writer.join();
  client_->Close(Now() + seconds(120));
  EXPECT_EQ(train_->stored(), 20);
}

TEST_P(ServiceTest, CreditsHoldTheClientBack) {
  ServerOptions options;
  options.credit_bytes = 10'000;
  Start({.hold = true}, options);
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int t = 0; t < 20; ++t) {
    threads.emplace_back([&, t] {
      const int64_t id = client_->NewIds(1);
      // One alone may be larger than the credit.
      EXPECT_TRUE(table_->AppendEncodedAndWait(Record(id, id, 0, t == 9 ? 50'000 : 3000), {}).ok());
      ++done;
    });
  }
  EXPECT_TRUE(Eventually([&] { return train_->held() > 0; }));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_LE(train_->held(), 3 * GetParam().connections);
  train_->LetGo();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 20);
  EXPECT_EQ(server_->stats().refused[static_cast<size_t>(Refusal::kCredit)], 0);
}

TEST_P(ServiceTest, AFullServerStopsReading) {
  ServerOptions options;
  options.append_bytes_max = 100'000;
  options.credit_bytes = 300'000;
  Start({.hold = true}, options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 40; ++t) {
    threads.emplace_back([&] {
      const int64_t id = client_->NewIds(1);
      EXPECT_TRUE(table_->AppendEncodedAndWait(Record(id, id, 0, 20'000), {}).ok());
    });
  }
  EXPECT_TRUE(Eventually([&] { return train_->held() > 0; }));
  std::this_thread::sleep_for(milliseconds(50));
  // What was read in one go may be above the limit, once: with shared memory that is up to all
  // that a connection may have under way.
  EXPECT_LE(server_->stats().append_bytes, 100'000 + 300'000);
  train_->LetGo();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(train_->stored(), 40);
}

TEST_P(ServiceTest, TakesAcknowledgementsAndGivingBack) {
  Start({.group_size = 2});
  std::map<int64_t, std::string> sent;
  for (int group = 0; group < 40; ++group) {
    const int64_t first = client_->NewIds(2);
    for (int32_t member = 0; member < 2; ++member) {
      const std::string record = Record(first + member, first, member, member == 0 ? 300 : 20'000);
      ASSERT_TRUE(table_->AppendEncodedAndWait(record, {}).ok());
      sent[first + member] = record;
    }
  }
  std::set<int64_t> seen;
  for (int i = 0; i < 4; ++i) {
    const auto taken = table_->Take({.groups = 10}, Now() + seconds(120));
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    ASSERT_EQ(taken->trajectories.size(), 20U);
    for (const TrajectoryView& view : taken->trajectories) {
      EXPECT_EQ(view.encoded, sent[view.id.trajectory_id]);
      EXPECT_TRUE(seen.insert(view.id.trajectory_id).second);
    }
    if (i == 3) {
      EXPECT_TRUE(table_->GiveBack(taken->take_id).ok());
      EXPECT_EQ(table_->Acknowledge(taken->take_id).code(), StatusCode::kNotFound);
    } else {
      EXPECT_TRUE(table_->Acknowledge(taken->take_id).ok());
    }
  }
  const auto ledger = table_->ledger();
  ASSERT_TRUE(ledger.ok());
  EXPECT_EQ(ledger->trained, 60);
  EXPECT_TRUE(table_->Take({.groups = 10}, Now() + seconds(120)).ok());
  EXPECT_EQ(table_->Take({.groups = 1}, Now() + milliseconds(30)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(table_->Take({.groups = 0}, Now()).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(ServiceTest, ATakeWaitsForAppends) {
  Start({});
  std::thread reader([&] {
    const auto taken = table_->Take({.groups = 3}, Now() + seconds(120));
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_EQ(taken->trajectories.size(), 3U);
  });
  EXPECT_TRUE(Eventually([&] { return server_->stats().waiting_takes == 1; }));
  for (int i = 0; i < 3; ++i) {
    const int64_t id = client_->NewIds(1);
    ASSERT_TRUE(table_->AppendEncodedAndWait(Record(id, id), {}).ok());
  }
  reader.join();
  // And for those that come another way.
  std::thread other([&] { EXPECT_TRUE(table_->Take({}, Now() + seconds(120)).ok()); });
  EXPECT_TRUE(Eventually([&] { return server_->stats().waiting_takes == 1; }));
  EXPECT_TRUE(train_->AppendEncodedAndWait(Record(1, 1), {}).ok());
  server_->Wake();
  other.join();
}

TEST_P(ServiceTest, TheLearnersCalls) {
  Start({.group_size = 2});
  for (int group = 0; group < 6; ++group) {
    const int64_t first = client_->NewIds(2);
    ASSERT_TRUE(table_->AppendEncodedAndWait(Record(first, first, 0), {}).ok());
    ASSERT_TRUE(table_->AppendEncodedAndWait(Record(first + 1, first, 1), {}).ok());
  }
  const auto batch = table_->Lease(4, 7, Now() + seconds(120));
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  EXPECT_EQ(batch->sequence, 1);
  EXPECT_EQ(batch->learner_version, 7);
  EXPECT_EQ(batch->trajectories.size(), 8U);
  std::set<int64_t> seen;
  for (int32_t shard = 0; shard < 2; ++shard) {
    const auto part = table_->ReadBatch(1, shard, 2);
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(part->trajectories.size(), 4U);
    for (const TrajectoryPtr& t : part->trajectories) {
      EXPECT_TRUE(seen.insert(t->id.trajectory_id).second);
    }
  }
  EXPECT_EQ(table_->ReadBatch(9, 0, 1).status().code(), StatusCode::kNotFound);
  // A lease that waits holds nobody else's calls, and ends in time.
  std::thread waiting([&] {
    EXPECT_EQ(table_->Lease(100, 7, Now() + milliseconds(300)).status().code(),
              StatusCode::kDeadlineExceeded);
  });
  EXPECT_TRUE(table_->MarkTrained(1).ok());
  EXPECT_TRUE(table_->Commit(1).ok());
  EXPECT_TRUE(table_->Release(1).ok());
  EXPECT_TRUE(table_->ReadBatch(1, 0, 1).ok());
  waiting.join();
  EXPECT_TRUE(table_->Dispatch({.trajectory_id = 3}).ok());
  EXPECT_TRUE(table_->Reject({.trajectory_id = 3}, RejectReason::kOutcome).ok());
  EXPECT_TRUE(table_->CloseGroup(5).ok());
  EXPECT_TRUE(table_->Pause(true, false).ok());
  EXPECT_THAT(train_->calls(), ElementsAre("trained 1", "commit 1", "release 1", "dispatch 3",
                                           "reject 3 1", "close group 5", "pause true false"));
}

TEST_P(ServiceTest, OperatorsCalls) {
  Start({.group_size = 2});
  const int64_t id = client_->NewIds(1);
  ASSERT_TRUE(table_->AppendEncodedAndWait(Record(id, id), {}).ok());
  const auto groups = table_->Inspect(0, 10);
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 1U);
  EXPECT_EQ((*groups)[0].group_id, id);
  const auto stats = table_->stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->appends, 1);
  EXPECT_EQ(stats->append_wait_seconds, 0.5);
  std::thread reader([&] {
    const Status status = table_->Take({}, Now() + seconds(120)).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("maintenance"));
  });
  EXPECT_TRUE(Eventually([&] { return server_->stats().waiting_takes == 1; }));
  EXPECT_TRUE(table_->Unblock("maintenance").ok());
  reader.join();
}

TEST_P(ServiceTest, WhatIsWrongIsSaid) {
  Start({});
  EXPECT_THAT(client_->Table("tarin").status().message(), HasSubstr("eval, train"));
  // Another client's ids.
  EXPECT_THAT(table_->AppendEncodedAndWait(Record(5, 5), {}).message(), HasSubstr("2^40"));
  EXPECT_EQ(table_->AppendEncodedAndWait("garbage", {}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(table_->AppendEncodedAndWait(std::string(17 << 20, 'x'), {}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(table_->AppendEncodedAndWait(Record(5, 5), {.priority = -1}).code(),
            StatusCode::kInvalidArgument);
  // A table with a coordinator takes any id.
  RemoteTable* eval = *client_->Table("eval");
  EXPECT_TRUE(eval->AppendEncodedAndWait(Record(5, 5), {}).ok());
  EXPECT_EQ(eval_->stored(), 1);
  EXPECT_EQ(train_->stored(), 0);
  // All that on one connection, which is as good as before.
  const int64_t id = client_->NewIds(1);
  EXPECT_TRUE(table_->AppendEncodedAndWait(Record(id, id), {}).ok());
  EXPECT_EQ(client_->stats().reconnects, 0);
}

TEST_P(ServiceTest, DeadlinesOfAppends) {
  Start({.hold = true});
  int64_t id = 0, tries = 0;
  EXPECT_TRUE(WithMoreTime(milliseconds(50), [&](Duration within) {
    id = client_->NewIds(1);
    ++tries;
    const TimePoint begin = Now();
    EXPECT_EQ(table_->AppendEncodedAndWait(Record(id, id), {.deadline = begin + within}).code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_GE(Now() - begin, within);
    return !train_->encoded(id).empty();  // the buffer has it and holds its acknowledgement
  }));
  // Repeating it is safe.
  train_->LetGo();
  EXPECT_TRUE(table_->AppendEncodedAndWait(Record(id, id), {}).ok());
  EXPECT_GE(train_->stored(), 1);
  EXPECT_LE(train_->stored(), tries);
  EXPECT_EQ(train_->duplicates(), 1);
}

TEST_P(ServiceTest, StoppingAcknowledgesWhatIsUnderWay) {
  Start({.hold = true});
  std::atomic<int> acknowledged{0};
  for (int i = 0; i < 10; ++i) {
    const int64_t id = client_->NewIds(1);
    table_->AppendEncoded(Record(id, id), {}, [&](Status status) { acknowledged += status.ok(); });
  }
  EXPECT_TRUE(Eventually([&] { return train_->held() == 10; }));
  std::thread release([&] {
    std::this_thread::sleep_for(milliseconds(50));
    train_->LetGo();
  });
  server_->Stop(Now() + seconds(120));
  EXPECT_TRUE(Eventually([&] { return acknowledged == 10; }));
  release.join();
  server_->Stop(Now());  // again
  // The buffer may outlive late acknowledgements' receiver.
  server_.reset();
}

TEST_P(ServiceTest, StoppingEndsInTimeWithoutTheBuffer) {
  Start({.hold = true});
  const int64_t id = client_->NewIds(1);
  table_->AppendEncoded(Record(id, id), {}, [](Status) {});
  EXPECT_TRUE(Eventually([&] { return train_->held() == 1; }));
  server_->Stop(Now() + milliseconds(100));
  server_.reset();
  train_->LetGo();  // the callback finds nobody
}

TEST_P(ServiceTest, ATailSeesAppends) {
  if (GetParam().tls) GTEST_SKIP() << "the raw client speaks no TLS";
  Start({});
  RawClient tail(client_options_.address);
  ASSERT_TRUE(tail.Greet());
  ASSERT_TRUE(tail.Send(FrameBytes({.type = FrameType::kTail, .table = 1, .request = 9}, "")));
  auto frame = tail.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kDone);
  const int64_t id = client_->NewIds(1);
  const std::string record = Record(id, id);
  ASSERT_TRUE(table_->AppendEncodedAndWait(record, {}).ok());
  ASSERT_TRUE((*client_->Table("eval"))->AppendEncodedAndWait(Record(1, 1), {}).ok());
  frame = tail.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, FrameType::kTailRecords);
  EXPECT_EQ(frame->header.request, 9U);
  EXPECT_EQ(frame->payload.substr(8), record);
}

INSTANTIATE_TEST_SUITE_P(All, ServiceTest,
                         testing::Values(Parameters{false, 1}, Parameters{false, 3},
                                         Parameters{false, 1, false}, Parameters{true, 1}),
                         [](const auto& info) {
                           return std::string(info.param.tls      ? "tls"
                                              : info.param.shared ? "unix"
                                                                  : "unixapart") +
                                  std::to_string(info.param.connections);
                         });

}  // namespace
}  // namespace forebay::buffer
