// HostKernel: a function of this process that a compiled program calls. For what XLA's code for the
// CPU does badly; a program that holds one runs only where Client::calls_host_kernels().
//
// A kernel is a plain function (no state, no captures), so that a program which was compiled by one
// process and loaded by another finds it again by its name. It must be pure: results depend on the
// operands and numbers alone, bit for bit, whatever the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/shape.h"

// XLA's own types (xla/ffi/api/c_api.h), which only xla/ffi/ looks into.
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

namespace forebay::xla {

// One operand or result: dense, row-major.
struct HostArray {
  DType dtype;
  std::span<const int64_t> dims;
  void* data;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// One call. Valid while the kernel runs; used on the thread that called it.
class HostCall {
 public:
  std::span<const HostArray> operands() const { return operands_; }
  // Uninitialised: a kernel writes every element.
  std::span<const HostArray> results() const { return results_; }
  // A number that CallHost was given; CHECKs that there is one of this name.
  double number(std::string_view name) const;

  // How many threads ForEach may use at once, the calling one included.
  int64_t threads() const;
  // fn(0), ..., fn(count - 1), spread over the program's own threads, this one included; blocks
  // until all have returned. Indices are handed out in rising order and a thread ends one before it
  // takes the next: fn(i) may wait for fn(j), j < i, and for no other. `fn` must not throw.
  // Without memory the process ends.
  void ForEach(int64_t count, const std::function<void(int64_t)>& fn) const noexcept;

 private:
  friend XLA_FFI_Error* RunHostKernel(Status (*function)(const HostCall&),
                                      XLA_FFI_CallFrame* frame);
  explicit HostCall(XLA_FFI_CallFrame* frame) : frame_(frame) {}

  XLA_FFI_CallFrame* frame_;
  std::vector<HostArray> operands_, results_;
};

// What a kernel does. An error fails the program's run: Await and ToHost of its results report it.
using HostFunction = Status (*)(const HostCall&);

XLA_FFI_Error* RunHostKernel(HostFunction function, XLA_FFI_CallFrame* frame);

struct HostKernel {
  std::string name;  // letters, digits and _; one function a name in a process
  XLA_FFI_Error* (*entry)(XLA_FFI_CallFrame*) = nullptr;
};

template <HostFunction kFunction>
HostKernel MakeHostKernel(std::string name) {
  return {std::move(name),
          [](XLA_FFI_CallFrame* frame) { return RunHostKernel(kFunction, frame); }};
}

}  // namespace forebay::xla
