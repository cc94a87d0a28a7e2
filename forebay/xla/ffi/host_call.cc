// HostCall: a call frame of XLA's foreign function interface as a kernel sees it.
#include <fmt/core.h>
#include <xla/ffi/api/c_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

std::optional<DType> ToDType(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_F32:
      return DType::kF32;
    case XLA_FFI_DataType_BF16:
      return DType::kBF16;
    case XLA_FFI_DataType_S32:
      return DType::kS32;
    default:
      return std::nullopt;
  }
}

// False where an entry is no array of a dtype that CallHost lets through.
template <typename Type>
bool ReadArrays(int64_t count, const Type* types, Type buffer, void** entries,
                std::vector<HostArray>* arrays) {
  for (int64_t i = 0; i < count; ++i) {
    if (types[i] != buffer) return false;
    const auto& array = *static_cast<const XLA_FFI_Buffer*>(entries[i]);
    const std::optional<DType> dtype = ToDType(array.dtype);
    if (!dtype) return false;
    arrays->push_back({*dtype, std::span(array.dims, static_cast<size_t>(array.rank)), array.data});
  }
  return true;
}

XLA_FFI_Error* MakeError(const XLA_FFI_CallFrame& frame, XLA_FFI_Error_Code code,
                         const std::string& message) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message.c_str();
  args.errc = code;
  return frame.api->XLA_FFI_Error_Create(&args);
}

// Frees an error; true if there was none.
bool Succeeded(const XLA_FFI_Api& api, XLA_FFI_Error* error) {
  if (error == nullptr) return true;
  XLA_FFI_Error_Destroy_Args args = {};
  args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  args.error = error;
  api.XLA_FFI_Error_Destroy(&args);
  return false;
}

// XLA asks a handler for the version of the interface that it was built with, through an extension
// of a frame that is no call.
bool AnswerMetadata(const XLA_FFI_CallFrame& frame) {
  const XLA_FFI_InternalExtension* extension = frame.extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata& metadata =
      *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata.api_version.major_version = XLA_FFI_API_MAJOR;
  metadata.api_version.minor_version = XLA_FFI_API_MINOR;
  metadata.traits = 0;
  return true;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Work that several threads take from. It outlives the call, as a helper may be started after all
// is done; such a one finds it closed and looks at nothing else.
struct Job {
  const std::function<void(int64_t)>* fn;
  int64_t count;
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::condition_variable idle;
  std::atomic<int> helpers = 0;  // at work; changed under mutex
  bool closed = false;           // under mutex

  // Lets nobody join any more, and waits for those at work.
  void Close() {
    {
      const std::lock_guard lock(mutex);
      closed = true;
    }
    // They end within microseconds, a fraction of what a sleeping thread takes to wake.
    constexpr int kSpins = 1000;
    for (int spins = 0; helpers.load(std::memory_order_acquire) > 0 && spins < kSpins; ++spins) {
      Pause();
    }
    std::unique_lock lock(mutex);
    idle.wait(lock, [&] { return helpers == 0; });
  }
  // Without memory the process ends: other threads may wait for the item that would be missing.
  void Drain() noexcept {
    for (int64_t i = next++; i < count; i = next++) (*fn)(i);
  }
};

// Takes part in a job, unless it is over.
void Join(Job& job) {
  {
    const std::lock_guard lock(job.mutex);
    if (job.closed) return;
    ++job.helpers;
  }
  job.Drain();
  const std::lock_guard lock(job.mutex);
  --job.helpers;
  job.idle.notify_one();
}

// Where helpers wait a moment for the next job before they go back to the plugin's pool: waking a
// thread takes as long as a small kernel, and a decode step has a hundred of them.
class Lobby {
 public:
  // Hands the job to up to `count` helpers that wait here; returns how many.
  int64_t Invite(const std::shared_ptr<Job>& job, int64_t count) {
    const std::lock_guard lock(mutex_);
    const auto free = waiting_ - static_cast<int64_t>(invitations_.size());
    const int64_t invited = std::min(count, free);
    for (int64_t i = 0; i < invited; ++i) invitations_.push_back(job);
    if (invited > 0) news_.fetch_add(1, std::memory_order_release);
    return invited;
  }

  // The next job for the calling thread; null if there is none for a moment.
  std::shared_ptr<Job> Wait() {
    uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      ++waiting_;
      seen = news_.load(std::memory_order_relaxed);
    }
    for (;;) {
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (news_.load(std::memory_order_acquire) == seen &&
             std::chrono::steady_clock::now() < end) {
        Pause();
      }
      const std::lock_guard lock(mutex_);
      if (!invitations_.empty()) {
        std::shared_ptr<Job> job = std::move(invitations_.back());
        invitations_.pop_back();
        --waiting_;
        return job;
      }
      // An invitation went to another one.
      const uint64_t now = news_.load(std::memory_order_relaxed);
      if (now == seen) {
        --waiting_;
        return nullptr;
      }
      seen = now;
    }
  }

 private:
  // Longer than what lies between the kernels of a decode step, shorter than anything else notices.
  static constexpr auto kPatience = std::chrono::microseconds(30);

  std::atomic<uint64_t> news_ = 0;
  std::mutex mutex_;
  int64_t waiting_ = 0;                            // under mutex_: those inside Wait
  std::vector<std::shared_ptr<Job>> invitations_;  // under mutex_: at most `waiting_`
};

Lobby& TheLobby() {
  static Lobby& lobby = *new Lobby;  // the plugin's threads may outlive main
  return lobby;
}

void Help(void* data) {
  std::unique_ptr<std::shared_ptr<Job>> held(static_cast<std::shared_ptr<Job>*>(data));
  std::shared_ptr<Job> job = std::move(*held);
  held.reset();
  while (job != nullptr) {
    Join(*job);
    job.reset();
    job = TheLobby().Wait();
  }
}

}  // namespace

double HostCall::number(std::string_view name) const {
  const XLA_FFI_Attrs& attributes = frame_->attrs;
  for (int64_t i = 0; i < attributes.size; ++i) {
    const XLA_FFI_ByteSpan& own = *attributes.names[i];
    if (std::string_view(own.ptr, own.len) != name) continue;
    if (attributes.types[i] != XLA_FFI_AttrType_SCALAR) break;
    const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(attributes.attrs[i]);
    if (scalar.dtype != XLA_FFI_DataType_F64) break;
    return *static_cast<const double*>(scalar.value);
  }
  FB_CHECK(false, fmt::format("CallHost passed no number '{}'", name));
}

int64_t HostCall::threads() const {
  int64_t threads = 0;
  XLA_FFI_ThreadPool_NumThreads_Args args = {};
  args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
  args.ctx = frame_->ctx;
  args.num_threads = &threads;
  return Succeeded(*frame_->api, frame_->api->XLA_FFI_ThreadPool_NumThreads(&args)) ? threads : 1;
}

// A throw between two helpers would leave the first with a job that is gone.
void HostCall::ForEach(int64_t count, const std::function<void(int64_t)>& fn) const noexcept {
  const auto job = std::make_shared<Job>();
  job->fn = &fn;
  job->count = count;
  const int64_t helpers = std::min(threads(), count) - 1;
  for (int64_t i = TheLobby().Invite(job, helpers); i < helpers; ++i) {
    auto held = std::make_unique<std::shared_ptr<Job>>(job);
    XLA_FFI_ThreadPool_Schedule_Args args = {};
    args.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    args.ctx = frame_->ctx;
    args.task = Help;
    args.data = held.get();
    if (!Succeeded(*frame_->api, frame_->api->XLA_FFI_ThreadPool_Schedule(&args))) break;
    held.release();  // NOLINT(bugprone-unused-return-value): Help frees it
  }
  job->Drain();
  job->Close();
}

XLA_FFI_Error* RunHostKernel(HostFunction function, XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(*frame)) return nullptr;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  try {
    HostCall call(frame);
    if (!ReadArrays(frame->args.size, frame->args.types, XLA_FFI_ArgType_BUFFER, frame->args.args,
                    &call.operands_) ||
        !ReadArrays(frame->rets.size, frame->rets.types, XLA_FFI_RetType_BUFFER, frame->rets.rets,
                    &call.results_)) {
      return MakeError(*frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                       "a host kernel got something that is not an array of f32, bf16 or s32");
    }
    const Status status = function(call);
    if (status.ok()) return nullptr;
    return MakeError(*frame, XLA_FFI_Error_Code_INTERNAL, status.ToString());
  } catch (const std::exception& error) {  // memory that is not there
    return MakeError(*frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, error.what());
  }
}

}  // namespace forebay::xla
