#include "forebay/env/builtin/slow.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/places.h"

namespace forebay::env {
namespace {

constexpr double kZ99 = 2.3263478740408408;  // the 99th percentile of a standard normal
constexpr double kTailMax = 4.0;             // times the 99th percentile

// What all episodes of a pool share; outlives the pool when an episode does.
struct Shared {
  Loop& loop;
  SlowOptions options;
  std::shared_ptr<Places> places;
  bool stopped = false;
};

Status HasShutDown() { return Cancelled("the environment pool is shut down"); }

double Latency(Rng& rng, double p50_s, const SlowOptions& options) {
  if (p50_s <= 0 || options.latency_p50_s <= 0) return 0;
  const double spread = options.latency_p99_s / options.latency_p50_s;
  const double factor = std::exp(std::log(spread) / kZ99 * rng.Normal());
  return p50_s * std::min(factor, kTailMax * spread);
}

double Fraction(std::string_view text, char letter) {
  if (text.empty()) return 0;
  const auto hits = std::count_if(text.begin(), text.end(), [letter](char c) {
    return std::tolower(static_cast<unsigned char>(c)) == letter;
  });
  return static_cast<double>(hits) / static_cast<double>(text.size());
}

class SlowEnvironment final : public Environment {
 public:
  SlowEnvironment(std::shared_ptr<Shared> shared, Places::Place place)
      : shared_(std::move(shared)), place_(std::move(place)) {}

  Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint deadline) override {
    const SlowOptions& options = shared_->options;
    rng_ = Rng(request.seed);
    letter_ = static_cast<char>('a' + static_cast<uint64_t>(request.task_id) %
                                          static_cast<uint64_t>(options.letters));
    turns_ = options.turns_min + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(
                                     options.turns_max - options.turns_min + 1)));
    turn_ = 0;
    const Status status = co_await Wait(Latency(rng_, options.reset_p50_s, options), deadline);
    if (!status.ok()) co_return status;
    std::vector<Message> messages;
    messages.push_back(Message{"user", fmt::format("Write only the letter {}.", letter_)});
    co_return messages;
  }

  Task<Result<StepResult>> Step(std::string action, TimePoint deadline) override {
    if (turns_ == 0) co_return Internal("a step before the reset of its episode");
    const Status status =
        co_await Wait(Latency(rng_, shared_->options.latency_p50_s, shared_->options), deadline);
    if (!status.ok()) co_return status;
    ++turn_;
    StepResult result;
    result.rewards["letters"] = Fraction(action, letter_) / static_cast<double>(turns_);
    result.done = turn_ >= turns_;
    result.tool = "slow";
    if (!result.done) result.messages.push_back(Message{"user", "More."});
    co_return result;
  }

 private:
  // Sleeps; kDeadlineExceeded at the deadline when that is earlier. kCancelled after Shutdown,
  // which does not wake who sleeps already.
  Task<Status> Wait(double seconds, TimePoint deadline) {
    if (shared_->stopped) co_return HasShutDown();
    Loop& loop = shared_->loop;
    const TimePoint end = loop.Now() + FromSeconds(seconds);
    const OneShot<bool> over(loop);
    const uint64_t timer = loop.RunAt(std::min(end, deadline), [over] { over.Set(true); });
    co_await over.Wait();
    loop.Cancel(timer);
    if (end > deadline) co_return DeadlineExceeded("the slow environment did not answer in time");
    co_return OkStatus();
  }

  const std::shared_ptr<Shared> shared_;
  const Places::Place place_;
  Rng rng_{0};
  char letter_ = 'a';
  int64_t turns_ = 0;  // of this episode; 0: not reset
  int64_t turn_ = 0;
};

class SlowPool final : public EnvironmentPool {
 public:
  explicit SlowPool(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Task<Result<std::unique_ptr<Environment>>> Acquire(TimePoint deadline) override {
    const std::shared_ptr<Shared> shared = shared_;
    Task<Result<Places::Place>> taking = Places::Take(shared->places, deadline);
    Result<Places::Place> place = co_await std::move(taking);
    if (!place.ok()) co_return place.status();
    std::unique_ptr<Environment> made =
        std::make_unique<SlowEnvironment>(shared, std::move(*place));
    co_return std::move(made);
  }

  Task<void> Shutdown(TimePoint) override {
    shared_->stopped = true;
    shared_->places->Stop(HasShutDown());
    co_return;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<EnvironmentPool>> MakeSlowPool(const SlowOptions& options, Loop& loop) {
  if (options.turns_min < 1 || options.turns_max < options.turns_min || options.turns_max > 1000) {
    return InvalidArgument(fmt::format(
        "turns_min and turns_max must be 1 <= turns_min <= turns_max <= 1000, not {} and {}",
        options.turns_min, options.turns_max));
  }
  if (!(options.latency_p50_s >= 0 && options.latency_p50_s <= options.latency_p99_s &&
        options.latency_p99_s <= 86400)) {
    return InvalidArgument(
        fmt::format("latency_p50_s and latency_p99_s must be 0 <= latency_p50_s <= latency_p99_s "
                    "<= 86400, not {} and {}",
                    options.latency_p50_s, options.latency_p99_s));
  }
  if (!(options.reset_p50_s >= 0 && options.reset_p50_s <= 86400)) {
    return InvalidArgument(
        fmt::format("reset_p50_s must be 0 to 86400, not {}", options.reset_p50_s));
  }
  if (options.letters < 1 || options.letters > 26) {
    return InvalidArgument(fmt::format("letters must be 1 to 26, not {}", options.letters));
  }
  if (options.episodes_max < 1) {
    return InvalidArgument(
        fmt::format("episodes_max must be 1 or more, not {}", options.episodes_max));
  }
  return std::unique_ptr<EnvironmentPool>(std::make_unique<SlowPool>(std::make_shared<Shared>(
      Shared{.loop = loop,
             .options = options,
             .places = std::make_shared<Places>(loop, options.episodes_max, "episodes_max")})));
}

}  // namespace forebay::env
