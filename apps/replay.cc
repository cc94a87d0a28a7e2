#include "apps/replay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/logged_batches.h"
#include "apps/model_setup.h"
#include "apps/room_options.h"
#include "apps/run_record.h"
#include "apps/tensor_difference.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/control/config.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/fingerprint.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/step_metrics.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"

namespace forebay::apps {
namespace {

using learner::CheckpointInfo;

constexpr const char* kStart = "the weights that the run began with";

// Other keys say how trajectories come about: the log holds what came of it.
bool ShapesAStep(std::string_view key) {
  if (key == "rollout.tokens_max" || key == "buffer.max_staleness") return true;
  if (key == "run.folder" || key == "device.cache_dir") return false;
  return key.starts_with("run.") || key.starts_with("model.") || key.starts_with("device.") ||
         key.starts_with("learner.");
}

std::string Place(int64_t from_step) {
  return from_step == 0 ? kStart : fmt::format("the checkpoint of step {}", from_step);
}

// Optimizer state "m.NAME", ... by its slot.
std::map<std::string, weights::TensorMap> BySlot(const weights::TensorMap& state) {
  std::map<std::string, weights::TensorMap> out;
  for (const auto& [name, tensor] : state) out[name.substr(0, name.find('.'))][name] = tensor;
  return out;
}
std::string SlotName(const std::string& slot) {
  if (slot == "m") return "checkpoint first moments";
  if (slot == "v") return "checkpoint second moments";
  return "checkpoint optimizer state " + slot;
}

// What a replay may start from, oldest first.
std::vector<CheckpointInfo> Bases(const std::string& run) {
  std::vector<CheckpointInfo> bases = {{}};  // step 0: no file, the model's own weights
  for (CheckpointInfo& info : learner::ListCheckpoints(run + "/checkpoints")) {
    if (info.step > 0) bases.push_back(std::move(info));
  }
  return bases;
}

bool IsRunning(const std::string& run) {
  const Fd lock(::open((run + "/lock").c_str(), O_RDONLY | O_CLOEXEC));
  return lock.valid() && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

Result<ReplayableSteps> Replayable(const RunRecord& record, const std::string& run,
                                   LoggedBatches& log) {
  ReplayableSteps out{.first_recorded = record.steps.begin()->first,
                      .last_recorded = record.steps.rbegin()->first};
  for (const CheckpointInfo& base : Bases(run)) {
    if (base.step >= out.last_recorded) continue;
    FB_ASSIGN_OR_RETURN(
        const int64_t batches,
        log.CountAfter(base.committed_batch, base.committed_batch + out.last_recorded - base.step));
    if (batches > 0) out.ranges.push_back({base.step, base.step + 1, base.step + batches});
  }
  return out;
}

Result<std::unique_ptr<LoggedBatches>> OpenLog(const control::Config& config,
                                               const std::string& run) {
  return LoggedBatches::Open(MakeBufferOptions(config, run + "/buffer"));
}

class Replayer {
 public:
  explicit Replayer(const ReplayOptions& options) : options_(options) {}

  Result<Replay> Run() {
    FB_ASSIGN_OR_RETURN(record_, ReadRunRecord(options_.run));
    FB_RETURN_IF_ERROR(CheckStep());
    FB_ASSIGN_OR_RETURN(config_, ConfigOfStep(record_, options_.step, options_.sets));
    FB_RETURN_IF_ERROR(CompareConfigs());
    FB_ASSIGN_OR_RETURN(log_, OpenLog(config_->config, options_.run));
    if (IsRunning(options_.run)) {
      out_.notes.push_back("a program still runs there: what it removes meanwhile cannot be read");
    }
    FB_RETURN_IF_ERROR(Restore());
    FB_RETURN_IF_ERROR(CheckOneConfig());
    FB_RETURN_IF_ERROR(CheckBatches());
    FB_RETURN_IF_ERROR(MakeLearner());
    for (int64_t step = out_.from_step + 1; step <= options_.step; ++step) {
      FB_RETURN_IF_ERROR(Step(step));
    }
    FB_RETURN_IF_ERROR(CompareCheckpoint());
    return std::move(out_);
  }

 private:
  void Say(const std::string& sentence) const {
    if (options_.say) options_.say(sentence);
  }

  Status CheckStep() {
    out_.step = options_.step;
    const int64_t last = record_.steps.rbegin()->first;
    if (options_.step < 1) {
      return InvalidArgument(
          fmt::format("there is no step {}: the first one is 1, the last recorded one {}",
                      options_.step, last));
    }
    if (options_.step > last) {
      return NotFound(fmt::format("step {} is beyond the end of the run: its last step is {}",
                                  options_.step, last));
    }
    const auto found = record_.steps.find(options_.step);
    if (found == record_.steps.end() || found->second.fingerprint.empty()) {
      return NotFound(fmt::format(
          "'{}/metrics.jsonl' has no fingerprint of step {}: it was recorded by an older program, "
          "or its line is damaged",
          options_.run, options_.step));
    }
    return OkStatus();
  }

  // What the replay does otherwise than the user may think.
  Status CompareConfigs() {
    FB_ASSIGN_OR_RETURN(const StepConfig recorded, ConfigOfStep(record_, options_.step, {}));
    for (const auto& d : control::DifferingKeys(recorded.config, config_->config)) {
      out_.notes.push_back(fmt::format("{} is {} here; step {} was taken with {}", d.key, d.right,
                                       options_.step, d.left));
    }
    const auto now = control::LoadConfig(options_.run + "/config.toml", {});
    if (!now.ok()) {
      out_.notes.push_back("config.toml cannot be read (" + now.status().message() +
                           "): the configuration that starts.jsonl recorded is used");
      return OkStatus();
    }
    for (const auto& d : control::DifferingKeys(recorded.config, *now)) {
      out_.notes.push_back(
          fmt::format("config.toml now says {} = {}; step {} was taken with {}, which is used",
                      d.key, d.right, options_.step, d.left));
    }
    return OkStatus();
  }

  // The state of the newest checkpoint before the step that is whole.
  Status Restore() {
    const std::vector<CheckpointInfo> bases = Bases(options_.run);
    for (auto base = bases.rbegin(); base != bases.rend(); ++base) {
      if (base->step >= options_.step) continue;
      if (base->step > 0) {
        auto loaded = learner::ReadCheckpoint(base->path);
        if (!loaded.ok()) {
          out_.notes.push_back(
              fmt::format("{} is not usable ({})", Place(base->step), loaded.status().message()));
          continue;
        }
        state_ = std::move(loaded->data.state);
      }
      out_.from_step = base->step;
      return OkStatus();
    }
    return Internal("a run always has the weights that it began with");
  }

  void CompareStart() {
    const auto before = record_.steps.find(out_.from_step);
    if (before == record_.steps.end()) return;
    const auto weights = before->second.fingerprint.find("weights");
    if (weights == before->second.fingerprint.end()) return;
    AddRow(out_.from_step, "weights of the checkpoint", weights->second,
           weights::Digest(learner_->snapshot()->tensors));  // what was published: adapters merged
  }

  // Steps on the way were taken under the same configuration, or their bits mean nothing here.
  Status CheckOneConfig() {
    const std::string& id = config_->start.config_id;
    for (int64_t step = out_.from_step + 1; step < options_.step; ++step) {
      const auto of_step = record_.steps.find(step);
      if (of_step == record_.steps.end() || of_step->second.config_id == id) continue;
      FB_ASSIGN_OR_RETURN(const StepConfig other, ConfigOfStep(record_, step, options_.sets));
      std::string keys;
      for (const auto& d : control::DifferingKeys(other.config, config_->config)) {
        if (!ShapesAStep(d.key)) continue;
        keys += fmt::format("{}{} ({} and {})", keys.empty() ? "" : ", ", d.key, d.left, d.right);
      }
      if (keys.empty()) continue;
      return FailedPrecondition(fmt::format(
          "step {} follows from {} by step {}, which was taken under another configuration: {}",
          options_.step, Place(out_.from_step), step, keys));
    }
    return OkStatus();
  }

  int64_t BatchOf(int64_t step) const {  // one a step
    return committed_ + step - out_.from_step;
  }

  // Before the model is loaded and compiled.
  Status CheckBatches() {
    committed_ = state_.committed_batch;
    FB_ASSIGN_OR_RETURN(const int64_t readable,
                        log_->CountAfter(committed_, BatchOf(options_.step)));
    const int64_t missing = out_.from_step + readable + 1;
    if (missing > options_.step) return OkStatus();
    return ReadBatch(missing).status();
  }

  Result<buffer::Batch> ReadBatch(int64_t step) const {
    Result<buffer::Batch> batch = log_->Read(BatchOf(step));
    if (batch.status().code() == StatusCode::kNotFound) return CannotReplay(batch.status());
    if (!batch.ok()) return batch.status().WithContext(fmt::format("step {}", step));
    return batch;
  }

  Status MakeLearner() {
    const control::Config& config = config_->config;
    Say("loading " + config.model.path);
    FB_ASSIGN_OR_RETURN(model_, LoadModel(config));
    if (out_.from_step == 0) state_.train.params = std::move(model_.initial);
    Say("compiling");
    FB_ASSIGN_OR_RETURN(const std::string plugin,
                        xla::FindPlugin(config.Resolve(config.device.plugin)));
    FB_ASSIGN_OR_RETURN(
        client_,
        xla::Client::Create({.plugin_path = plugin,
                             .cpu_device_count = static_cast<int>(config.device.virtual_devices),
                             .cache_dir = config.Resolve(config.device.cache_dir)}));
    if (const std::string name = PluginName(*client_); name != config_->start.plugin) {
      out_.notes.push_back(fmt::format("the plugin is {} here; step {} was taken on {}", name,
                                       options_.step, config_->start.plugin));
    }
    learner::LearnerOptions options = MakeLearnerOptions(config, options_.run + "/checkpoints");
    options.checkpoint_folder.clear();
    options.replan_every_steps = 0;  // the shapes of each step are those of the run's log
    FB_ASSIGN_OR_RETURN(learner_,
                        learner::Learner::Create(options, *client_, *model_.model, state_));
    state_ = {};
    CompareStart();
    return OkStatus();
  }

  Status Step(int64_t step) {
    FB_ASSIGN_OR_RETURN(const buffer::Batch batch, ReadBatch(step));
    Say(fmt::format("step {} of {}", step, options_.step));
    const Result<learner::StepMetrics> m = learner_->Step(batch);
    if (!m.ok()) return m.status().WithContext(fmt::format("replaying step {}", step));
    Compare(step, *m);
    return OkStatus();
  }

  void Compare(int64_t step, const learner::StepMetrics& metrics) {
    const auto of_step = record_.steps.find(step);
    if (of_step == record_.steps.end() || of_step->second.fingerprint.empty()) {
      out_.notes.push_back(fmt::format("step {} has no recorded fingerprint to compare", step));
      return;
    }
    for (const auto& field : learner::Fingerprint(metrics)) {
      const std::string name(field.name);
      const auto recorded = of_step->second.fingerprint.find(name);
      if (recorded == of_step->second.fingerprint.end()) {
        out_.notes.push_back(fmt::format("step {} has no recorded {}", step, name));
        continue;
      }
      AddRow(step, name, recorded->second, field.bits);
    }
  }

  void AddRow(int64_t step, const std::string& what, const std::string& recorded,
              const std::string& replayed) {
    ReplayRow row{step, what, learner::ReadableBits(recorded), learner::ReadableBits(replayed),
                  recorded == replayed};
    if (!row.equal && row.recorded == row.replayed) {  // other bits of one number: NaNs
      row.recorded = recorded;
      row.replayed = replayed;
    }
    out_.rows.push_back(std::move(row));
  }

  // The checkpoint after the step, when it is there, byte for byte.
  Status CompareCheckpoint() {
    for (const CheckpointInfo& info : Bases(options_.run)) {
      if (info.step != options_.step) continue;
      auto loaded = learner::ReadCheckpoint(info.path);
      if (!loaded.ok()) {
        out_.notes.push_back(
            fmt::format("{} was not compared ({})", Place(info.step), loaded.status().message()));
        return OkStatus();
      }
      FB_ASSIGN_OR_RETURN(const learner::LearnerState state, learner_->State());
      const learner::TrainState& kept = loaded->data.state.train;
      AddTensors("checkpoint weights", kept.params, state.train.params);
      if (!kept.adapters.empty()) {
        AddTensors("checkpoint adapters", kept.adapters, state.train.adapters);
      }
      for (const auto& [slot, tensors] : BySlot(kept.optimizer)) {
        AddTensors(SlotName(slot), tensors, BySlot(state.train.optimizer)[slot]);
      }
      AddRow(options_.step, "checkpoint updates", std::to_string(kept.updates),
             std::to_string(state.train.updates));
    }
    return OkStatus();
  }

  void AddTensors(const std::string& what, const weights::TensorMap& kept,
                  const weights::TensorMap& replayed) {
    const std::string difference = FirstTensorDifference(kept, replayed);
    out_.rows.push_back({options_.step, what, weights::Digest(kept), weights::Digest(replayed),
                         difference.empty()});
    if (!difference.empty()) out_.notes.push_back(fmt::format("{}: {}", what, difference));
  }

  Status CannotReplay(const Status& why) const {
    std::string text = fmt::format("step {} cannot be replayed from {}: {}", options_.step,
                                   Place(out_.from_step), why.message());
    if (const auto steps = Replayable(record_, options_.run, *log_); steps.ok()) {
      text += "\n" + FormatReplayable(*steps);
      while (text.ends_with('\n')) text.pop_back();
    }
    return NotFound(text);
  }

  const ReplayOptions& options_;
  RunRecord record_;
  std::optional<StepConfig> config_;
  std::unique_ptr<LoggedBatches> log_;
  LoadedModel model_;
  learner::LearnerState state_;
  int64_t committed_ = 0;  // the last batch in the restored weights
  std::unique_ptr<xla::Client> client_;
  std::unique_ptr<learner::Learner> learner_;
  Replay out_;
};

}  // namespace

const ReplayRow* Replay::first_difference() const {
  const auto found = std::ranges::find(rows, false, &ReplayRow::equal);
  return found == rows.end() ? nullptr : &*found;
}

Result<Replay> ReplayStep(const ReplayOptions& options) { return Replayer(options).Run(); }

Result<ReplayableSteps> ListReplayable(const std::string& run) {
  FB_ASSIGN_OR_RETURN(const RunRecord record, ReadRunRecord(run));
  FB_ASSIGN_OR_RETURN(const StepConfig config,
                      ConfigOfStep(record, record.steps.rbegin()->first, {}));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LoggedBatches> log, OpenLog(config.config, run));
  return Replayable(record, run, *log);
}

}  // namespace forebay::apps
