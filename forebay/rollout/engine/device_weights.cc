#include "forebay/rollout/engine/device_weights.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/huge_pages.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shared_host.h"

namespace forebay::rollout {
namespace {

// Whether no element of an f32 tensor is infinite or NaN. Written so that it vectorises.
bool Finite(const weights::HostTensor& tensor) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t bad = 0;
  for (const uint32_t bits : tensor.as<uint32_t>()) bad |= (bits & kExponent) == kExponent ? 1 : 0;
  return bad == 0;
}

// Large pages that tensors are copied into, one behind the other.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  static Result<Arena> Create(const std::vector<models::ParamSpec>& specs, xla::DType dtype) {
    size_t bytes = 0;
    for (const models::ParamSpec& spec : specs) {
      bytes += Rounded(static_cast<size_t>(xla::Shape{dtype, spec.shape.dims}.bytes()));
    }
    Arena arena;
    FB_ASSIGN_OR_RETURN(arena.memory_, AllocateHugePages(bytes));
    return arena;
  }
  std::span<const std::byte> Copy(std::span<const std::byte> bytes) {
    std::byte* to = memory_.get() + used_;
    std::memcpy(to, bytes.data(), bytes.size());
    used_ += Rounded(bytes.size());
    return {to, bytes.size()};
  }
  const std::shared_ptr<std::byte>& memory() const { return memory_; }

 private:
  static size_t Rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  std::shared_ptr<std::byte> memory_;
  size_t used_ = 0;
};

}  // namespace

Result<std::shared_ptr<DeviceWeights>> UploadWeights(const models::Model& model,
                                                     xla::Client& client, xla::DType dtype,
                                                     const weights::Snapshot& snapshot) {
  constexpr auto kLayout = models::LayerLayout::kPerLayer;
  Result<weights::TensorMap> converted = model.FromCheckpoint(snapshot.tensors, kLayout);
  if (!converted.ok()) {
    return converted.status().WithContext(fmt::format(
        "the weights of policy version {} do not fit the engine's model", snapshot.policy_version));
  }
  auto out = std::make_shared<DeviceWeights>();
  out->policy_version = snapshot.policy_version;
  out->digest = weights::Digest(snapshot.tensors);
  const std::vector<models::ParamSpec> specs = model.Params(kLayout);
  // A processor reads all weights once a step, from the host's memory.
  std::optional<Arena> arena;
  if (client.platform() == "cpu") {
    FB_ASSIGN_OR_RETURN(arena, Arena::Create(specs, dtype));
  }
  for (const models::ParamSpec& spec : specs) {
    const auto it = converted->find(spec.name);
    if (it == converted->end() || it->second.shape() != spec.shape) {
      return InvalidArgument(fmt::format("the weights of policy version {} lack {} {}",
                                         snapshot.policy_version, spec.name,
                                         spec.shape.ToString()));
    }
    if (!Finite(it->second)) {
      return InvalidArgument(
          fmt::format("the weights of policy version {} hold NaN or infinity in {}",
                      snapshot.policy_version, spec.name));
    }
    weights::HostTensor held = it->second;
    if (dtype != held.shape().dtype) {
      FB_ASSIGN_OR_RETURN(held, weights::ConvertFloat(it->second, dtype));
    }
    FB_ASSIGN_OR_RETURN(
        xla::Buffer buffer,
        arena ? xla::ShareHost(client, arena->Copy(held.bytes()), held.shape(), arena->memory())
              : client.FromHost(held.bytes(), held.shape()));
    out->params.push_back(std::move(buffer));
  }
  for (const xla::Buffer& buffer : out->params) FB_RETURN_IF_ERROR(buffer.Await());
  return out;
}

WeightUploader::WeightUploader(std::shared_ptr<const models::Model> model, xla::Client& client,
                               xla::DType dtype, Deliver deliver)
    : model_(std::move(model)),
      client_(client),
      dtype_(dtype),
      deliver_(std::move(deliver)),
      thread_([this] { Run(); }) {}

void WeightUploader::Upload(std::shared_ptr<const weights::Snapshot> snapshot, Taken taken) {
  std::optional<Job> refused(Job{std::move(snapshot), std::move(taken)});
  Status reason = Unavailable("the engine was shut down before it took the new weights");
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      std::swap(waiting_, refused);
      reason = Cancelled("newer weights were published before these were taken");
      changed_.NotifyOne();
    }
  }
  if (refused) deliver_(std::move(reason), std::move(refused->taken));
}

void WeightUploader::Stop() {
  std::optional<Job> refused;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    refused.swap(waiting_);
    changed_.NotifyOne();
  }
  if (refused) {
    deliver_(Unavailable("the engine was shut down before it took the new weights"),
             std::move(refused->taken));
  }
  // A callback on this thread may stop it: then the destructor joins.
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void WeightUploader::Free(std::shared_ptr<DeviceWeights> weights) {
  MutexLock lock(mutex_);
  unused_.push_back(std::move(weights));
  changed_.NotifyOne();
}

void WeightUploader::Run() {
  for (;;) {
    std::optional<Job> job;
    std::vector<std::shared_ptr<DeviceWeights>> unused;
    {
      MutexLock lock(mutex_);
      while (!waiting_ && unused_.empty() && !stopping_) {
        changed_.WaitUntil(mutex_, TimePoint::max());
      }
      if (stopping_) return;
      unused.swap(unused_);
      job.swap(waiting_);
    }
    unused.clear();  // before an upload needs the memory
    if (!job) continue;
    deliver_(UploadWeights(*model_, client_, dtype_, *job->snapshot), std::move(job->taken));
  }
}

}  // namespace forebay::rollout
