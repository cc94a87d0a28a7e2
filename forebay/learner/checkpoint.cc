#include "forebay/learner/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/learner/manifest.h"
#include "forebay/learner/train_step.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"

namespace forebay::learner {
namespace {

namespace fs = std::filesystem;
using weights::TensorMap;

constexpr std::string_view kPrefix = "step_", kBasePrefix = "base_";
constexpr const char* kModelFile = "/model.safetensors";
constexpr const char* kOptimizerFile = "/optimizer.safetensors";
constexpr const char* kAdaptersFile = "/adapters.safetensors";
constexpr size_t kManifestBytesMax = size_t{64} << 20;

std::string BasePath(const std::string& folder, const std::string& digest) {
  return fmt::format("{}/{}{}.safetensors", folder, kBasePrefix, digest);
}

std::string StepName(int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

// The step of "step_NNNNNN", or -1 for any other name.
int64_t ParseStepName(std::string_view name) {
  if (!name.starts_with(kPrefix)) return -1;
  name.remove_prefix(kPrefix.size());
  if (name.size() < 6 || name.size() > 15) return -1;
  int64_t step = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return -1;
    step = step * 10 + (c - '0');
  }
  return step;
}

// Steps with a folder, newest first.
std::vector<int64_t> StepsIn(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const int64_t step = ParseStepName(it->path().filename().string());
    if (step >= 0) steps.push_back(step);
  }
  std::ranges::sort(steps, std::ranges::greater{});
  return steps;
}

void Remove(const std::string& path) {
  std::error_code ignored;  // what stays behind is removed at the next checkpoint
  fs::remove_all(path, ignored);
}

Result<TensorMap> ReadTensors(const std::string& path, const std::string& digest) {
  FB_ASSIGN_OR_RETURN(TensorMap tensors, weights::ReadSafetensors(path));
  if (const std::string found = weights::Digest(tensors); found != digest) {
    return DataLoss(
        fmt::format("{} has digest {}, its manifest says {}: the file is corrupt or from another "
                    "checkpoint",
                    path, found, digest));
  }
  return tensors;
}

// Aside and renamed: under its name it is whole. `verify`: all checkpoints hang on the one that is
// there, so it is read back.
Status WriteBase(const std::string& folder, const std::string& digest, const TensorMap& tensors,
                 bool verify) {
  const std::string path = BasePath(folder, digest);
  std::error_code error;
  if (fs::exists(path, error) && (!verify || ReadTensors(path, digest).ok())) return OkStatus();
  const std::string aside = folder + "/.writing_base";
  if (Status written = weights::WriteSafetensors(aside, tensors); !written.ok()) {
    Remove(aside);
    return written;
  }
  fs::rename(aside, path, error);
  if (error) return ErrnoStatus("cannot rename a base model to " + path, error.value());
  return SyncFolder(folder);
}

Status WriteFiles(const std::string& folder, const std::string& path, const CheckpointData& data,
                  std::string* base_digest) {
  const TrainState& train = data.state.train;
  const bool adapters = !train.adapters.empty();
  const bool first = base_digest->empty();
  if (!adapters || first) *base_digest = weights::Digest(train.params);
  const Manifest manifest{.data = data,
                          .model_digest = *base_digest,
                          .optimizer_digest = weights::Digest(train.optimizer),
                          .adapters_digest = adapters ? weights::Digest(train.adapters) : "",
                          .shared_base = adapters};
  FB_ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
  if (adapters) {
    FB_RETURN_IF_ERROR(WriteBase(folder, *base_digest, train.params, first));
    FB_RETURN_IF_ERROR(weights::WriteSafetensors(path + kAdaptersFile, train.adapters));
  } else {
    FB_RETURN_IF_ERROR(weights::WriteSafetensors(path + kModelFile, train.params));
  }
  FB_RETURN_IF_ERROR(weights::WriteSafetensors(path + kOptimizerFile, train.optimizer));
  FB_RETURN_IF_ERROR(WriteFileAtomic(path + "/manifest.json", text));
  return SyncFolder(path);
}

}  // namespace

Status WriteCheckpoint(const std::string& folder, const CheckpointData& data, int64_t keep,
                       std::string* base_digest) {
  FB_CHECK(keep >= 1, "a run keeps at least its newest checkpoint");
  const std::string name = StepName(data.state.step);
  const std::string path = folder + "/" + name;
  const std::string aside = folder + "/.writing_" + name;
  Remove(aside);
  FB_RETURN_IF_ERROR(MakeFolders(aside));
  std::string digest;
  if (base_digest == nullptr) base_digest = &digest;
  if (Status written = WriteFiles(folder, aside, data, base_digest); !written.ok()) {
    Remove(aside);  // give the space back
    return written.WithContext(path);
  }
  Remove(path);  // of a run that went this far before; the next rename would refuse it
  std::error_code error;
  fs::rename(aside, path, error);
  if (error) return ErrnoStatus("cannot rename a checkpoint to " + path, error.value());
  FB_RETURN_IF_ERROR(SyncFolder(folder));
  FB_RETURN_IF_ERROR(WriteFileAtomic(folder + "/latest", name + "\n"));

  // Steps above this one are from a future that a fallback gave up: they go first, not the past.
  auto steps = StepsIn(folder);
  std::erase_if(steps, [&](int64_t step) { return step > data.state.step; });
  for (const int64_t step : StepsIn(folder)) {
    const auto kept = std::ranges::find(steps, step);
    if (kept == steps.end() || kept - steps.begin() >= keep) Remove(folder + "/" + StepName(step));
  }
  return OkStatus();
}

std::vector<CheckpointInfo> ListCheckpoints(const std::string& folder) {
  std::vector<CheckpointInfo> infos;
  for (const int64_t step : StepsIn(folder)) {
    const std::string path = fmt::format("{}/{}", folder, StepName(step));
    const auto text = ReadFile(path + "/manifest.json", kManifestBytesMax);
    if (!text.ok()) continue;
    const auto manifest = ParseManifest(*text);
    if (!manifest.ok()) continue;
    const LearnerState& state = manifest->data.state;
    infos.push_back({.step = state.step, .committed_batch = state.committed_batch, .path = path});
  }
  std::ranges::reverse(infos);
  return infos;
}

int64_t ReleasableBatch(const std::vector<CheckpointInfo>& checkpoints, int64_t keep) {
  if (static_cast<int64_t>(checkpoints.size()) < std::max<int64_t>(keep, 1)) return 0;
  return checkpoints.front().committed_batch;
}

Result<LoadedCheckpoint> ReadCheckpoint(const std::string& path, const TensorMap* base) {
  FB_ASSIGN_OR_RETURN(const std::string text, ReadFile(path + "/manifest.json", kManifestBytesMax));
  auto manifest = ParseManifest(text);
  if (!manifest.ok()) return manifest.status().WithContext(path);
  LoadedCheckpoint loaded{.data = std::move(manifest->data), .path = path};
  TrainState& train = loaded.data.state.train;
  // "step_000001" and "run/step_000001/" have a parent, too.
  const fs::path parent = (fs::absolute(path) / "").parent_path().parent_path();
  auto params = ReadTensors(
      manifest->shared_base ? BasePath(parent.string(), manifest->model_digest) : path + kModelFile,
      manifest->model_digest);
  if (!params.ok() && manifest->shared_base && base != nullptr &&
      weights::Digest(*base) == manifest->model_digest) {
    loaded.notes.push_back(
        fmt::format("the base model beside {} is not usable ({}): model.path's "
                    "own weights, which are the same, take its place",
                    path, params.status().message()));
    params = *base;
  }
  FB_ASSIGN_OR_RETURN(train.params, std::move(params));
  FB_ASSIGN_OR_RETURN(train.optimizer,
                      ReadTensors(path + kOptimizerFile, manifest->optimizer_digest));
  if (!manifest->adapters_digest.empty()) {
    FB_ASSIGN_OR_RETURN(train.adapters,
                        ReadTensors(path + kAdaptersFile, manifest->adapters_digest));
  }
  return loaded;
}

Status CheckBase(const TrainState& saved, const TensorMap& model) {
  if (saved.adapters.empty()) return OkStatus();
  const std::string base = weights::Digest(saved.params), given = weights::Digest(model);
  if (base == given) return OkStatus();
  return FailedPrecondition(fmt::format(
      "the LoRA adapters of the checkpoint belong to a base model with digest {}, but model.path "
      "holds one with digest {}: adapters mean nothing beside other weights; resume with the model "
      "that the run was started with",
      base, given));
}

Result<LoadedCheckpoint> LoadLatestCheckpoint(const std::string& folder, const TensorMap* base) {
  std::vector<std::string> names;
  std::vector<std::string> notes;
  if (auto latest = ReadFile(folder + "/latest", 4096); latest.ok()) {
    std::string name = latest->substr(0, latest->find('\n'));
    if (ParseStepName(name) >= 0) {
      names.push_back(std::move(name));
    } else {
      notes.push_back(fmt::format("{}/latest names no checkpoint", folder));
    }
  }
  for (const int64_t step : StepsIn(folder)) {
    std::string name = StepName(step);
    if (names.empty() || names.front() != name) names.push_back(std::move(name));
  }
  if (names.empty()) return NotFound(fmt::format("{} holds no checkpoint", folder));
  for (const std::string& name : names) {
    auto loaded = ReadCheckpoint(fmt::format("{}/{}", folder, name), base);
    if (loaded.ok()) {
      loaded->notes.insert(loaded->notes.begin(), notes.begin(), notes.end());
      return loaded;
    }
    notes.push_back(
        fmt::format("checkpoint {} is not usable ({})", name, loaded.status().message()));
  }
  std::string all;
  for (const std::string& note : notes) all.append("\n  ").append(note);
  return DataLoss(fmt::format("{} holds no whole checkpoint:{}", folder, all));
}

}  // namespace forebay::learner
