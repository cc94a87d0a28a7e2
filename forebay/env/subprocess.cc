#include "forebay/env/subprocess.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/subprocess/wire.h"
#include "forebay/env/subprocess/worker.h"

namespace forebay::env {
namespace {

constexpr Duration kReapGrace = std::chrono::seconds(5);  // from SIGKILL to the end of a process

class SubprocessEnvironment final : public Environment {
 public:
  SubprocessEnvironment(std::shared_ptr<Worker> worker, uint64_t episode)
      : worker_(std::move(worker)), episode_(episode) {}
  ~SubprocessEnvironment() override { worker_->Close(episode_); }

  Task<Result<std::vector<Message>>> Reset(ResetRequest request, TimePoint deadline) override {
    const Line line = [request = std::move(request), episode = episode_](uint64_t id,
                                                                         Duration left) {
      return ResetLine(id, episode, request, left);
    };
    Task<Result<StepResult>> calling = Worker::Call(worker_, episode_, deadline, 0, line);
    Result<StepResult> result = co_await std::move(calling);
    if (!result.ok()) co_return result.status();
    co_return std::move(result->messages);
  }

  Task<Result<StepResult>> Step(std::string action, TimePoint deadline) override {
    const size_t bytes = action.size();
    const Line line = [action = std::make_shared<const std::string>(std::move(action)),
                       episode = episode_](uint64_t id, Duration left) {
      return StepLine(id, episode, *action, left);
    };
    Task<Result<StepResult>> calling = Worker::Call(worker_, episode_, deadline, bytes, line);
    Result<StepResult> result = co_await std::move(calling);
    co_return result;
  }

 private:
  // A named object: GCC 12 destroys temporaries of a co_await expression twice.
  using Line = std::function<std::string(uint64_t, Duration)>;

  std::shared_ptr<Worker> worker_;
  uint64_t episode_;
};

using Place = Result<std::unique_ptr<Environment>>;

// What the pool's handle, its timers and its coroutines share.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Loop& loop, SubprocessOptions options)
      : loop_(loop),
        options_(std::make_shared<SubprocessOptions>(std::move(options))),
        log_(std::make_shared<RotatingLog>(options_->stderr_path, options_->stderr_file_bytes_max)),
        slots_(static_cast<size_t>(options_->processes)) {}

  static Task<Place> Acquire(std::shared_ptr<Core> self, TimePoint deadline) {
    if (self->stopping_) co_return Cancelled("the environment pool is shut down");
    const OneShot<Place> waiting(self->loop_);
    const uint64_t ticket = ++self->last_ticket_;
    self->waiters_.emplace(ticket, waiting);
    const uint64_t timer = self->At(deadline, [ticket, waiting](Core& core) {
      core.waiters_.erase(ticket);
      waiting.Set(core.NoPlace());
    });
    self->Tend();
    Place place = co_await waiting.Wait();
    self->loop_.Cancel(timer);
    co_return place;
  }

  static Task<void> Shutdown(std::shared_ptr<Core> self, TimePoint deadline) {
    const Status reason = Cancelled("the environment pool is shut down");
    self->stopping_ = true;
    self->FailWaiters(reason);
    for (Slot& slot : self->slots_) {
      if (slot.worker) self->ending_.push_back(std::move(slot.worker));
    }
    for (const auto& worker : self->ending_) worker->EndInput(reason);
    co_await self->AllEnded(deadline);
    for (const auto& worker : self->ending_) worker->Kill(reason);
    co_await self->AllEnded(self->loop_.Now() + kReapGrace);
    for (const auto& worker : self->ending_) self->Remember(*worker);
    self->ending_.clear();
    self->LogStats();
  }

  void KillAll() {
    stopping_ = true;
    FailWaiters(Cancelled("the environment pool is gone"));
    for (Slot& slot : slots_) {
      if (slot.worker) ending_.push_back(std::move(slot.worker));
    }
    for (const auto& worker : ending_) worker->Kill(Cancelled("the environment pool is gone"));
    ending_.clear();
  }

  SubprocessStats stats() const {
    SubprocessStats stats = stats_;
    stats.waiting = static_cast<int64_t>(waiters_.size());
    ForEachWorker([&stats](const Worker& worker) {
      stats.late_answers += worker.late_answers();
      stats.episodes += worker.episodes();
      if (worker.state() != Worker::State::kDead) ++stats.running;
      if (worker.said_hello()) ++stats.started;
    });
    return stats;
  }

 private:
  struct Slot {
    std::shared_ptr<Worker> worker;
    int64_t failures = 0;  // failed starts in a row
    bool starting_later = false;
  };

  // Brings everything to where it should be: called after any change.
  void Tend() {
    RememberDead();
    if (all_ended_ && ending_.empty()) all_ended_->Set(true);
    if (stopping_) return;
    for (Slot& slot : slots_) {
      if (slot.worker) Examine(slot);
      if (!slot.worker && !slot.starting_later && slot.failures < options_->start_failures_max)
        StartIn(slot);
    }
    while (!waiters_.empty()) {
      Worker* worker = LeastLoaded();
      if (worker == nullptr) break;
      const auto first = waiters_.begin();
      first->second.Set(Place(
          std::make_unique<SubprocessEnvironment>(worker->shared_from_this(), worker->Open())));
      waiters_.erase(first);
    }
    if (Broken()) FailWaiters(NoProcess());
  }

  void Examine(Slot& slot) {
    Worker& worker = *slot.worker;
    if (worker.proven()) slot.failures = 0;
    if (worker.state() == Worker::State::kRetiring) {
      ++stats_.recycled;
    } else if (worker.ended()) {
      last_failure_ = worker.reason();
      if (worker.proven()) {
        ++stats_.crashed;
      } else {
        ++slot.failures;
        ++stats_.failed_starts;
      }
    } else {
      return;
    }
    ending_.push_back(std::move(slot.worker));
    slot.worker = nullptr;
  }

  // Starts the slot's process, now or after the backoff of its failures.
  void StartIn(Slot& slot) {
    if (slot.failures > 0) {
      slot.starting_later = true;
      const auto doubled =
          options_->backoff * (int64_t{1} << std::min<int64_t>(slot.failures - 1, 20));
      const auto index = static_cast<size_t>(&slot - slots_.data());
      At(loop_.Now() + std::min<Duration>(doubled, options_->backoff_max), [index](Core& core) {
        core.slots_[index].starting_later = false;
        if (core.stopping_) return;
        core.StartNow(core.slots_[index]);
        core.Tend();
      });
      return;
    }
    StartNow(slot);
  }

  void StartNow(Slot& slot) {
    auto worker = Worker::Start(loop_, options_, log_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Poke();
    });
    if (worker.ok()) {
      slot.worker = *worker;
      return;
    }
    last_failure_ = worker.status();
    ++slot.failures;
    ++stats_.failed_starts;
    Poke();
  }

  // Tend, once, soon: workers change in the middle of their own work.
  void Poke() {
    if (std::exchange(poked_, true)) return;
    loop_.Post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->poked_ = false;
        self->Tend();
      }
    });
  }

  Worker* LeastLoaded() const {
    Worker* best = nullptr;
    for (const Slot& slot : slots_) {
      if (!slot.worker || slot.worker->free_places() == 0) continue;
      if (best == nullptr || slot.worker->free_places() > best->free_places())
        best = slot.worker.get();
    }
    return best;
  }

  bool Broken() const {
    return std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) {
      return !slot.worker && slot.failures >= options_->start_failures_max;
    });
  }

  Status NoProcess() const {
    return Unavailable(fmt::format(
        "the environment could not be started: {} tries in a row failed, the last one with: {}. "
        "Run `{}`{} by hand: it "
        "must wait for requests on its standard input (docs/environment_protocol.md) and not end",
        options_->start_failures_max, last_failure_.message(), fmt::join(options_->command, " "),
        options_->folder.empty() ? "" : fmt::format(" in {}", options_->folder)));
  }

  // Why nobody could be served until a deadline: all places are taken, or there are none yet.
  Status NoPlace() const {
    Worker* starting = nullptr;
    bool ready = false;
    for (const Slot& slot : slots_) {
      if (!slot.worker) continue;
      if (slot.worker->said_hello()) ready = true;
      if (slot.worker->state() == Worker::State::kStarting) starting = slot.worker.get();
    }
    std::string text;
    if (ready) {
      text = fmt::format("no place became free in time among {} processes of `{}` x {} episodes",
                         options_->processes, fmt::join(options_->command, " "),
                         options_->episodes_per_process);
    } else if (starting != nullptr) {
      text = fmt::format("the environment did not get ready in time: {}", starting->Starting());
    } else {
      return Unavailable(fmt::format("the environment did not get ready in time; failed starts: {}",
                                     stats_.failed_starts) +
                         LastFailure());
    }
    return DeadlineExceeded(text + LastFailure());
  }
  std::string LastFailure() const {
    if (last_failure_.ok()) return "";
    return fmt::format("; the last process that failed: {}", last_failure_.message());
  }

  void FailWaiters(const Status& reason) {
    for (auto& [ticket, waiting] : waiters_) waiting.Set(reason);
    waiters_.clear();
  }

  Task<void> AllEnded(TimePoint deadline) {
    RememberDead();
    if (ending_.empty()) co_return;
    all_ended_.emplace(loop_);
    const uint64_t timer = At(deadline, [](Core& core) { core.all_ended_->Set(false); });
    co_await all_ended_->Wait();
    loop_.Cancel(timer);
  }

  void RememberDead() {
    std::erase_if(ending_, [this](const std::shared_ptr<Worker>& worker) {
      if (worker->state() != Worker::State::kDead) return false;
      Remember(*worker);
      return true;
    });
  }

  // A line beside what the processes said themselves, if anything was not as it should be.
  void LogStats() const {
    if (stats_.failed_starts + stats_.crashed + stats_.recycled + stats_.late_answers == 0) return;
    log_->Append(
        fmt::format("forebay: of {} environment processes that got ready {} crashed and {} were "
                    "replaced because "
                    "episodes hung in them; {} did not get ready; {} answers were late\n",
                    stats_.started, stats_.crashed, stats_.recycled, stats_.failed_starts,
                    stats_.late_answers));
  }

  // A worker's counts outlive it.
  void Remember(const Worker& worker) {
    stats_.late_answers += worker.late_answers();
    if (worker.said_hello()) ++stats_.started;
  }

  template <typename Fn>
  void ForEachWorker(Fn fn) const {
    for (const Slot& slot : slots_) {
      if (slot.worker) fn(*slot.worker);
    }
    for (const auto& worker : ending_) fn(*worker);
  }

  uint64_t At(TimePoint when, std::function<void(Core&)> fn) {
    return loop_.RunAt(when, [weak = weak_from_this(), fn = std::move(fn)] {
      if (const auto self = weak.lock()) fn(*self);
    });
  }

  Loop& loop_;
  std::shared_ptr<const SubprocessOptions> options_;
  std::shared_ptr<RotatingLog> log_;
  std::vector<Slot> slots_;
  std::vector<std::shared_ptr<Worker>> ending_;  // retired or dying
  std::map<uint64_t, OneShot<Place>> waiters_;   // by ticket: first come, first served
  uint64_t last_ticket_ = 0;
  bool stopping_ = false;
  bool poked_ = false;
  std::optional<OneShot<bool>> all_ended_;
  Status last_failure_;
  SubprocessStats stats_;
};

class Pool final : public SubprocessPool {
 public:
  explicit Pool(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~Pool() override { core_->KillAll(); }
  Task<Place> Acquire(TimePoint deadline) override { return Core::Acquire(core_, deadline); }
  Task<void> Shutdown(TimePoint deadline) override { return Core::Shutdown(core_, deadline); }
  SubprocessStats stats() const override { return core_->stats(); }

 private:
  std::shared_ptr<Core> core_;
};

Status Check(bool right, std::string_view option, std::string_view rule) {
  return right ? OkStatus() : InvalidArgument(fmt::format("{} must be {}", option, rule));
}

}  // namespace

Result<std::unique_ptr<SubprocessPool>> SubprocessPool::Create(Loop& loop,
                                                               SubprocessOptions options) {
  FB_RETURN_IF_ERROR(Check(!options.command.empty() && !options.command[0].empty(), "command",
                           "a list that begins with a program, e.g. [\"python3\", \"env.py\"]"));
  FB_RETURN_IF_ERROR(
      Check(options.processes >= 1 && options.processes <= 1024, "processes", "1 to 1024"));
  FB_RETURN_IF_ERROR(
      Check(options.episodes_per_process >= 1 && options.episodes_per_process <= 65536,
            "episodes_per_process", "1 to 65536"));
  FB_RETURN_IF_ERROR(
      Check(options.line_bytes_max >= 1024 && options.line_bytes_max <= (size_t{1} << 30),
            "line_bytes_max", "1 KiB to 1 GiB"));
  FB_RETURN_IF_ERROR(Check(options.start_failures_max >= 1, "start_failures_max", "1 or more"));
  FB_RETURN_IF_ERROR(Check(options.hung_episodes_max >= 1, "hung_episodes_max", "1 or more"));
  FB_RETURN_IF_ERROR(
      Check(options.memory_bytes_max >= 0, "memory_bytes_max", "0 (no limit) or more"));
  for (const auto& [name, value] : options.environment) {
    FB_RETURN_IF_ERROR(Check(!name.empty() && name.find('=') == std::string::npos,
                             "the name of a variable", "without '=' and not empty"));
  }
  return std::unique_ptr<SubprocessPool>(
      std::make_unique<Pool>(std::make_shared<Core>(loop, std::move(options))));
}

}  // namespace forebay::env
