// PjrtExecutable: a compiled program on one device or on those of a mesh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla::pjrt {

class PjrtExecutable final : public Executable {
 public:
  // Takes `loaded`. kInvalidArgument when the module does not return what `program` says.
  static Result<std::shared_ptr<PjrtExecutable>> Create(std::shared_ptr<ClientState> state,
                                                        PJRT_LoadedExecutable* loaded,
                                                        Program program);
  ~PjrtExecutable() override;
  PjrtExecutable(const PjrtExecutable&) = delete;
  PjrtExecutable& operator=(const PjrtExecutable&) = delete;

  Result<std::vector<Buffer>> Execute(std::span<Buffer* const> arguments) override;
  const Program& program() const override { return program_; }
  Result<MemoryStats> memory() const override;
  std::map<std::string, double> cost() const override;

  // The machine code, for the disk cache; kUnimplemented where the plugin cannot.
  Result<std::string> Serialize() const;

 private:
  PjrtExecutable(std::shared_ptr<ClientState> state, PJRT_LoadedExecutable* loaded,
                 Program program);

  Status CheckSpecs();
  Status CheckResults() const;
  Status CheckArguments(std::span<Buffer* const> arguments) const;
  Status CheckPlace(size_t index, const Buffer& argument) const;
  std::string ArgumentName(size_t index) const;

  const std::shared_ptr<ClientState> state_;
  PJRT_LoadedExecutable* const loaded_;
  PJRT_Executable* executable_ = nullptr;
  const Program program_;
  std::vector<int64_t> kept_arguments_;  // the arguments that may not be donated
  // On a mesh, how each argument and result is split.
  std::vector<std::shared_ptr<const Sharding>> argument_shardings_;
  std::vector<std::shared_ptr<const Sharding>> result_shardings_;
};

}  // namespace forebay::xla::pjrt
