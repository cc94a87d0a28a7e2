#include "bench/jax_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using xla::DType;

constexpr size_t kInputs = 3;   // ints, floats, hyper
constexpr size_t kMetrics = 4;  // loss, tokens, ratios, KL

xla::Shape ShapeOf(const json& j) {
  return {.dtype = j.at("dtype") == "s32" ? DType::kS32 : DType::kF32,
          .dims = j.at("dims").get<std::vector<int64_t>>()};
}

xla::Program ParseProgram(const std::string& name, std::string stablehlo, const json& side) {
  xla::Program program{.name = "jax_" + name, .stablehlo = std::move(stablehlo)};
  for (const json& argument : side.at("arguments")) {
    program.arguments.push_back(ShapeOf(argument));
    program.argument_names.push_back(argument.at("name"));
    program.donated_to.push_back(argument.at("donated_to"));
  }
  for (const json& result : side.at("results")) program.results.push_back(ShapeOf(result));
  return program;
}

}  // namespace

std::vector<std::string> JaxVariants(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") names.push_back(it->path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

Result<std::unique_ptr<JaxStep>> JaxStep::Create(const std::string& folder,
                                                 const std::string& variant, xla::Client& client) {
  FB_ASSIGN_OR_RETURN(std::string text, ReadFile(folder + "/" + variant + ".mlir"));
  FB_ASSIGN_OR_RETURN(const std::string side_text, ReadFile(folder + "/" + variant + ".json"));
  std::unique_ptr<JaxStep> step(new JaxStep(client));
  xla::Program program;
  try {
    const json side = json::parse(side_text);
    program = ParseProgram(variant, std::move(text), side);
    step->shape_ = {side.at("rows"), side.at("length")};
    step->jax_version_ = side.at("jax");
  } catch (const json::exception& error) {
    return DataLoss(folder + "/" + variant +
                    ".json is not what jax_learner.py writes: " + error.what());
  }
  if (program.arguments.size() <= kInputs ||
      program.results.size() != program.arguments.size() - kInputs + 2) {
    return DataLoss(folder + "/" + variant + ".json: the arguments do not fit the results");
  }
  for (const std::string& name : program.argument_names) {
    if (name.find(".*.") != std::string::npos) step->layout_ = models::LayerLayout::kStacked;
  }
  FB_ASSIGN_OR_RETURN(step->executable_, client.Compile(program));
  return step;
}

Status JaxStep::Load(const models::Model& model, const weights::TensorMap& tensors) {
  FB_ASSIGN_OR_RETURN(const weights::TensorMap params, model.FromCheckpoint(tensors, layout_));
  const xla::Program& program = executable_->program();
  state_.clear();
  for (size_t i = 0; i + kInputs < program.arguments.size(); ++i) {
    const std::string& name = program.argument_names[i];
    const xla::Shape& shape = program.arguments[i];
    const auto found = params.find(name.substr(2));
    if (found == params.end() || found->second.shape() != shape) {
      return InvalidArgument("the model has no weight " + name + " " + shape.ToString());
    }
    const std::vector<std::byte> zeros(name.starts_with("p:") ? 0
                                                              : static_cast<size_t>(shape.bytes()));
    FB_ASSIGN_OR_RETURN(
        xla::Buffer buffer,
        client_.FromHost(zeros.empty() ? found->second.bytes() : std::span(zeros), shape));
    state_.push_back(std::move(buffer));
  }
  return OkStatus();
}

Result<JaxOutcome> JaxStep::Run(const learner::MicroBatch& batch, const std::vector<float>& hyper) {
  FB_CHECK(batch.shape == shape_, "the program was made for another shape");
  const std::vector<xla::Shape>& shapes = executable_->program().arguments;
  const size_t n = state_.size();
  FB_ASSIGN_OR_RETURN(xla::Buffer ints, client_.FromVector(batch.ints, shapes[n]));
  FB_ASSIGN_OR_RETURN(xla::Buffer floats, client_.FromVector(batch.floats, shapes[n + 1]));
  FB_ASSIGN_OR_RETURN(xla::Buffer scalars, client_.FromVector(hyper, shapes[n + 2]));
  std::vector<xla::Buffer*> arguments;
  arguments.reserve(n + kInputs);
  for (xla::Buffer& buffer : state_) arguments.push_back(&buffer);
  arguments.insert(arguments.end(), {&ints, &floats, &scalars});
  FB_ASSIGN_OR_RETURN(std::vector<xla::Buffer> results, executable_->Execute(arguments));
  FB_ASSIGN_OR_RETURN(const auto norm, results.back().ToVector<float>());
  results.pop_back();
  FB_ASSIGN_OR_RETURN(const auto metrics, results.back().ToVector<float>());
  results.pop_back();
  FB_CHECK(metrics.size() == kMetrics, "jax_learner.py returns four metrics");
  state_ = std::move(results);
  return JaxOutcome{static_cast<double>(metrics[0]), static_cast<double>(norm[0])};
}

Result<int64_t> JaxStep::PeakBytes() const {
  FB_ASSIGN_OR_RETURN(const xla::MemoryStats memory, executable_->memory());
  return memory.argument_bytes + memory.output_bytes - memory.alias_bytes + memory.temp_bytes;
}

}  // namespace forebay::bench
