#include "apps/train_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "apps/adapter_setup.h"
#include "apps/engine_setup.h"
#include "apps/interrupt.h"
#include "apps/mesh_check.h"
#include "apps/model_setup.h"
#include "apps/progress.h"
#include "apps/report.h"
#include "apps/room_options.h"
#include "apps/run_actors.h"
#include "apps/run_record.h"
#include "apps/servers_gap.h"
#include "apps/step_log.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/control/coordinator.h"
#include "forebay/control/run_directory.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/learner.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/http_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::apps {
namespace {

constexpr Duration kDrainDeadline = std::chrono::seconds(30);
// As long as servers may take to load weights.
constexpr Duration kLastWeightsDeadline = std::chrono::minutes(10);

// One run. Members are declared in the order in which they are made; Shutdown ends them in the
// order in which data flows, each stage with a deadline.
class TrainRun {
 public:
  TrainRun(control::Config config, const TrainRunOptions& options)
      : config_(std::move(config)), options_(options), progress_(options.quiet) {}
  ~TrainRun() { Shutdown(); }

  Result<RunReport> Run() {
    FB_RETURN_IF_ERROR(Open());
    FB_RETURN_IF_ERROR(Compile());
    FB_RETURN_IF_ERROR(Connect());
    return Train();
  }

 private:
  // Run directory, model, and where to start from.
  Status Open() {
    // What may be refused at once is, before an old run is deleted for it.
    FB_RETURN_IF_ERROR(ReadModel(config_).status());
    FB_RETURN_IF_ERROR(CheckDevices(config_));
    FB_ASSIGN_OR_RETURN(run_, control::RunDirectory::Open(options_.run, options_.mode));
    progress_.Say("loading " + config_.model.path);
    FB_ASSIGN_OR_RETURN(model_, LoadModel(config_));
    FB_RETURN_IF_ERROR(CheckAgent(config_, model_));
    start_.train.params = std::move(model_.initial);
    if (options_.mode == control::OpenMode::kResume) {
      auto checkpoint =
          learner::LoadLatestCheckpoint(run_->checkpoints_path(), &start_.train.params);
      if (checkpoint.ok()) {
        for (const std::string& note : checkpoint->notes) Note(note);
        FB_RETURN_IF_ERROR(learner::CheckBase(checkpoint->data.state.train, start_.train.params));
        start_ = std::move(checkpoint->data.state);
        app_state_ = std::move(checkpoint->data.app_state);
        FB_RETURN_IF_ERROR(CheckUnfinished());
        Note("resuming after step " + std::to_string(start_.step));
      } else if (checkpoint.status().code() == StatusCode::kNotFound) {
        Note("no checkpoint yet: starting from the model's own weights");
      } else {
        return checkpoint.status();
      }
    }
    return OkStatus();
  }

  // Another report of a finished run would say that nothing was trained.
  Status CheckUnfinished() const {
    const std::string report = run_->path() + "/report.json";
    std::error_code error;
    if (start_.step < config_.run.steps || !std::filesystem::exists(report, error)) {
      return OkStatus();
    }
    return AlreadyExists(
        "'" + run_->path() + "' has taken all of its " + std::to_string(config_.run.steps) +
        " steps, and " + report +
        " says how it went. To go on: --set run.steps=" + std::to_string(2 * config_.run.steps));
  }

  // The two halves of the compute: a client each, so that a decode step never waits behind an
  // optimizer step.
  Status Compile() {
    progress_.Say("compiling");
    FB_ASSIGN_OR_RETURN(const std::string plugin,
                        xla::FindPlugin(config_.Resolve(config_.device.plugin)));
    xla::ClientOptions client{.plugin_path = plugin,
                              .cache_dir = config_.Resolve(config_.device.cache_dir)};
    FB_ASSIGN_OR_RETURN(engine_client_, xla::Client::Create(client));
    client.cpu_device_count = static_cast<int>(config_.device.virtual_devices);
    FB_ASSIGN_OR_RETURN(learner_client_, xla::Client::Create(client));
    start_record_ = MakeStart(config_, start_.step, PluginName(*learner_client_));
    learner::LearnerOptions options = MakeLearnerOptions(config_, run_->checkpoints_path());
    options.config_hash = start_record_.config_id;
    FB_ASSIGN_OR_RETURN(learner_,
                        learner::Learner::Create(options, *learner_client_, *model_.model, start_));
    if (!config_.rollout.servers.empty()) progress_.Say("asking the rollout servers");
    FB_ASSIGN_OR_RETURN(const rollout::FirstAdapter adapter, MakeFirstAdapter(config_, *learner_));
    // Nobody should look at a run that waits for minutes and says nothing.
    const auto waiting = std::make_shared<std::atomic<bool>>(true);
    FB_ASSIGN_OR_RETURN(
        engine_, MakeRunEngine(config_, *engine_client_, model_, *learner_->snapshot(), adapter,
                               run_->path(), [this, waiting](const std::string& sentence) {
                                 run_->Log(sentence);
                                 if (*waiting) progress_.Say(sentence);
                               }));
    *waiting = false;
    start_.train = {};  // the learner has its own copy on the device
    return OkStatus();
  }

  // Environment, buffer, coordinator.
  Status Connect() {
    progress_.Say("starting environment '" + config_.env.name + "'");
    FB_ASSIGN_OR_RETURN(
        actors_, RunActors::Create({.config = &config_,
                                    .model = &model_,
                                    .engine = engine_.get(),
                                    .run = run_.get(),
                                    .on_failure = [this](const Status& status) { Fail(status); }}));
    {
      MutexLock lock(mutex_);
      failing_actors_ = actors_.get();
    }
    buffer::Recovery recovery;
    FB_ASSIGN_OR_RETURN(
        buffer_, buffer::Buffer::Open(MakeBufferOptions(config_, run_->buffer_path()),
                                      start_.committed_batch, actors_->listener(), &recovery));
    {
      MutexLock lock(mutex_);
      failing_buffer_ = buffer_.get();
    }
    FB_RETURN_IF_ERROR(FirstFailure(OkStatus()));  // of the log, which nobody could end yet
    for (const std::string& note : recovery.notes) Note(note);
    if (options_.mode == control::OpenMode::kResume) {
      Note("buffer: " + std::to_string(buffer_->ledger().pending) + " trajectories pending, " +
           std::to_string(recovery.replay_batches) + " batches to repeat, " +
           std::to_string(recovery.missing.size()) + " episodes to play again");
    }
    coordinator_ = std::make_unique<control::Coordinator>(MakeCoordinatorOptions(config_),
                                                          buffer_.get(), recovery);
    if (const Status kept = coordinator_->RestoreState(app_state_); !kept.ok()) {
      Note("quarantined tasks are forgotten: " + kept.message());
    }
    coordinator_->OnPublished(start_.policy_version, buffer_->ledger().trained);
    // Only now is it a run. A resumed one may have been told something new: the next resume and
    // export read it here.
    FB_RETURN_IF_ERROR(
        WriteFileAtomic(run_->path() + "/config.toml", control::FormatConfig(config_)));
    run_->WriteStart(StartLine(start_record_));
    return OkStatus();
  }

  Result<RunReport> Train() {
    RunReport report;
    report.run = run_->path();
    report.mode = config_.run.mode;
    report.steps_target = config_.run.steps;
    report.max_staleness = MaxStaleness(config_);

    Interrupt interrupt([this] { Interrupted(); });
    if (start_.step == 0) report.before = Evaluate("before training");
    warm_programs_ = Compiled();
    actors_->Start(coordinator_.get(), buffer_.get());
    StepLog log({.config = &config_,
                 .config_id = start_record_.config_id,
                 .run = run_.get(),
                 .progress = &progress_,
                 .buffer = buffer_.get(),
                 .engine = engine_.get(),
                 .report = &report,
                 .take_lag = [this] { return actors_->TakeLag(); },
                 .compiles_after_warmup = [this] { return Recompiles(); }});

    ServersGap servers_gap(config_);
    learner::LearnerHooks hooks;
    hooks.publish = [this](std::shared_ptr<const weights::Snapshot> snapshot) {
      Publish(std::move(snapshot));
    };
    hooks.metrics = [&](const learner::StepMetrics& metrics) {
      log.Step(metrics);
      LookAtFolder();
      if (const auto doubt = servers_gap.Look(metrics)) Note(*doubt);
    };
    hooks.checkpoint_wanted = [this] { return actors_->AppendsWait(); };
    hooks.app_state = [this] { return coordinator_->SaveState(); };
    hooks.checkpoint = [&](const learner::CheckpointReport& written) {
      if (written.status.ok()) {
        run_->Log("checkpoint of step " + std::to_string(written.step) + " written");
      } else {
        const std::string sentence = "checkpoint of step " + std::to_string(written.step) +
                                     " failed: " + written.status.message();
        run_->Log(sentence);
        std::fprintf(stderr, "forebay: %s\n", sentence.c_str());  // any thread, unlike progress_
      }
    };
    Status status = learner_->Run(*buffer_, hooks, stop_.get_token());
    progress_.End();
    log.Finish();
    FB_RETURN_IF_ERROR(FirstFailure(WithReason(status)));

    coordinator_->Stop();
    // Servers that keep their weights cannot play on the trained ones.
    if (learner_->step() >= config_.run.steps && config_.rollout.reload) {
      if (WeightsArrived()) report.after = Evaluate("after training");
    }
    actors_->Drain(kDrainDeadline);
    report.ledger = buffer_->ledger();
    report.quarantined_tasks = coordinator_->stats().quarantined_tasks;
    report.programs = Compiled();
    report.compiles_after_warmup = Recompiles();
    report.checkpoint = run_->checkpoints_path();
    FB_RETURN_IF_ERROR(WriteFileAtomic(run_->path() + "/report.json", ReportJson(report)));
    FB_RETURN_IF_ERROR(run_->status());
    return report;
  }

  // After each step: a full disk may have room again, and is told at once; a folder that is gone
  // ends the run, of which nothing would be left.
  void LookAtFolder() {
    if (const Status there = run_->StillThere(); !there.ok()) return Fail(there);
    const Status written = run_->status();
    if (written.ok() || lines_missing_) return;
    lines_missing_ = true;
    progress_.End();
    std::fprintf(stderr, "forebay: %s\n", written.message().c_str());
  }

  // Why the learner's run ended. Where episodes cannot be stored, no batch comes either.
  Status WithReason(const Status& status) {
    if (status.code() != StatusCode::kDeadlineExceeded || !actors_->AppendsWait()) return status;
    return ResourceExhausted("finished episodes wait for room in '" + run_->buffer_path() +
                             "' (is the disk full?): " + status.message());
  }

  void Publish(std::shared_ptr<const weights::Snapshot> snapshot) {
    const int64_t version = snapshot->policy_version;
    const int64_t trained = buffer_->ledger().trained;
    const auto taken = [this, version, trained](const Status& status) {
      if (status.ok()) {
        coordinator_->OnPublished(version, trained);
      } else if (status.code() != StatusCode::kCancelled && !engine_ended_) {
        // Cancelled: a newer one took its place.
        Fail(status.WithContext("the engine did not take version " + std::to_string(version)));
      }
    };
    auto* servers = dynamic_cast<rollout::HttpEngine*>(engine_.get());
    if (servers == nullptr || !PublishesAdapters(config_)) {
      return engine_->Publish(std::move(snapshot), taken);
    }
    const Result<learner::LearnerState> state = learner_->State();
    if (!state.ok()) return taken(state.status());
    servers->PublishAdapter(std::move(snapshot), MakeAdapterWriter(config_, state->train), taken);
  }

  // The evaluation after training plays on the last weights, or not at all: on older ones it would
  // be a figure for something else.
  bool WeightsArrived() {
    const TimePoint deadline = Now() + kLastWeightsDeadline;
    while (engine_->policy_version() < learner_->policy_version()) {
      if (!FirstFailure(OkStatus()).ok()) return false;
      if (Now() >= deadline) {
        Note(fmt::format(
            "no evaluation after training: {} s after the last step the engine still has version "
            "{} of {}",
            std::chrono::duration_cast<std::chrono::seconds>(kLastWeightsDeadline).count(),
            engine_->policy_version(), learner_->policy_version()));
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  std::optional<EvalResult> Evaluate(const std::string& when) {
    if (config_.eval.tasks == 0) return std::nullopt;
    progress_.Say("evaluating " + when + " on " + std::to_string(config_.eval.tasks) +
                  " held-out tasks");
    EvalResult result = actors_->Evaluate();
    if (!FirstFailure(OkStatus()).ok()) return std::nullopt;  // cut short: it says nothing
    run_->WriteEval(EvalLine(learner_->step(), result));
    return result;
  }

  // Any thread. The first failure ends the run: the learner's lease fails with it.
  void Fail(const Status& status) {
    RunActors* actors = nullptr;
    buffer::Buffer* buffer = nullptr;
    {
      MutexLock lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = status;
      actors = failing_actors_;
      buffer = failing_buffer_;
    }
    run_->Log("the run stops: " + status.message());
    stop_.request_stop();
    if (actors) actors->Abort();
    if (buffer) buffer->Close();
  }
  void Interrupted() {
    run_->Log("interrupted");
    progress_.Say(
        "interrupted: finishing the step under way and writing a checkpoint; a second time ends "
        "the "
        "program at once (--resume goes on from there, too)");
    Fail(Cancelled("interrupted; go on with: forebay train --resume " + options_.run));
  }
  // The cause if there is one, else `status`: a closed buffer is only the symptom.
  Status FirstFailure(const Status& status) {
    MutexLock lock(mutex_);
    return failure_.ok() ? status : failure_;
  }

  int64_t Compiled() const {
    return engine_client_->counters().compiled + learner_client_->counters().compiled;
  }
  // Without those that the learner compiles ahead, which nothing waits for. (Of those, what the
  // cache on disk had was not compiled at all.)
  int64_t Recompiles() const {
    return std::max<int64_t>(0, Compiled() - warm_programs_ - learner_->programs_ahead());
  }
  void Note(const std::string& sentence) {
    run_->Log(sentence);
    progress_.Say(sentence);
  }

  void Shutdown() {
    if (coordinator_) coordinator_->Stop();
    if (actors_) actors_->Drain(kDrainDeadline);
    engine_ended_ = true;  // weights that it does not take any more are no failure
    if (engine_) engine_->Shutdown();
    if (buffer_) buffer_->Close();
    {
      MutexLock lock(mutex_);
      failing_actors_ = nullptr;
    }
    actors_.reset();  // joins the loop, the last user of buffer and coordinator
  }

  const control::Config config_;
  const TrainRunOptions options_;
  Progress progress_;
  Mutex mutex_;
  Status failure_ FB_GUARDED_BY(mutex_);
  // What a failure ends: set when it is made, read by whichever thread fails.
  RunActors* failing_actors_ FB_GUARDED_BY(mutex_) = nullptr;
  buffer::Buffer* failing_buffer_ FB_GUARDED_BY(mutex_) = nullptr;
  std::stop_source stop_;
  std::atomic<bool> engine_ended_ = false;
  bool lines_missing_ = false;  // told once; on the learner's thread
  int64_t warm_programs_ = 0;

  std::unique_ptr<control::RunDirectory> run_;
  LoadedModel model_;
  learner::LearnerState start_;
  std::string app_state_ = "{}";  // of the restored checkpoint: the coordinator's
  StartRecord start_record_;
  std::unique_ptr<xla::Client> engine_client_, learner_client_;
  std::unique_ptr<learner::Learner> learner_;
  std::unique_ptr<rollout::Engine> engine_;
  std::unique_ptr<RunActors> actors_;
  std::unique_ptr<buffer::Buffer> buffer_;
  std::unique_ptr<control::Coordinator> coordinator_;
};

}  // namespace

Result<RunReport> RunTraining(const control::Config& config, const TrainRunOptions& options) {
  TrainRun run(config, options);
  return run.Run();
}

std::string DefaultRunFolder(const std::string& config_path) {
  return "runs/" + std::filesystem::path(config_path).stem().string();
}

}  // namespace forebay::apps
