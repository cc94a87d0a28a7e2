// The actors benchmark: see benchmarks.h.
//
// Real episodes on the real loop: the built-in slow environment, SmolLM2's tokenizer and chat
// template, a buffer in memory with a reader. Only the engine is replaced, by a thread that answers
// at once: ten thousand streams are more than two cores decode, and the actors are what is
// measured.
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/smollm2.h"
#include "fmt/core.h"
#include "forebay/base/clock.h"
#include "forebay/base/lag.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/env/builtin.h"
#include "forebay/env/environment.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/trajectory/trajectory.h"
#include "forebay/weights/model_files.h"
#include "forebay/weights/snapshot.h"
#include "forebay/weights/tiny_model.h"

namespace forebay::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kEpisodes = 10'000;
constexpr int64_t kGroup = 8;
constexpr int kTextWorkers = 2;     // as `forebay train`
constexpr auto kRamp = seconds(4);  // over which the actors start, as a pool that grows
constexpr int kRampSteps = 400;

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Answers every request with the same short action, in order, on a thread of its own.
class InstantEngine final : public rollout::Engine {
 public:
  explicit InstantEngine(std::vector<int32_t> action) : action_(std::move(action)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~InstantEngine() override { Shutdown(); }

  uint64_t Generate(rollout::GenerateRequest,
                    std::function<void(Result<rollout::GenerateResult>)> done) override {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(done));
    wake_.notify_one();
    return ++requests_;
  }
  void Cancel(uint64_t) override {}
  void Publish(std::shared_ptr<const weights::Snapshot>,
               std::function<void(Status)> taken) override {
    taken(OkStatus());
  }
  int64_t policy_version() const override { return 0; }
  rollout::EngineStats stats() const override { return {}; }
  void Shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      auto done = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      rollout::GenerateResult result;
      result.tokens = action_;
      result.logprobs.assign(action_.size(), -0.5F);
      result.versions = {{.policy_version = 0, .tokens = static_cast<int32_t>(action_.size())}};
      done(std::move(result));
      lock.lock();
    }
  }

  const std::vector<int32_t> action_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void(Result<rollout::GenerateResult>)>> waiting_;
  uint64_t requests_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

// Groups of eight members, each dispatched in the buffer and appended to it.
class Client final : public rollout::ActorClient {
 public:
  Client(Loop& loop, WorkerPool& workers, buffer::Buffer& buffer)
      : loop_(loop), workers_(workers), buffer_(buffer) {}

  Task<Result<Assignment>> Next() override {
    Assignment assignment;
    assignment.id.trajectory_id = ++dispatched_;
    assignment.id.group_id = assignment.id.task_id = (dispatched_ - 1) / kGroup;
    assignment.id.member = static_cast<int32_t>((dispatched_ - 1) % kGroup);
    assignment.seed = static_cast<uint64_t>(dispatched_);
    const Status status = buffer_.Dispatch(assignment.id);
    if (!status.ok()) co_return status;
    co_return assignment;
  }
  Task<Status> Finish(Trajectory trajectory) override {
    for (const Turn& turn : trajectory.turns) steps_ += turn.kind == TurnKind::kAction ? 1 : 0;
    tokens_ += static_cast<int64_t>(trajectory.tokens.size());
    Task<std::string> encoding =
        Offload(&loop_, &workers_, [&trajectory] { return Encode(trajectory); });
    const std::string encoded = co_await std::move(encoding);
    Completion<Status> done(loop_);
    buffer_.AppendEncoded(encoded, {.deadline = loop_.Now() + seconds(60)},
                          [done](Status status) { done.Set(std::move(status)); });
    auto wait = done.Wait();
    Status status = co_await wait;
    if (status.ok()) ++stored_;
    co_return status;
  }

  int64_t dispatched() const { return dispatched_; }
  int64_t stored() const { return stored_; }
  int64_t steps() const { return steps_; }
  double mean_tokens() const {
    return stored_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(stored_) : 0;
  }

 private:
  Loop& loop_;
  WorkerPool& workers_;
  buffer::Buffer& buffer_;
  int64_t dispatched_ = 0, stored_ = 0, steps_ = 0, tokens_ = 0;  // on the loop
};

// Takes what was appended, so that the buffer holds little.
int64_t Consume(buffer::Buffer& buffer, const std::atomic<bool>& stop) {
  int64_t groups = 0;
  while (true) {
    const Result<buffer::Taken> taken = buffer.Take({.groups = 1}, Now() + milliseconds(100));
    if (!taken.ok()) {
      if (stop) return groups;
      continue;
    }
    if (buffer.Acknowledge(taken->take_id).ok()) ++groups;
  }
}

struct Counts {
  rollout::ActorStats actors;
  int64_t steps = 0, dispatched = 0, stored = 0, left = 0;
  double mean_tokens = 0;
};

// Everything that lives on the loop.
class Rig {
  // Runs `fn` on the loop and waits for what it returns.
  template <typename Fn>
  auto On(Fn fn) {
    std::promise<decltype(fn())> done;
    loop_->Post([&] { done.set_value(fn()); });
    return done.get_future().get();
  }

 public:
  Rig(buffer::Buffer& buffer, rollout::Engine& engine, const tokenizer::Tokenizer& tokenizer,
      const tokenizer::ChatTemplate& chat)
      : loop_(MakeLoop()), workers_(kTextWorkers), client_(*loop_, workers_, buffer) {
    environments_ = env::MakeBuiltin("slow",
                                     {{"latency_p50_s", 2.0},
                                      {"latency_p99_s", 4.0},
                                      {"reset_p50_s", 2.0},
                                      {"turns_min", 4},
                                      {"turns_max", 8}},
                                     *loop_)
                        .value();
    rollout::EpisodeOptions options;
    options.environment = "slow";
    options.workers = &workers_;
    options.turns_max = 8;
    options.stop_tokens = {weights::kTinyEnd};
    options.bos_token = "<|im_start|>";
    options.eos_token = "<|im_end|>";
    pool_ = rollout::ActorPool::Create(
        {.loop = loop_.get(),
         .client = &client_,
         .play = rollout::MakeEpisodePlayer({.loop = loop_.get(),
                                             .engine = &engine,
                                             .environments = environments_.get(),
                                             .tokenizer = &tokenizer,
                                             .chat = &chat},
                                            options)});
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~Rig() {
    On([this] {
      pool_.reset();
      environments_.reset();
      return 0;
    });
    loop_->Stop();
    thread_.join();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void Resize(int64_t actors) {
    On([&] {
      pool_->Resize(actors);
      return 0;
    });
  }
  Counts counts() {
    return On([this] {
      return Counts{.actors = pool_->stats(),
                    .steps = client_.steps(),
                    .dispatched = client_.dispatched(),
                    .stored = client_.stored(),
                    .mean_tokens = client_.mean_tokens()};
    });
  }
  // Ends all episodes at their next turn; the number that did not.
  int64_t Drain() {
    std::promise<int64_t> left;
    loop_->Post([&] { loop_->Spawn(DrainAll(&left)); });
    return left.get_future().get();
  }
  LagHistogram& lag() { return loop_->lag(); }

 private:
  Task<void> DrainAll(std::promise<int64_t>* left) {
    Task<int64_t> draining = pool_->Drain(loop_->Now() + seconds(60));
    const int64_t remain = co_await std::move(draining);
    Task<void> ending = environments_->Shutdown(loop_->Now() + seconds(10));
    co_await std::move(ending);
    left->set_value(remain);
  }

  std::unique_ptr<Loop> loop_;
  WorkerPool workers_;
  Client client_;
  std::unique_ptr<env::EnvironmentPool> environments_;
  std::unique_ptr<rollout::ActorPool> pool_;
  std::thread thread_;
};

double Milliseconds(Duration duration) { return Seconds(duration) * 1e3; }

}  // namespace

Result<nlohmann::ordered_json> ActorsBench(const BenchOptions& options) {
  return MeasureActors(kEpisodes, options.quick ? 10 : 40, options);
}

Result<nlohmann::ordered_json> MeasureActors(int64_t episodes, int window_s,
                                             const BenchOptions& options) {
  FB_ASSIGN_OR_RETURN(const weights::ModelFiles files, weights::LoadModelFiles(SmolLm2Path()));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<tokenizer::Tokenizer> tokenizer,
                      tokenizer::Tokenizer::FromJson(files.tokenizer_json));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<tokenizer::ChatTemplate> chat,
                      tokenizer::ChatTemplate::Parse(files.chat_template));
  FB_ASSIGN_OR_RETURN(const std::vector<int32_t> action,
                      tokenizer->Encode("The letter is aaaaaaaa.<|im_end|>"));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<buffer::Buffer> buffer,
                      buffer::Buffer::Open({.durability = buffer::Durability::kMemory,
                                            .group_size = static_cast<int32_t>(kGroup),
                                            .memory_bytes_max = int64_t{64} << 20},
                                           0, {}, nullptr));
  InstantEngine engine(action);
  std::atomic<bool> stop = false;
  std::future<int64_t> reader =
      std::async(std::launch::async, [&] { return Consume(*buffer, stop); });

  Rig rig(*buffer, engine, *tokenizer, *chat);
  options.Say(fmt::format("{} episodes start over {} s, then {} s are measured", episodes,
                          kRamp.count(), window_s));
  malloc_trim(0);
  const int64_t bytes_before = ResidentBytes();
  for (int i = 1; i <= kRampSteps; ++i) {
    rig.Resize(episodes * i / kRampSteps);
    std::this_thread::sleep_for(kRamp / kRampSteps);
  }
  std::this_thread::sleep_for(seconds(6));  // the first episodes end: from now on it is steady
  rig.lag().Clear();
  const Counts begin = rig.counts();
  const TimePoint began = Now();
  const double cpu_began = CpuSeconds();
  std::vector<double> bytes;
  for (int i = 0; i < window_s; ++i) {
    std::this_thread::sleep_for(seconds(1));
    bytes.push_back(static_cast<double>(ResidentBytes() - bytes_before));
  }
  const double took = Seconds(Now() - began);
  const double cpu_took = CpuSeconds() - cpu_began;
  const Counts end = rig.counts();
  const double p50 = Milliseconds(rig.lag().Percentile(0.5));
  const double p99 = Milliseconds(rig.lag().Percentile(0.99));
  const double worst = Milliseconds(rig.lag().max());
  const int64_t left = rig.Drain();
  const Counts last = rig.counts();
  stop = true;
  const int64_t groups = reader.get();
  const buffer::Ledger ledger = buffer->ledger();
  const int64_t aborted = last.actors.outcomes[static_cast<size_t>(Outcome::kAborted)];
  int64_t failed = 0;
  for (const Outcome outcome :
       {Outcome::kEnvError, Outcome::kEnvTimeout, Outcome::kEngineError, Outcome::kGraderError}) {
    failed += last.actors.outcomes[static_cast<size_t>(outcome)];
  }
  const int64_t accounted =
      ledger.trained + ledger.pending + ledger.rejected_total() + ledger.in_flight;
  return nlohmann::ordered_json{
      {"episodes", end.actors.running},
      {"bytes_per_episode", Summarize(std::move(bytes)).median / static_cast<double>(episodes)},
      {"tokens_per_episode", last.mean_tokens},
      {"wakeup_p50_ms", p50},
      {"wakeup_p99_ms", p99},
      {"wakeup_max_ms", worst},
      {"steps_per_s", static_cast<double>(end.steps - begin.steps) / took},
      {"cpu_seconds_per_s", cpu_took / took},
      {"episodes_ended", last.actors.episodes},
      {"aborted_at_the_end", aborted},
      {"failed", failed},
      {"lost", (last.dispatched - accounted) + left + ledger.in_flight},
      {"ledger_balanced", ledger.balanced()},
      {"groups_read", groups},
      {"load_average", LoadAverage()}};
}

}  // namespace forebay::bench
