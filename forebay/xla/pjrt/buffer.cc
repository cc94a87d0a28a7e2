#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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

namespace forebay::xla {

Buffer::Impl::Impl(std::shared_ptr<pjrt::ClientState> state_in, PJRT_Buffer* buffer_in,
                   Shape shape_in, int device_in)
    : state(std::move(state_in)), buffer(buffer_in), shape(std::move(shape_in)), device(device_in) {
  state->live_buffers.fetch_add(1, std::memory_order_relaxed);
}

Buffer::Impl::~Impl() {
  PJRT_Buffer_Destroy_Args args = {};
  args.buffer = buffer;
  const Status status = FB_PJRT(state->api, PJRT_Buffer_Destroy, args);
  FB_CHECK(status.ok(), status.ToString());
  state->live_buffers.fetch_sub(1, std::memory_order_relaxed);
}

bool Buffer::Impl::IsDeleted() const {
  PJRT_Buffer_IsDeleted_Args args = {};
  args.buffer = buffer;
  return FB_PJRT(state->api, PJRT_Buffer_IsDeleted, args).ok() && args.is_deleted;
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

Status Buffer::Await() const {
  if (impl_ == nullptr) {
    return FailedPrecondition(
        "Buffer::Await: the buffer is empty (moved from, or donated to a program)");
  }
  const pjrt::Api& api = impl_->state->api;
  PJRT_Buffer_ReadyEvent_Args args = {};
  args.buffer = impl_->buffer;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Buffer_ReadyEvent, args));
  return api.AwaitAndDestroy(args.event, "computing a buffer");
}

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
  // Row-major is said outright: without it, a plugin copies its own device layout (a TPU's is
  // tiled).
  std::vector<int64_t> minor_to_major(shape.dims.size());
  for (size_t i = 0; i < minor_to_major.size(); ++i) {
    minor_to_major[i] = static_cast<int64_t>(minor_to_major.size() - 1 - i);
  }
  PJRT_Buffer_MemoryLayout layout = {};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();

  const pjrt::Api& api = impl_->state->api;
  PJRT_Buffer_ToHostBuffer_Args args = {};
  args.src = impl_->buffer;
  args.host_layout = &layout;
  args.dst = dst.data();
  args.dst_size = dst.size();
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Buffer_ToHostBuffer, args));
  return api.AwaitAndDestroy(args.event, "copying a buffer to the host");
}

namespace pjrt {

ClientState::~ClientState() {
  PJRT_Client_Destroy_Args args = {};
  args.client = client;
  const Status status = FB_PJRT(api, PJRT_Client_Destroy, args);
  FB_CHECK(status.ok(), status.ToString());
}

Buffer MakeBuffer(std::shared_ptr<ClientState> state, PJRT_Buffer* buffer, const Shape& shape,
                  int device) {
  return Buffer(std::make_unique<Buffer::Impl>(std::move(state), buffer, shape, device));
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
