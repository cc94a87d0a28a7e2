// Weights on the device, and the thread that brings new ones there while the engine goes on
// decoding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {

struct DeviceWeights {
  int64_t policy_version = 0;
  std::string digest;               // weights::Digest of the snapshot
  std::vector<xla::Buffer> params;  // order of Model::Params(kPerLayer)
};

// Checks that the snapshot covers the model (kInvalidArgument: names and shapes), converts,
// (to `dtype` in the end), uploads, waits. Blocks.
Result<std::shared_ptr<DeviceWeights>> UploadWeights(const models::Model& model,
                                                     xla::Client& client, xla::DType dtype,
                                                     const weights::Snapshot& snapshot);

// A thread that uploads one snapshot at a time; of several that wait only the newest is uploaded.
// Thread-safe.
class WeightUploader {
 public:
  using Taken = std::function<void(Status)>;
  // The weights, or why there are none, with the callback that was given.
  using Deliver = std::function<void(Result<std::shared_ptr<DeviceWeights>>, Taken)>;

  // `deliver` is called for each snapshot, on this thread or on that of Upload; must not block.
  WeightUploader(std::shared_ptr<const models::Model> model, xla::Client& client, xla::DType dtype,
                 Deliver deliver);
  ~WeightUploader() { Stop(); }
  WeightUploader(const WeightUploader&) = delete;
  WeightUploader& operator=(const WeightUploader&) = delete;

  // Never blocks. A snapshot that still waits is delivered as kCancelled.
  void Upload(std::shared_ptr<const weights::Snapshot> snapshot, Taken taken);
  // Frees weights that are no longer used, on its thread.
  void Free(std::shared_ptr<DeviceWeights> weights);
  // Ends the thread after the upload under way; what waits is delivered as kUnavailable.
  // Idempotent.
  void Stop();

 private:
  struct Job {
    std::shared_ptr<const weights::Snapshot> snapshot;
    Taken taken;
  };
  void Run();

  const std::shared_ptr<const models::Model> model_;
  xla::Client& client_;
  const xla::DType dtype_;
  const Deliver deliver_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Job> waiting_ FB_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<DeviceWeights>> unused_ FB_GUARDED_BY(mutex_);
  bool stopping_ FB_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace forebay::rollout
