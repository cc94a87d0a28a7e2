// Goal: jobs run off the loop's thread, each once, in order on one thread; the loop goes on
// meanwhile.
#include "forebay/base/worker_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/loop.h"
#include "forebay/base/task.h"

namespace forebay {
namespace {

TEST(WorkerPoolTest, OneThreadKeepsTheOrderAndTheDestructorRunsWhatIsQueued) {
  std::vector<int> order;
  {
    WorkerPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

Task<void> OffloadOne(Loop* loop, WorkerPool* pool, std::thread::id* ran_on, std::string* out,
                      std::shared_future<void> gate) {
  const std::string given = "text";
  Task<std::string> work = Offload(loop, pool, [&] {
    if (gate.valid()) gate.wait();
    *ran_on = std::this_thread::get_id();
    return given + "!";
  });
  *out = co_await std::move(work);
}

// L8: while a job takes its time the loop runs other callbacks, here the one that lets it end.
TEST(WorkerPoolTest, L8_TheLoopGoesOnWhileAJobRuns) {
  const std::unique_ptr<Loop> loop = MakeLoop();
  WorkerPool pool(2);
  std::promise<void> gate;
  std::thread::id ran_on;
  std::string out;
  loop->Spawn(OffloadOne(loop.get(), &pool, &ran_on, &out, gate.get_future().share()),
              [&] { loop->Stop(); });
  loop->RunAt(loop->Now() + std::chrono::milliseconds(1), [&] { gate.set_value(); });
  loop->Run();
  EXPECT_EQ(out, "text!");
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(WorkerPoolTest, WithoutWorkersTheLoopDoesIt) {
  const std::unique_ptr<Loop> loop = MakeVirtualLoop();
  std::thread::id ran_on;
  std::string out;
  loop->Spawn(OffloadOne(loop.get(), nullptr, &ran_on, &out, {}));
  loop->Run();
  EXPECT_EQ(out, "text!");
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

}  // namespace
}  // namespace forebay
