// Goal: over the real buffer, with server and clients as processes that are killed in the middle of
// appends, every acknowledged append is stored exactly once.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
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
#include "forebay/buffer/service/raw_client_testing.h"
#include "forebay/trajectory/trajectory.h"
#include "gtest/gtest.h"

namespace forebay::buffer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kThreads = 8;

BufferOptions Options(const std::string& folder, Durability durability) {
  BufferOptions options;
  options.folder = folder + "/train";
  options.durability = durability;
  options.group_size = 1;
  options.segment_bytes = int64_t{4} << 20;
  options.disk_bytes_max = int64_t{1} << 30;
  options.implied_dispatch = true;
  return options;
}

// ---- what the children do; they never return

[[noreturn]] void Serve(const std::string& folder, Durability durability) {
  Recovery recovery;
  auto buffer = Buffer::Open(Options(folder, durability), 0, {}, &recovery);
  if (!buffer.ok()) {
    std::fprintf(stderr, "server: %s\n", buffer.status().message().c_str());
    _exit(3);
  }
  auto server = Server::Start({{"train", {.buffer = buffer->get(), .group_size = 1}}},
                              {.listen = {"unix:" + folder + "/s.sock"}, .folder = folder});
  if (!server.ok()) {
    std::fprintf(stderr, "server: %s\n", server.status().message().c_str());
    _exit(4);
  }
  while (true) pause();
}

// Appends until killed; writes the id of each acknowledged append to a file of its thread.
[[noreturn]] void Write(const std::string& folder, const std::string& name) {
  auto client = Client::Connect(
      {.address = "unix:" + folder + "/s.sock", .producer = name, .connections = 2});
  if (!client.ok()) {
    std::fprintf(stderr, "client: %s\n", client.status().message().c_str());
    _exit(5);
  }
  RemoteTable* table = *(*client)->Table("train");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string path = folder + "/acknowledged." + name + "." + std::to_string(t);
      const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      while (true) {
        const int64_t id = (*client)->NewIds(1);
        const Status status = table->AppendEncodedAndWait(Record(id, id, 0, 200 + id % 9000), {});
        if (!status.ok()) {
          std::fprintf(stderr, "append: %s\n", status.message().c_str());
          _exit(6);
        }
        if (write(fd, &id, sizeof(id)) != sizeof(id)) _exit(7);
      }
    });
  }
  while (true) pause();
}

class Child {
 public:
  template <typename Fn>
  explicit Child(Fn fn) : pid_(fork()) {
    if (pid_ == 0) fn();
  }
  ~Child() { Kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // False when it had ended by itself: it never should.
  bool Kill() {
    if (pid_ <= 0) return true;
    kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_;
};

std::vector<int64_t> Acknowledged(const std::string& folder,
                                  const std::vector<std::string>& names) {
  std::vector<int64_t> ids;
  for (const std::string& name : names) {
    for (int t = 0; t < kThreads; ++t) {
      const auto bytes = ReadFile(folder + "/acknowledged." + name + "." + std::to_string(t));
      if (!bytes.ok()) continue;
      for (size_t at = 0; at + sizeof(int64_t) <= bytes->size(); at += sizeof(int64_t)) {
        int64_t id = 0;
        std::memcpy(&id, bytes->data() + at, sizeof(id));
        ids.push_back(id);
      }
    }
  }
  return ids;
}

class ProcessTest : public testing::TestWithParam<Durability> {
 protected:
  // Everything that is stored, taken out: an id may come once.
  void ExpectStoredOnce(const std::vector<std::string>& names) {
    Recovery recovery;
    auto buffer = Buffer::Open(Options(folder_.path(), GetParam()), 0, {}, &recovery);
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(recovery.quarantined_records, 0);
    EXPECT_TRUE((*buffer)->ledger().balanced());
    std::set<int64_t> stored;
    while (true) {
      const auto taken = (*buffer)->Take({.groups = 1}, Now() + std::chrono::seconds(2));
      if (!taken.ok()) {
        EXPECT_EQ(taken.status().code(), StatusCode::kDeadlineExceeded) << taken.status().message();
        break;
      }
      for (const TrajectoryView& view : taken->trajectories) {
        EXPECT_TRUE(stored.insert(view.id.trajectory_id).second) << "twice";
        EXPECT_EQ(view.encoded, Record(view.id.trajectory_id, view.id.trajectory_id, 0,
                                       200 + view.id.trajectory_id % 9000));
      }
    }
    const std::vector<int64_t> acknowledged = Acknowledged(folder_.path(), names);
    EXPECT_GT(acknowledged.size(), 100U);
    int64_t lost = 0;
    for (const int64_t id : acknowledged) lost += static_cast<int64_t>(!stored.contains(id));
    EXPECT_EQ(lost, 0) << "of " << acknowledged.size() << " acknowledged";
    EXPECT_EQ(std::set<int64_t>(acknowledged.begin(), acknowledged.end()).size(),
              acknowledged.size())
        << "acknowledged twice";
    std::printf("%zu acknowledged, %zu stored\n", acknowledged.size(), stored.size());
  }
  bool Progress(const std::vector<std::string>& names, size_t more) {
    const size_t before = Acknowledged(folder_.path(), names).size();
    return Eventually([&] { return Acknowledged(folder_.path(), names).size() >= before + more; });
  }

  TempFolder folder_;
};

TEST_P(ProcessTest, KillingTheServerLosesNothing) {
  const std::string folder = folder_.path();
  Rng rng(1);
  auto server = std::make_unique<Child>([&] { Serve(folder, GetParam()); });
  ASSERT_TRUE(Eventually([&] { return access((folder + "/s.sock").c_str(), F_OK) == 0; }));
  Child writer([&] { Write(folder, "writer"); });
  ASSERT_TRUE(Progress({"writer"}, 50));
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(milliseconds(rng.Below(60)));
    EXPECT_TRUE(server->Kill());
    server = std::make_unique<Child>([&] { Serve(folder, GetParam()); });
    ASSERT_TRUE(Progress({"writer"}, 30)) << "round " << round;
  }
  EXPECT_TRUE(writer.Kill());
  EXPECT_TRUE(server->Kill());
  ExpectStoredOnce({"writer"});
}

TEST_P(ProcessTest, KillingClientsLosesNothing) {
  const std::string folder = folder_.path();
  Rng rng(2);
  Child server([&] { Serve(folder, GetParam()); });
  ASSERT_TRUE(Eventually([&] { return access((folder + "/s.sock").c_str(), F_OK) == 0; }));
  // One goes on while others under one name come and go.
  Child steady([&] { Write(folder, "steady"); });
  for (int round = 0; round < 5; ++round) {
    Child writer([&] { Write(folder, "writer"); });
    ASSERT_TRUE(Progress({"writer"}, 30)) << "round " << round;
    std::this_thread::sleep_for(milliseconds(rng.Below(40)));
    EXPECT_TRUE(writer.Kill());
  }
  ASSERT_TRUE(Progress({"steady"}, 30));
  EXPECT_TRUE(steady.Kill());
  EXPECT_TRUE(server.Kill());
  ExpectStoredOnce({"steady", "writer"});
}

INSTANTIATE_TEST_SUITE_P(All, ProcessTest, testing::Values(Durability::kOs, Durability::kSync),
                         [](const auto& info) {
                           return info.param == Durability::kOs ? "os" : "sync";
                         });

}  // namespace
}  // namespace forebay::buffer
