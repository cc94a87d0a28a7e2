#include "forebay/xla/shared_host.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/pjrt/pjrt_client.h"
#include "forebay/xla/shape.h"

namespace forebay::xla {
namespace {

// What is kept until the plugin is done with it.
struct Held {
  pjrt::Api api;
  PJRT_Event* done;
  std::shared_ptr<const void> owner;
};

void LetGo(PJRT_Error* error, void* user) {
  const std::unique_ptr<Held> held(static_cast<Held*>(user));
  static_cast<void>(held->api.ToStatus(error, "PJRT_Event_OnReady"));
  held->api.Destroy(held->done);
}

Result<Buffer> Share(Client& client, std::span<const std::byte> bytes, const Shape& shape,
                     std::shared_ptr<const void> owner, PJRT_HostBufferSemantics semantics) {
  constexpr uintptr_t kAlignment = 64;
  auto* pjrt = dynamic_cast<pjrt::PjrtClient*>(&client);
  const bool fits = static_cast<int64_t>(bytes.size()) == shape.bytes() &&
                    reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment == 0;
  if (pjrt == nullptr || !pjrt->state()->is_cpu || !fits) return client.FromHost(bytes, shape, 0);
  const std::shared_ptr<pjrt::ClientState>& state = pjrt->state();
  PJRT_Client_BufferFromHostBuffer_Args args = {};
  args.client = state->client;
  args.data = bytes.data();
  args.type = pjrt::ToBufferType(shape.dtype);
  args.dims = shape.dims.data();
  args.num_dims = shape.dims.size();
  args.host_buffer_semantics = semantics;
  args.device = state->devices[0];
  FB_RETURN_IF_ERROR(FB_PJRT(state->api, PJRT_Client_BufferFromHostBuffer, args));
  Buffer buffer = pjrt::MakeBuffer(state, args.buffer, shape, 0);
  auto held =
      std::make_unique<Held>(Held{state->api, args.done_with_host_buffer, std::move(owner)});
  PJRT_Event_OnReady_Args ready = {};
  ready.event = args.done_with_host_buffer;
  ready.callback = &LetGo;
  ready.user_arg = held.get();
  const Status status = FB_PJRT(state->api, PJRT_Event_OnReady, ready);
  // It is LetGo's now. After an error it is kept for good: nobody would say when it may go.
  held.release();  // NOLINT(bugprone-unused-return-value)
  FB_RETURN_IF_ERROR(status);
  return buffer;
}

}  // namespace

Result<Buffer> ShareHost(Client& client, std::span<const std::byte> bytes, const Shape& shape,
                         std::shared_ptr<const void> owner) {
  return Share(client, bytes, shape, std::move(owner), PJRT_HostBufferSemantics_kImmutableZeroCopy);
}

Result<Buffer> GiveHost(Client& client, std::shared_ptr<std::byte> bytes, const Shape& shape) {
  const std::span<const std::byte> all(bytes.get(), static_cast<size_t>(shape.bytes()));
  return Share(client, all, shape, std::move(bytes), PJRT_HostBufferSemantics_kMutableZeroCopy);
}

}  // namespace forebay::xla
