// ClientState: what every Buffer and Executable of one Client shares; it lives until the last of
// them is gone, so the order in which a user drops a Client and its Buffers does not matter.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/plugin.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

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
  std::vector<int64_t> device_ids;    // the plugin's ids of them
  std::atomic<int64_t> live_buffers = 0;

  // Launches a program on several devices. One launch at a time, so that all devices see programs
  // in one order: collectives that meet in different orders would wait for each other for ever. The
  // CPU plugin's devices share one pool of threads and programs wait in it for their partners; with
  // more than 32 queued ahead it stops for good, so there each launch also waits for the one
  // before.
  Status LaunchOnMesh(PJRT_LoadedExecutable_Execute_Args& args);

  bool is_cpu = false;

 private:
  std::mutex launch_mutex_;
  std::vector<PJRT_Event*> last_launch_;  // under launch_mutex_: when it ends on each device
};

// Wraps `buffer`, which then belongs to the result.
Buffer MakeBuffer(std::shared_ptr<ClientState> state, PJRT_Buffer* buffer, const Shape& shape,
                  int device);
// The same for the parts of a split array, part i on device i.
Buffer MakeBuffer(std::shared_ptr<ClientState> state, std::vector<PJRT_Buffer*> parts,
                  const Shape& shape, std::shared_ptr<const Sharding> sharding);

PJRT_Buffer_Type ToBufferType(DType dtype);

// Copies `data` to the addressable device of that index. Row-major; the memory is free on return.
Result<Buffer> BufferFromHost(const std::shared_ptr<ClientState>& state, const void* data,
                              const Shape& shape, int device);

}  // namespace forebay::xla::pjrt

namespace forebay::xla {

struct Buffer::Impl {
  Impl(std::shared_ptr<pjrt::ClientState> state_in, std::vector<PJRT_Buffer*> parts_in,
       Shape shape_in, int device_in, std::shared_ptr<const Sharding> sharding_in);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // True once the plugin took the memory (a donation).
  bool IsDeleted() const;
  // Gives the parts away.
  std::vector<PJRT_Buffer*> Release();

  const std::shared_ptr<pjrt::ClientState> state;
  std::vector<PJRT_Buffer*> parts;  // part i is on state->devices[device + i]
  const Shape shape;                // of the whole array
  const int device;
  const std::shared_ptr<const Sharding> sharding;  // null: one part, on `device`
};

}  // namespace forebay::xla
