// PjrtClient: the Client of one loaded plugin, with its cache of compiled programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/pjrt/program_cache.h"
#include "forebay/xla/shape.h"

namespace forebay::xla::pjrt {

// A program that returns its argument: a copy, for plugins that refuse one within a device.
Program CopyProgram(const Shape& shape);

class PjrtClient final : public Client {
 public:
  PjrtClient(std::shared_ptr<ClientState> state, DiskCache disk_cache, int cached_programs_max);

  std::string platform() const override { return platform_; }
  std::string platform_version() const override { return platform_version_; }
  std::pair<int, int> api_version() const override;
  std::vector<DeviceInfo> devices() const override { return devices_; }
  bool calls_host_kernels() const override;
  Result<Buffer> FromHost(std::span<const std::byte> data, const Shape& shape, int device) override;
  Result<Buffer> Copy(const Buffer& buffer) override;
  Result<std::shared_ptr<Executable>> Compile(
      const Program& program, const std::map<std::string, std::string>& xla_flags) override;
  CompileCounters counters() const override;
  int64_t live_buffers() const override;

  const std::shared_ptr<ClientState>& state() const { return state_; }

  // Fills the description of the client's devices; called once, before use.
  Status Describe();

 private:
  using Compiled = Result<std::shared_ptr<Executable>>;

  Hash128 Key(const Program& program, const std::map<std::string, std::string>& xla_flags) const;
  // The ids of the devices that a program over a mesh runs on; none for other programs.
  std::span<const int64_t> DevicesOf(const Program& program) const;
  std::string CompileOptions(const Program& program,
                             const std::map<std::string, std::string>& xla_flags) const;
  void EvictIfFull();  // under mutex_
  Compiled LoadOrCompile(const Program& program,
                         const std::map<std::string, std::string>& xla_flags, const Hash128& key);
  Compiled Load(const Program& program, const std::string& serialized);
  Compiled CompileNow(const Program& program, const std::map<std::string, std::string>& xla_flags);

  const std::shared_ptr<ClientState> state_;
  const DiskCache disk_cache_;
  const size_t cached_programs_max_;
  std::string platform_;
  std::string platform_version_;
  std::string machine_;  // what compiled code depends on besides the program
  std::vector<DeviceInfo> devices_;

  mutable std::mutex mutex_;
  CompileCounters counters_ = {};
  struct Entry {
    // A future, so that a second request for a program that is being compiled waits for the first
    // one.
    std::shared_future<Compiled> compiled;
    int64_t last_use = 0;
  };
  std::map<Hash128, Entry> programs_;
  int64_t uses_ = 0;
};

}  // namespace forebay::xla::pjrt
