#include "forebay/xla/pjrt/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/pjrt/api.h"
#include "forebay/xla/pjrt/client_state.h"
#include "forebay/xla/pjrt/executable_stats.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla::pjrt {

PjrtExecutable::PjrtExecutable(std::shared_ptr<ClientState> state, PJRT_LoadedExecutable* loaded,
                               Program program)
    : state_(std::move(state)), loaded_(loaded), program_(std::move(program)) {
  for (size_t i = 0; i < program_.arguments.size(); ++i) {
    const bool donated = i < program_.donated_to.size() && program_.donated_to[i] >= 0;
    if (!donated) kept_arguments_.push_back(static_cast<int64_t>(i));
  }
}

Result<std::shared_ptr<PjrtExecutable>> PjrtExecutable::Create(std::shared_ptr<ClientState> state,
                                                               PJRT_LoadedExecutable* loaded,
                                                               Program program) {
  // Owned from here on, so that an error below frees it.
  std::shared_ptr<PjrtExecutable> self(
      new PjrtExecutable(std::move(state), loaded, std::move(program)));
  const Api& api = self->state_->api;
  PJRT_LoadedExecutable_GetExecutable_Args get = {};
  get.loaded_executable = loaded;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_LoadedExecutable_GetExecutable, get));
  self->executable_ = get.executable;

  FB_RETURN_IF_ERROR(self->CheckSpecs());
  FB_RETURN_IF_ERROR(self->CheckResults());
  return self;
}

Status PjrtExecutable::CheckSpecs() {
  if (program_.mesh.size() == 1) return OkStatus();
  const auto check = [&](std::string_view what, std::span<const Shape> shapes,
                         std::span<const PartitionSpec> specs,
                         std::vector<std::shared_ptr<const Sharding>>& shardings) {
    if (specs.size() != shapes.size()) {
      return InvalidArgument(fmt::format("program '{}' on the mesh {} has {} specs for {} {}s",
                                         program_.name, program_.mesh.ToString(), specs.size(),
                                         shapes.size(), what));
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      FB_RETURN_IF_ERROR(
          CheckSpec(program_.mesh, specs[i], shapes[i])
              .WithContext(fmt::format("program '{}', {} {}", program_.name, what, i)));
      shardings.push_back(std::make_shared<const Sharding>(program_.mesh, specs[i]));
    }
    return OkStatus();
  };
  FB_RETURN_IF_ERROR(
      check("argument", program_.arguments, program_.argument_specs, argument_shardings_));
  return check("result", program_.results, program_.result_specs, result_shardings_);
}

Status PjrtExecutable::CheckResults() const {
  const Api& api = state_->api;
  // A wrong number would have Execute write past its output list.
  PJRT_Executable_NumOutputs_Args outputs = {};
  outputs.executable = executable_;
  FB_RETURN_IF_ERROR(FB_PJRT(api, PJRT_Executable_NumOutputs, outputs));
  if (outputs.num_outputs != program_.results.size()) {
    return InvalidArgument(fmt::format("program '{}' declares {} results, its module returns {}",
                                       program_.name, program_.results.size(),
                                       outputs.num_outputs));
  }
  // Plugins need not answer these two; a wrong shape then shows in ToHost.
  PJRT_Executable_OutputElementTypes_Args types = {};
  types.executable = executable_;
  PJRT_Executable_OutputDimensions_Args dims = {};
  dims.executable = executable_;
  if (!FB_PJRT(api, PJRT_Executable_OutputElementTypes, types).ok() ||
      !FB_PJRT(api, PJRT_Executable_OutputDimensions, dims).ok() ||
      types.num_output_types != outputs.num_outputs || dims.num_outputs != outputs.num_outputs) {
    return OkStatus();
  }
  const int64_t* next = dims.dims;
  for (size_t i = 0; i < program_.results.size(); ++i) {
    Shape shape = program_.results[i];
    if (!result_shardings_.empty()) {
      shape = LocalShape(program_.mesh, program_.result_specs[i], std::move(shape));
    }
    const std::span<const int64_t> found(next, dims.dim_sizes[i]);
    next += found.size();
    if (types.output_types[i] != ToBufferType(shape.dtype) ||
        !std::ranges::equal(found, shape.dims)) {
      return InvalidArgument(
          fmt::format("program '{}' declares result {} as {}, its module returns another type, of "
                      "dimensions [{}]",
                      program_.name, i, shape.ToString(), fmt::join(found, ",")));
    }
  }
  return OkStatus();
}

PjrtExecutable::~PjrtExecutable() {
  if (executable_ != nullptr) {
    PJRT_Executable_Destroy_Args args = {};
    args.executable = executable_;
    const Status status = FB_PJRT(state_->api, PJRT_Executable_Destroy, args);
    FB_CHECK(status.ok(), status.ToString());
  }
  PJRT_LoadedExecutable_Destroy_Args args = {};
  args.executable = loaded_;
  const Status status = FB_PJRT(state_->api, PJRT_LoadedExecutable_Destroy, args);
  FB_CHECK(status.ok(), status.ToString());
}

std::string PjrtExecutable::ArgumentName(size_t index) const {
  if (index < program_.argument_names.size()) {
    return fmt::format("argument {} '{}'", index, program_.argument_names[index]);
  }
  return fmt::format("argument {}", index);
}

Status PjrtExecutable::CheckArguments(std::span<Buffer* const> arguments) const {
  if (arguments.size() != program_.arguments.size()) {
    return InvalidArgument(fmt::format("program '{}' takes {} arguments, {} were given",
                                       program_.name, program_.arguments.size(), arguments.size()));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Buffer* argument = arguments[i];
    if (argument == nullptr || argument->empty()) {
      return InvalidArgument(fmt::format(
          "program '{}', {}: the buffer is empty (moved from, or donated by an earlier call)",
          program_.name, ArgumentName(i)));
    }
    if (argument->shape() != program_.arguments[i]) {
      return InvalidArgument(fmt::format("program '{}', {}: takes {}, got {}", program_.name,
                                         ArgumentName(i), program_.arguments[i].ToString(),
                                         argument->shape().ToString()));
    }
    if (argument->impl()->state != state_) {
      return InvalidArgument(fmt::format("program '{}', {}: the buffer belongs to another client",
                                         program_.name, ArgumentName(i)));
    }
    FB_RETURN_IF_ERROR(CheckPlace(i, *argument));
  }
  // A donated buffer is gone after the call, so it may stand in the list only once.
  if (kept_arguments_.size() == arguments.size()) return OkStatus();
  std::vector<std::pair<const Buffer*, size_t>> sorted;
  sorted.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) sorted.emplace_back(arguments[i], i);
  std::sort(sorted.begin(), sorted.end());
  for (size_t k = 1; k < sorted.size(); ++k) {
    if (sorted[k].first != sorted[k - 1].first) continue;
    for (const size_t i : {sorted[k - 1].second, sorted[k].second}) {
      if (i >= program_.donated_to.size() || program_.donated_to[i] < 0) continue;
      return InvalidArgument(fmt::format(
          "program '{}', {}: this argument is donated, but the same buffer is also {}",
          program_.name, ArgumentName(i),
          ArgumentName(i == sorted[k].second ? sorted[k - 1].second : sorted[k].second)));
    }
  }
  return OkStatus();
}

Status PjrtExecutable::CheckPlace(size_t index, const Buffer& argument) const {
  const Sharding* found = argument.sharding();
  const Sharding* wanted = argument_shardings_.empty() ? nullptr : argument_shardings_[index].get();
  // Results of an earlier run are its own Sharding: the common case is found at once.
  if (wanted != nullptr && (found == wanted || (found != nullptr && *wanted == *found))) {
    return OkStatus();
  }
  if (wanted == nullptr && found == nullptr && argument.impl()->device == 0) return OkStatus();
  const std::string place = found != nullptr ? "split as " + found->ToString()
                                             : fmt::format("on device {}", argument.impl()->device);
  return InvalidArgument(
      fmt::format("program '{}', {}: the buffer is {}, the program takes it {}", program_.name,
                  ArgumentName(index), place,
                  wanted != nullptr ? "split as " + wanted->ToString() : "on device 0"));
}

Result<std::vector<Buffer>> PjrtExecutable::Execute(std::span<Buffer* const> arguments) {
  FB_RETURN_IF_ERROR(CheckArguments(arguments));
  const auto devices = static_cast<size_t>(program_.mesh.size());
  std::vector<std::vector<PJRT_Buffer*>> inputs(devices);
  std::vector<std::vector<PJRT_Buffer*>> outputs(devices);
  std::vector<PJRT_Buffer* const*> input_lists;
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t d = 0; d < devices; ++d) {
    inputs[d].reserve(arguments.size());
    for (const Buffer* argument : arguments) inputs[d].push_back(argument->impl()->parts[d]);
    outputs[d].assign(program_.results.size(), nullptr);
    input_lists.push_back(inputs[d].data());
    output_lists.push_back(outputs[d].data());
  }

  PJRT_ExecuteOptions options = {};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  options.non_donatable_input_indices = kept_arguments_.data();
  options.num_non_donatable_input_indices = kept_arguments_.size();
  PJRT_LoadedExecutable_Execute_Args args = {};
  args.executable = loaded_;
  args.options = &options;
  args.argument_lists = input_lists.data();
  args.num_devices = devices;
  args.num_args = arguments.size();
  args.output_lists = output_lists.data();
  const Status status = devices > 1 ? state_->LaunchOnMesh(args)
                                    : FB_PJRT(state_->api, PJRT_LoadedExecutable_Execute, args);

  // Donated arguments are gone, and after an error those that the plugin took before it failed.
  for (size_t i = 0; i < arguments.size() && i < program_.donated_to.size(); ++i) {
    if (program_.donated_to[i] < 0) continue;
    if (status.ok() || arguments[i]->impl()->IsDeleted()) *arguments[i] = Buffer();
  }
  if (!status.ok()) return status.WithContext(fmt::format("program '{}'", program_.name));

  std::vector<Buffer> results;
  results.reserve(program_.results.size());
  for (size_t i = 0; i < program_.results.size(); ++i) {
    if (result_shardings_.empty()) {
      results.push_back(MakeBuffer(state_, outputs[0][i], program_.results[i], /*device=*/0));
      continue;
    }
    std::vector<PJRT_Buffer*> parts;
    parts.reserve(devices);
    for (size_t d = 0; d < devices; ++d) parts.push_back(outputs[d][i]);
    results.push_back(
        MakeBuffer(state_, std::move(parts), program_.results[i], result_shardings_[i]));
  }
  return results;
}

Result<MemoryStats> PjrtExecutable::memory() const { return ReadMemory(state_->api, executable_); }

std::map<std::string, double> PjrtExecutable::cost() const {
  return ReadCost(state_->api, executable_);
}

Result<std::string> PjrtExecutable::Serialize() const {
  PJRT_Executable_Serialize_Args args = {};
  args.executable = executable_;
  FB_RETURN_IF_ERROR(FB_PJRT(state_->api, PJRT_Executable_Serialize, args));
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

}  // namespace forebay::xla::pjrt
