// Client: one PJRT plugin (CPU, CUDA, TPU: a shared library) with its devices.
//
// Thread-safe (a Buffer is not: one owner at a time). Execution is asynchronous where the plugin
// is: results are usable as arguments at once; Buffer::Await and ToHost block until the value is
// there. Every PJRT_Error becomes a Status that names the failing call.
//
// On the CPU plugin, measured on 2 cores with a program of 24 products of 1024 x 1024 (121 ms)
// beside one of two products of 256 x 256 (0.3 ms):
// - Execute returns at once (0.03 ms), also while its arguments are still being computed: a chain
//   of programs can be queued ahead. With 32 in flight it waits for the oldest, which bounds
//   memory. FromHost copies before it returns; else only ToHost, Await and the last owner's
//   destructor wait. Programs over a mesh of virtual devices run one at a time: Execute waits for
//   the one before.
// - Each client has its own pool of threads. Programs of one client share it, so a short program
//   queues behind the parts of a long one: 0.3 ms becomes 3.4 ms. With a client each, both progress
//   (0.5 ms; the long one 118 -> 134 ms). Hence one client for the learner and one for the engine.
// - Memory moves at the speed of memcpy plus page faults: 540 MB take 230 ms in (a fresh
//   allocation) and 28 ms out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// A plugin logs to stderr only, so it is silenced, unless TF_CPP_MIN_LOG_LEVEL is set in the
// environment.
struct ClientOptions {
  std::string plugin_path;   // see FindPlugin
  int cpu_device_count = 0;  // > 0: that many virtual devices on the CPU plugin; 0 is one
  // Compiled programs on disk, where the plugin can serialize; "" keeps them in memory only.
  std::string cache_dir;
  // Programs kept in memory; beyond it the least recently used one is dropped (its users keep it).
  // A run has tens, one a bucket: the limit is for a process that makes shapes without end.
  int cached_programs_max = 512;
};

// The plugin file to use: `explicit_path` if given, else $FOREBAY_PJRT_PLUGIN, else the CPU plugin
// that set-up installed. kNotFound says where it looked and how to install one.
Result<std::string> FindPlugin(const std::string& explicit_path);

struct DeviceInfo {
  int id;
  std::string kind;  // "cpu", "NVIDIA H200", "TPU v5p"
  std::string description;
  bool addressable;
};

struct MemoryStats {  // of one compiled program, in bytes on each device
  int64_t argument_bytes, output_bytes, temp_bytes, alias_bytes, code_bytes;
};

class Client;

// An array on a device, or one that is split over the devices of a mesh. Move-only; freed with its
// last owner, and may outlive its Client. An empty Buffer was moved from or donated.
class Buffer {
 public:
  Buffer();
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  // One array from its parts: parts[i] is on the client's device i and has the shape that
  // `sharding` gives to a part of `shape`. Parts along axes that the spec does not name must be
  // equal. kInvalidArgument for a wrong number, place or shape, or a spec that does not fit; the
  // parts are then freed. See also xla/sharded_buffer.h.
  static Result<Buffer> FromParts(std::vector<Buffer> parts, const Shape& shape,
                                  const Sharding& sharding);
  // The parts of a split array, one a device; of any other, itself.
  std::vector<Buffer> TakeParts() &&;

  bool empty() const { return impl_ == nullptr; }
  // Of the whole array.
  const Shape& shape() const;
  // How the array is split; null: all of it is on one device.
  const Sharding* sharding() const;
  // Blocks until computed; reports the error of the computation that should have made it.
  Status Await() const;
  // Does not block: `fn` runs once, when the value is there or has failed, on a thread of the
  // plugin or, if that is so already, on this one. It must be quick and use nothing of this
  // library. It may run after the Buffer is gone. Errors: `fn` may then never run.
  Status OnReady(std::function<void()> fn) const;
  // Blocks and calls fn(slice, bytes) for each part of the array, row-major; one that several
  // devices have comes once. For arrays too large to be held whole on the host. An error of fn ends
  // the visit and is returned.
  Status VisitParts(
      const std::function<Status(const ShardSlice&, std::span<const std::byte>)>& fn) const;
  // Blocks and copies the whole array to dst, row-major; dst.size() must be shape().bytes().
  Status ToHost(std::span<std::byte> dst) const;
  // For small results: all elements as T (float for f32, int32_t for s32). CHECKs the size of T.
  template <typename T>
  Result<std::vector<T>> ToVector() const {
    std::vector<T> out(static_cast<size_t>(shape().elements()));
    FB_CHECK(static_cast<int64_t>(out.size() * sizeof(T)) == shape().bytes(), "element size");
    FB_RETURN_IF_ERROR(ToHost(std::as_writable_bytes(std::span<T>(out))));
    return out;
  }

  struct Impl;
  Impl* impl() const { return impl_.get(); }
  explicit Buffer(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// A compiled program, on one device or, when program().mesh has more, on that many. Thread-safe.
class Executable {
 public:
  virtual ~Executable() = default;
  // Runs with one Buffer an argument, in Parameter order, without waiting. A program over a mesh
  // takes and returns arrays that are split as its specs say. Donated arguments are
  // consumed (left empty); the others are never written to, even where the module's text allows it.
  // Errors: kInvalidArgument for a wrong count, shape or split (named; nothing is consumed),
  // kInternal from the plugin (donated arguments that it took before it failed are empty). An error
  // while computing is reported by Await and ToHost of the results.
  virtual Result<std::vector<Buffer>> Execute(std::span<Buffer* const> arguments) = 0;
  virtual const Program& program() const = 0;
  virtual Result<MemoryStats> memory() const = 0;
  // Cost analysis, for instance {"flops": ..., "bytes accessed": ...}; empty where the plugin has
  // none (the CPU plugin).
  virtual std::map<std::string, double> cost() const = 0;
};

struct CompileCounters {
  int64_t compiled;  // programs handed to the compiler
  int64_t memory_hits;
  int64_t disk_hits;
  double compile_seconds;
};

class Client {
 public:
  // Loads the plugin (kNotFound, kInvalidArgument when it is no plugin) and creates its client.
  static Result<std::unique_ptr<Client>> Create(const ClientOptions& options);
  virtual ~Client() = default;

  virtual std::string platform() const = 0;  // "cpu"
  virtual std::string platform_version() const = 0;
  virtual std::pair<int, int> api_version() const = 0;
  virtual std::vector<DeviceInfo> devices() const = 0;
  // Whether programs with host kernels (xla/host_kernel.h) run here: on CPU plugins of API 0.115
  // and newer.
  virtual bool calls_host_kernels() const = 0;

  // Copies `data` (row-major) to a device; the memory is free for the caller on return.
  virtual Result<Buffer> FromHost(std::span<const std::byte> data, const Shape& shape,
                                  int device = 0) = 0;
  // A copy on the same device (or devices).
  virtual Result<Buffer> Copy(const Buffer& buffer) = 0;

  // Compiles for device 0, or for the first devices as many as the program's mesh has; or finds the
  // equal program (text + plugin version + flags) in the cache. Two threads
  // that ask for one program compile it once. Blocks (seconds). `xla_flags` override XLA debug
  // options by name, values as text ("true", "4").
  // Errors: the compiler's text, with the program's name; kInvalidArgument for an unknown flag, a
  // mesh larger than the client, or a Program whose results are not the module's; kUnimplemented
  // for host kernels where !calls_host_kernels().
  virtual Result<std::shared_ptr<Executable>> Compile(
      const Program& program, const std::map<std::string, std::string>& xla_flags = {}) = 0;
  virtual CompileCounters counters() const = 0;

  // Arrays alive on this client's devices (one a part of a split Buffer); tests end at zero.
  virtual int64_t live_buffers() const = 0;

  // FromHost of a typed array.
  template <typename T>
  Result<Buffer> FromVector(const std::vector<T>& values, const Shape& shape) {
    return FromHost(std::as_bytes(std::span<const T>(values)), shape);
  }
};

}  // namespace forebay::xla
