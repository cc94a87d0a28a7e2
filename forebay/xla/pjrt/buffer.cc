#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

Buffer::Impl::Impl(std::shared_ptr<pjrt::ClientState> state_in, std::vector<PJRT_Buffer*> parts_in,
                   Shape shape_in, int device_in, std::shared_ptr<const Sharding> sharding_in)
    : state(std::move(state_in)),
      parts(std::move(parts_in)),
      shape(std::move(shape_in)),
      device(device_in),
      sharding(std::move(sharding_in)) {
  state->live_buffers.fetch_add(static_cast<int64_t>(parts.size()), std::memory_order_relaxed);
}

Buffer::Impl::~Impl() {
  for (PJRT_Buffer* part : parts) {
    PJRT_Buffer_Destroy_Args args = {};
    args.buffer = part;
    const Status status = FB_PJRT(state->api, PJRT_Buffer_Destroy, args);
    FB_CHECK(status.ok(), status.ToString());
  }
  state->live_buffers.fetch_sub(static_cast<int64_t>(parts.size()), std::memory_order_relaxed);
}

bool Buffer::Impl::IsDeleted() const {
  return std::ranges::any_of(parts, [&](PJRT_Buffer* part) {
    PJRT_Buffer_IsDeleted_Args args = {};
    args.buffer = part;
    return FB_PJRT(state->api, PJRT_Buffer_IsDeleted, args).ok() && args.is_deleted;
  });
}

std::vector<PJRT_Buffer*> Buffer::Impl::Release() {
  state->live_buffers.fetch_sub(static_cast<int64_t>(parts.size()), std::memory_order_relaxed);
  return std::exchange(parts, {});
}

Buffer::Buffer() = default;
Buffer::Buffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;
Buffer::~Buffer() = default;

const Shape& Buffer::shape() const {
  FB_CHECK(impl_ != nullptr, "shape of an empty Buffer (moved from, or donated to a program)");
  return impl_->shape;
}

const Sharding* Buffer::sharding() const {
  FB_CHECK(impl_ != nullptr, "sharding of an empty Buffer (moved from, or donated to a program)");
  return impl_->sharding.get();
}

Result<Buffer> Buffer::FromParts(std::vector<Buffer> parts, const Shape& shape,
                                 const Sharding& sharding) {
  FB_RETURN_IF_ERROR(CheckSpec(sharding.mesh, sharding.spec, shape).WithContext("FromParts"));
  if (static_cast<int64_t>(parts.size()) != sharding.mesh.size()) {
    return InvalidArgument(fmt::format("FromParts: {} parts for the {} devices of the mesh {}",
                                       parts.size(), sharding.mesh.size(),
                                       sharding.mesh.ToString()));
  }
  const Shape local = LocalShape(sharding.mesh, sharding.spec, shape);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) return InvalidArgument(fmt::format("FromParts: part {} is empty", i));
    const Impl& impl = *parts[i].impl();
    if (impl.shape != local || impl.sharding != nullptr || impl.state != parts[0].impl()->state) {
      return InvalidArgument(
          fmt::format("FromParts: part {} is {}{}, but {} of {} has parts {} of one client", i,
                      impl.shape.ToString(), impl.sharding != nullptr ? ", split itself" : "",
                      sharding.ToString(), shape.ToString(), local.ToString()));
    }
    if (impl.device != static_cast<int>(i)) {
      return InvalidArgument(
          fmt::format("FromParts: part {} is on device {}; it must be on {}", i, impl.device, i));
    }
  }
  if (parts.size() == 1) return std::move(parts[0]);
  std::vector<PJRT_Buffer*> buffers;
  buffers.reserve(parts.size());
  const std::shared_ptr<pjrt::ClientState> state = parts[0].impl()->state;
  for (const Buffer& part : parts) buffers.push_back(part.impl()->Release()[0]);
  return pjrt::MakeBuffer(state, std::move(buffers), shape,
                          std::make_shared<const Sharding>(sharding));
}

std::vector<Buffer> Buffer::TakeParts() && {
  FB_CHECK(impl_ != nullptr, "parts of an empty Buffer (moved from, or donated to a program)");
  std::vector<Buffer> out;
  if (impl_->sharding == nullptr) {
    out.push_back(std::move(*this));
    return out;
  }
  const Shape local = LocalShape(impl_->sharding->mesh, impl_->sharding->spec, impl_->shape);
  const std::vector<PJRT_Buffer*> parts = impl_->Release();
  for (size_t i = 0; i < parts.size(); ++i) {
    out.push_back(pjrt::MakeBuffer(impl_->state, parts[i], local, static_cast<int>(i)));
  }
  impl_.reset();
  return out;
}

Status Buffer::Await() const {
  if (impl_ == nullptr) {
    return FailedPrecondition(
        "Buffer::Await: the buffer is empty (moved from, or donated to a program)");
  }
  const pjrt::Api& api = impl_->state->api;
  for (PJRT_Buffer* part : impl_->parts) {
    PJRT_Buffer_ReadyEvent_Args args = {};
    args.buffer = part;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Buffer_ReadyEvent, args));
    FB_RETURN_IF_ERROR(api.AwaitAndDestroy(args.event, "computing a buffer"));
  }
  return OkStatus();
}

namespace {

// What Buffer::OnReady waits for: all parts, each with an event of its own.
struct Waiter {
  Waiter(const pjrt::Api& api_in, std::function<void()> fn_in, size_t parts)
      : api(api_in), fn(std::move(fn_in)), left(parts) {}
  const pjrt::Api api;
  const std::function<void()> fn;
  std::atomic<size_t> left;
};
struct WaitedEvent {
  std::shared_ptr<Waiter> waiter;
  PJRT_Event* event;
};

void OnEvent(PJRT_Error* error, void* user) {
  const std::unique_ptr<WaitedEvent> waited(static_cast<WaitedEvent*>(user));
  const Waiter& waiter = *waited->waiter;
  // Whoever reads the value is told the error.
  static_cast<void>(waiter.api.ToStatus(error, "PJRT_Event_OnReady"));
  waiter.api.Destroy(waited->event);
  if (waited->waiter->left.fetch_sub(1) == 1) waiter.fn();
}

}  // namespace

Status Buffer::OnReady(std::function<void()> fn) const {
  if (impl_ == nullptr) {
    return FailedPrecondition(
        "Buffer::OnReady: the buffer is empty (moved from, or donated to a program)");
  }
  const pjrt::Api& api = impl_->state->api;
  const auto waiter = std::make_shared<Waiter>(api, std::move(fn), impl_->parts.size());
  for (PJRT_Buffer* part : impl_->parts) {
    PJRT_Buffer_ReadyEvent_Args ready = {};
    ready.buffer = part;
    FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Buffer_ReadyEvent, ready));
    auto waited = std::make_unique<WaitedEvent>(WaitedEvent{waiter, ready.event});
    PJRT_Event_OnReady_Args args = {};
    args.event = ready.event;
    args.callback = &OnEvent;
    args.user_arg = waited.get();
    const Status status = FB_PJRT(api, PJRT_Event_OnReady, args);
    if (!status.ok()) {
      api.Destroy(ready.event);
      return status;
    }
    // NOLINTNEXTLINE(bugprone-unused-return-value): it is OnEvent's now
    waited.release();
  }
  return OkStatus();
}

namespace {

Status PartToHost(const pjrt::Api& api, PJRT_Buffer* part, size_t rank, std::span<std::byte> dst) {
  // Row-major is said outright: without it, a plugin copies its own device layout (a TPU's is
  // tiled).
  std::vector<int64_t> minor_to_major(rank);
  for (size_t i = 0; i < rank; ++i) minor_to_major[i] = static_cast<int64_t>(rank - 1 - i);
  PJRT_Buffer_MemoryLayout layout = {};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();

  PJRT_Buffer_ToHostBuffer_Args args = {};
  args.src = part;
  args.host_layout = &layout;
  args.dst = dst.data();
  args.dst_size = dst.size();
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Buffer_ToHostBuffer, args));
  return api.AwaitAndDestroy(args.event, "copying a buffer to the host");
}

}  // namespace

Status Buffer::ToHost(std::span<std::byte> dst) const {
  if (impl_ == nullptr) {
    return FailedPrecondition(
        "Buffer::ToHost: the buffer is empty (moved from, or donated to a program)");
  }
  const Shape& shape = impl_->shape;
  if (static_cast<int64_t>(dst.size()) != shape.bytes()) {
    return InvalidArgument(fmt::format("Buffer::ToHost: {} takes {} bytes, the destination has {}",
                                       shape.ToString(), shape.bytes(), dst.size()));
  }
  if (dst.empty()) return Await();
  const pjrt::Api& api = impl_->state->api;
  if (impl_->sharding == nullptr) return PartToHost(api, impl_->parts[0], shape.dims.size(), dst);

  if (LocalShape(impl_->sharding->mesh, impl_->sharding->spec, shape) == shape) {
    return PartToHost(api, impl_->parts[0], shape.dims.size(), dst);
  }
  return VisitParts([&](const ShardSlice& slice, std::span<const std::byte> part) {
    WriteSlice(dst, shape, slice, part);
    return OkStatus();
  });
}

Status Buffer::VisitParts(
    const std::function<Status(const ShardSlice&, std::span<const std::byte>)>& fn) const {
  if (impl_ == nullptr) {
    return FailedPrecondition(
        "Buffer::VisitParts: the buffer is empty (moved from, or donated to a program)");
  }
  const Shape& shape = impl_->shape;
  const Sharding sharding = impl_->sharding != nullptr ? *impl_->sharding : Sharding{};
  const std::vector<ShardSlice> slices = ShardSlices(sharding.mesh, sharding.spec, shape);
  const Axes repeated = sharding.mesh.Others(sharding.spec.axes());
  std::vector<std::byte> part(
      static_cast<size_t>(LocalShape(sharding.mesh, sharding.spec, shape).bytes()));
  for (size_t i = 0; i < slices.size(); ++i) {
    // One of the equal parts is enough.
    if (sharding.mesh.Index(static_cast<int64_t>(i), repeated) != 0) continue;
    FB_RETURN_IF_ERROR(PartToHost(impl_->state->api, impl_->parts[i], shape.dims.size(), part));
    FB_RETURN_IF_ERROR(fn(slices[i], part));
  }
  return OkStatus();
}

namespace pjrt {

Buffer MakeBuffer(std::shared_ptr<ClientState> state, PJRT_Buffer* buffer, const Shape& shape,
                  int device) {
  return Buffer(std::make_unique<Buffer::Impl>(std::move(state), std::vector<PJRT_Buffer*>{buffer},
                                               shape, device, nullptr));
}

Buffer MakeBuffer(std::shared_ptr<ClientState> state, std::vector<PJRT_Buffer*> parts,
                  const Shape& shape, std::shared_ptr<const Sharding> sharding) {
  return Buffer(std::make_unique<Buffer::Impl>(std::move(state), std::move(parts), shape,
                                               /*device_in=*/0, std::move(sharding)));
}

PJRT_Buffer_Type ToBufferType(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return PJRT_Buffer_Type_PRED;
    case DType::kS8:
      return PJRT_Buffer_Type_S8;
    case DType::kU8:
      return PJRT_Buffer_Type_U8;
    case DType::kS32:
      return PJRT_Buffer_Type_S32;
    case DType::kU32:
      return PJRT_Buffer_Type_U32;
    case DType::kS64:
      return PJRT_Buffer_Type_S64;
    case DType::kU64:
      return PJRT_Buffer_Type_U64;
    case DType::kF16:
      return PJRT_Buffer_Type_F16;
    case DType::kBF16:
      return PJRT_Buffer_Type_BF16;
    case DType::kF32:
      return PJRT_Buffer_Type_F32;
  }
  FB_CHECK(false, "unknown DType");
}

Result<Buffer> BufferFromHost(const std::shared_ptr<ClientState>& state, const void* data,
                              const Shape& shape, int device) {
  PJRT_Client_BufferFromHostBuffer_Args args = {};
  args.client = state->client;
  args.data = data;
  args.type = ToBufferType(shape.dtype);
  args.dims = shape.dims.data();
  args.num_dims = shape.dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = state->devices[static_cast<size_t>(device)];
  FB_RETURN_IF_ERROR(FB_PJRT(state->api, PJRT_Client_BufferFromHostBuffer, args));
  Buffer buffer = MakeBuffer(state, args.buffer, shape, device);
  // Already fired: with these semantics the plugin is done with `data` when the call returns.
  state->api.Destroy(args.done_with_host_buffer);
  return buffer;
}

}  // namespace pjrt
}  // namespace forebay::xla
