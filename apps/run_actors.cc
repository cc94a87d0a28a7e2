#include "apps/run_actors.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/environment_setup.h"
#include "apps/failure_watch.h"
#include "forebay/base/clock.h"
#include "forebay/base/lag.h"
#include "forebay/base/loop.h"
#include "forebay/base/mutex.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/base/worker_pool.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/coordinator.h"
#include "forebay/env/cancellable.h"
#include "forebay/rollout/actors.h"
#include "forebay/rollout/engine.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

constexpr uint64_t kEvalSeed = 3;  // control/coordinator.cc derives 1 and 2
constexpr Duration kDrainDeadline = std::chrono::seconds(20);
// Of a run that was interrupted or failed: for episodes that the engine is at work on (those that
// wait for an environment end at once), and for environments to end by themselves.
constexpr Duration kAbortDrain = std::chrono::seconds(5);
constexpr Duration kAbortGrace = std::chrono::seconds(2);

// An append takes milliseconds, unless it waits for room.
constexpr Duration kAppendWaits = std::chrono::seconds(2);
constexpr Duration kDiskFullPause = std::chrono::milliseconds(500);
// For templates, tokenizing and encoding; the loop that times everything has none of it.
constexpr int kTextWorkers = 2;

// Whether the engine samples a token.
Task<Status> ProbeEngine(Loop& loop, rollout::Engine& engine) {
  Completion<Status> done(loop);
  rollout::GenerateRequest request;
  request.prompt = {0};
  request.new_tokens_max = 1;
  request.deadline = loop.Now() + std::chrono::seconds(60);
  engine.Generate(std::move(request), [done](const Result<rollout::GenerateResult>& result) {
    done.Set(result.status());
  });
  co_return co_await done.Wait();
}

Task<void> Keep(Task<Status> task, Status* status) { *status = co_await std::move(task); }

}  // namespace

// What actors see of the coordinator and the buffer. Lives on the loop.
class RunActors::Client final : public rollout::ActorClient {
 public:
  explicit Client(RunActors* owner)
      : owner_(*owner),
        watch_(
            *owner->loop_,
            {.environment = owner->deps_.config->env.name,
             .tokens_max = owner->deps_.config->rollout.tokens_max,
             .actors = owner->deps_.config->rollout.actors},
            {.probe_engine = [owner] { return ProbeEngine(*owner->loop_, *owner->deps_.engine); },
             .probe_environment = [this] { return owner_.Check([this] { return stopped_; }); },
             .fail = [owner](const Status& why) { owner->deps_.on_failure(why); },
             .log = [owner](const std::string& line) { owner->deps_.run->Log(line); }}) {}

  Task<Result<Assignment>> Next() override {
    while (true) {
      if (stopped_) co_return Cancelled("the run ends");
      auto next = owner_.coordinator_->TryNext();
      if (!next.ok()) {
        watch_.Fail(next.status());
        co_return next.status();
      }
      if (next->has_value()) co_return **next;
      Completion<bool> wake(*owner_.loop_);
      waiters_.push_back(wake);
      co_await wake.Wait();
    }
  }

  Task<Status> Finish(Trajectory trajectory) override {
    const TrajectoryId id = trajectory.id;
    const Outcome outcome = trajectory.outcome;
    const bool acted = trajectory.loss_tokens() > 0;
    std::string line;
    Task<std::string> encoding =
        Offload(owner_.loop_.get(), owner_.workers_.get(), [&line, &trajectory] {
          line = control::TrajectoryLine(trajectory);
          return Encode(trajectory);
        });
    const std::string encoded = co_await std::move(encoding);
    Task<Status> appending = AppendUntilStored(encoded);
    Status status = co_await std::move(appending);
    // What stands there was acknowledged, which is not to say that it is trained on: the ledger may
    // reject it as stale or count it as late.
    if (status.ok()) owner_.deps_.run->WriteTrajectory(line);
    if (status.code() == StatusCode::kNotFound) {
      status = OkStatus();  // late: its group was closed meanwhile; counted by the ledger
    } else if (status.code() == StatusCode::kUnavailable) {
      watch_.Fail(status);
    } else if (!status.ok()) {
      // Not stored (the buffer stayed full): the attempt ends here and the member plays again.
      owner_.deps_.run->Log("a finished trajectory was not stored: " + status.message());
      status = owner_.buffer_->Reject(id, buffer::RejectReason::kOutcome);
    }
    Task<void> noting = watch_.NoteEnd(outcome, acted);
    co_await std::move(noting);
    co_return status;
  }

  // A full disk refuses at once but may clear, so it is asked again until append_deadline_s: to
  // play another episode meanwhile would only lose that one too.
  Task<Status> AppendUntilStored(const std::string& encoded) {
    const TimePoint deadline =
        owner_.loop_->Now() + FromSeconds(owner_.deps_.config->buffer.append_deadline_s);
    const Waiting waiting(*this, owner_.loop_->Now());
    while (true) {
      Completion<Status> done(*owner_.loop_);
      owner_.buffer_->AppendEncoded(encoded, {.deadline = deadline},
                                    [done](Status status) { done.Set(std::move(status)); });
      Status status = co_await done.Wait();
      const TimePoint again = owner_.loop_->Now() + kDiskFullPause;
      if (status.code() != StatusCode::kResourceExhausted || again >= deadline || stopped_) {
        co_return status;
      }
      co_await owner_.loop_->SleepUntil(again);
    }
  }

  FailureWatch& watch() { return watch_; }

  // Any thread.
  bool AppendsWait() const {
    MutexLock lock(mutex_);
    return !appending_since_.empty() && Now() - *appending_since_.begin() > kAppendWaits;
  }

  void WakeAll() {
    for (const Completion<bool>& waiter : std::exchange(waiters_, {})) waiter.Set(true);
  }
  void Stop() {
    stopped_ = true;
    watch_.Stop();
    WakeAll();
  }

 private:
  // Notes an append while it lives.
  class Waiting {
   public:
    Waiting(Client& client, TimePoint since) : client_(client) {
      MutexLock lock(client_.mutex_);
      at_ = client_.appending_since_.insert(since);
    }
    ~Waiting() {
      MutexLock lock(client_.mutex_);
      client_.appending_since_.erase(at_);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Client& client_;
    std::multiset<TimePoint>::iterator at_;
  };

  RunActors& owner_;
  FailureWatch watch_;
  std::vector<Completion<bool>> waiters_;
  mutable Mutex mutex_;
  std::multiset<TimePoint> appending_since_ FB_GUARDED_BY(mutex_);
  bool stopped_ = false;
};

RunActors::RunActors(const Deps& deps)
    : deps_(deps),
      loop_(MakeLoop()),
      workers_(std::make_unique<WorkerPool>(kTextWorkers)),
      client_(std::make_unique<Client>(this)) {
  thread_ = std::thread([this] { loop_->Run(); });
}

bool RunActors::AppendsWait() const { return client_->AppendsWait(); }

RunActors::Lag RunActors::TakeLag() {
  LagHistogram& lag = loop_->lag();
  const Lag taken{.p99_s = Seconds(lag.Percentile(0.99)), .max_s = Seconds(lag.max())};
  lag.Clear();
  return taken;
}

RunActors::~RunActors() {
  Drain(kDrainDeadline);
  OnLoop([this] {
    pool_.reset();
    environments_.reset();
  });
  loop_->Stop();
  thread_.join();    // may wait: the destructor's thread is another one
  workers_.reset();  // jobs of abandoned episodes, with what they refer to still there
  harness_.reset();  // an abandoned episode that had ended since would have asked for it
}

void RunActors::OnLoop(const std::function<void()>& fn) {
  std::promise<void> done;
  loop_->Post([&] {
    fn();
    done.set_value();
  });
  done.get_future().wait();  // may wait: the caller's thread is another one
}

void RunActors::Await(std::function<Task<void>()> make) {
  std::promise<void> done;
  loop_->Post([&] { loop_->Spawn(make(), [&] { done.set_value(); }); });
  done.get_future().wait();  // may wait: the caller's thread is another one
}

Result<std::unique_ptr<RunActors>> RunActors::Create(const Deps& deps) {
  std::unique_ptr<RunActors> actors(new RunActors(deps));
  Status status;
  actors->OnLoop([&] { status = actors->MakePlayers(); });
  FB_RETURN_IF_ERROR(status);
  actors->Await([&] { return Keep(actors->Check(nullptr), &status); });
  FB_RETURN_IF_ERROR(status);
  return actors;
}

Status RunActors::MakePlayers() {
  const control::Config& c = *deps_.config;
  if (c.env.kind == "harness") {
    FB_ASSIGN_OR_RETURN(
        harness_, HarnessEpisodes::Start(*loop_, c, *deps_.model, deps_.engine, workers_.get()));
    return OkStatus();
  }
  FB_RETURN_IF_ERROR(rollout::CheckEpisodeSetup(*deps_.model->tokenizer, *deps_.model->chat,
                                                Episode("train", c.rollout.temperature)));
  FB_ASSIGN_OR_RETURN(environments_, MakeEnvironment(c, deps_.run->path() + "/environment.log",
                                                     *loop_, workers_.get()));
  return OkStatus();
}

Task<Status> RunActors::Check(std::function<bool()> abort) {
  if (harness_) return harness_->Check(std::move(abort));
  const control::EnvSection& e = deps_.config->env;
  return CheckEnvironment(*loop_, *environments_, FromSeconds(e.start_deadline_s),
                          FromSeconds(e.reset_deadline_s));
}

buffer::BufferListener RunActors::listener() {
  buffer::BufferListener listener;
  listener.on_rejected = [this](const TrajectoryId& id, buffer::RejectReason reason) {
    loop_->Post([this, id, reason] {
      if (coordinator_) coordinator_->OnRejected(id, reason);
    });
  };
  // Not on the log's own thread: ending the run closes the buffer, which waits for that thread.
  listener.on_failure = [this](const Status& status) {
    loop_->Post([this, status] { deps_.on_failure(status); });
  };
  return listener;
}

rollout::EpisodeOptions RunActors::Episode(const std::string& split, double temperature) const {
  const control::Config& c = *deps_.config;
  rollout::EpisodeOptions options;
  options.environment = c.env.name;
  options.split = split;
  options.temperature = temperature;
  options.turns_max = static_cast<int32_t>(c.rollout.turns_max);
  options.new_tokens_per_turn_max = static_cast<int32_t>(c.rollout.new_tokens_per_turn_max);
  options.tokens_max = static_cast<int32_t>(c.rollout.tokens_max);
  options.reset_deadline = FromSeconds(c.env.reset_deadline_s);
  options.step_deadline = FromSeconds(c.env.step_deadline_s);
  options.generate_deadline = FromSeconds(c.rollout.generate_deadline_s);
  options.stop_tokens = deps_.model->stop_tokens;
  options.bos_token = deps_.model->bos_token;
  options.eos_token = deps_.model->eos_token;
  options.workers = workers_.get();
  options.on_failure = [client = client_.get()](const TrajectoryId& id, Outcome outcome,
                                                const Status& status) {
    client->watch().NoteFailure(id, outcome, status);
  };
  return options;
}

rollout::EpisodePlayer RunActors::Player(const std::string& split, double temperature) const {
  const rollout::EpisodeOptions options = Episode(split, temperature);
  if (harness_) return harness_->Player(split, temperature, options.on_failure);
  return rollout::MakeEpisodePlayer({.loop = loop_.get(),
                                     .engine = deps_.engine,
                                     .environments = environments_.get(),
                                     .tokenizer = deps_.model->tokenizer.get(),
                                     .chat = deps_.model->chat.get()},
                                    options);
}

void RunActors::Start(control::Coordinator* coordinator, buffer::Buffer* buffer) {
  OnLoop([&] {
    coordinator_ = coordinator;
    buffer_ = buffer;
    coordinator->SetWake([this] { loop_->Post([this] { client_->WakeAll(); }); });
    pool_ =
        rollout::ActorPool::Create({.loop = loop_.get(),
                                    .client = client_.get(),
                                    .play = Player("train", deps_.config->rollout.temperature)});
    pool_->Resize(deps_.config->rollout.actors);
  });
}

// ---- evaluation

struct RunActors::EvalState {
  explicit EvalState(Loop& loop) : done(loop) {}
  int64_t next = 0, running = 0;
  EvalResult result;
  Completion<bool> done;
};

Task<void> RunActors::EvaluateSome(std::shared_ptr<EvalState> state) {
  const control::EvalSection& eval = deps_.config->eval;
  const rollout::EpisodePlayer play = Player("eval", eval.temperature);
  const std::function<bool()> aborted = [this] { return aborted_.load(); };
  while (state->next < eval.tasks * eval.samples && !aborted_) {
    const int64_t i = state->next++;
    Assignment assignment;
    assignment.id.trajectory_id = i + 1;
    assignment.id.group_id = assignment.id.task_id = i / eval.samples;
    assignment.id.member = static_cast<int32_t>(i % eval.samples);
    assignment.seed = DeriveSeed(static_cast<uint64_t>(deps_.config->run.seed), kEvalSeed,
                                 static_cast<uint64_t>(i));
    Task<Trajectory> playing = play(assignment, aborted);
    const Trajectory t = co_await std::move(playing);
    EvalResult& r = state->result;
    if (!Trains(t.outcome)) {
      ++r.failed;
      continue;
    }
    ++r.episodes;
    r.reward += t.reward();
    for (const auto& [component, reward] : t.rewards) r.components[component] += reward;
  }
  if (--state->running == 0) state->done.Set(true);
}

Task<void> RunActors::EvaluateAll(EvalResult* result) {
  const control::Config& c = *deps_.config;
  if (c.eval.tasks == 0) co_return;
  const TimePoint start = loop_->Now();
  auto state = std::make_shared<EvalState>(*loop_);
  const int64_t most = harness_ ? c.rollout.actors : 2 * c.rollout.slots;  // each a process
  state->running = std::min(c.eval.tasks * c.eval.samples, most);
  for (int64_t i = state->running; i > 0; --i) loop_->Spawn(EvaluateSome(state));
  co_await state->done.Wait();
  *result = state->result;
  result->seconds = Seconds(loop_->Now() - start);
  if (result->episodes == 0) co_return;
  result->reward /= static_cast<double>(result->episodes);
  for (auto& [component, reward] : result->components)
    reward /= static_cast<double>(result->episodes);
}

EvalResult RunActors::Evaluate() {
  EvalResult result;
  Await([&] { return EvaluateAll(&result); });
  return result;
}

// ---- the end

void RunActors::Abort() {
  aborted_ = true;
  loop_->Post([this] {
    if (coordinator_) coordinator_->Stop();
    client_->Stop();
    if (environments_) environments_->Cancel(Cancelled("the run was ended"));
  });
}

Task<void> RunActors::EndEnvironments(TimePoint deadline) {
  if (!environments_) co_return;
  environments_->Cancel(Cancelled("the run was ended"));
  Task<void> ending = environments_->Shutdown(deadline);
  co_await std::move(ending);
}

Task<void> RunActors::DrainAll(TimePoint deadline) {
  if (coordinator_) coordinator_->Stop();
  client_->Stop();
  TimePoint environments_deadline = deadline;
  if (aborted_) {
    deadline = std::min(deadline, loop_->Now() + kAbortDrain);
    environments_deadline = loop_->Now() + kAbortGrace;
  }
  // At the same time: an episode may wait for its environment, and that does not end by itself.
  const OneShot<bool> ended(*loop_);
  loop_->Spawn(EndEnvironments(environments_deadline), [ended] { ended.Set(true); });
  if (pool_) {
    Task<int64_t> draining = pool_->Drain(deadline);
    const int64_t left = co_await std::move(draining);
    if (left > 0)
      deps_.run->Log(std::to_string(left) + " episodes did not end in time and were abandoned");
  }
  auto waiting = ended.Wait();
  co_await waiting;
  if (harness_) {
    Task<void> stopping = harness_->Stop(deadline);
    co_await std::move(stopping);
  }
}

void RunActors::Drain(Duration deadline) {
  if (std::exchange(drained_, true)) return;
  Await([&] { return DrainAll(loop_->Now() + deadline); });
}

}  // namespace forebay::apps
