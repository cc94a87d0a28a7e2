// ClientState: what every Buffer and Executable of one Client shares; it lives until the last of
// them is gone, so the order in which a user drops a Client and its Buffers does not matter.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/plugin.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::pjrt {

struct ClientState {
  // Takes `client`, which `plugin` made.
  ClientState(const Plugin* plugin_in, PJRT_Client* client_in)
      : plugin(plugin_in), api(plugin_in->api), client(client_in) {}
  ~ClientState();
  ClientState(const ClientState&) = delete;
  ClientState& operator=(const ClientState&) = delete;

  const Plugin* const plugin;
  const Api api;
  PJRT_Client* const client;
  std::vector<PJRT_Device*> devices;  // the addressable ones
  std::atomic<int64_t> live_buffers = 0;
};

// Wraps `buffer`, which then belongs to the result.
Buffer MakeBuffer(std::shared_ptr<ClientState> state, PJRT_Buffer* buffer, const Shape& shape,
                  int device);

PJRT_Buffer_Type ToBufferType(DType dtype);

// Copies `data` to the addressable device of that index. Row-major; the memory is free on return.
Result<Buffer> BufferFromHost(const std::shared_ptr<ClientState>& state, const void* data,
                              const Shape& shape, int device);

}  // namespace forebay::xla::pjrt

namespace forebay::xla {

struct Buffer::Impl {
  Impl(std::shared_ptr<pjrt::ClientState> state_in, PJRT_Buffer* buffer_in, Shape shape_in,
       int device_in);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // True once the plugin took the memory (a donation).
  bool IsDeleted() const;

  const std::shared_ptr<pjrt::ClientState> state;
  PJRT_Buffer* const buffer;
  const Shape shape;
  const int device;  // index into state->devices
};

}  // namespace forebay::xla
