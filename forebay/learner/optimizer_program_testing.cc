#include "forebay/learner/optimizer_program_testing.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/model.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharded_buffer.h"
#include "forebay/xla/sharding.h"

namespace forebay::learner {

FloatArrays RandomArrays(std::span<const models::ParamSpec> specs, uint64_t seed, double scale) {
  Rng rng(seed);
  FloatArrays out;
  for (const models::ParamSpec& spec : specs) {
    out.emplace_back();
    for (int64_t i = 0; i < spec.shape.elements(); ++i) {
      out.back().push_back(static_cast<float>(scale * rng.Normal()));
    }
  }
  return out;
}

OptimizerProgram::OptimizerProgram(xla::Client& client, const OptimizerOptions& options,
                                   std::vector<models::ParamSpec> specs, const FloatArrays& params,
                                   const xla::Mesh& mesh)
    : client_(client),
      options_(options),
      mesh_(mesh),
      specs_(std::move(specs)),
      states_(OptimizerStateSpecs(options_, specs_, mesh_)) {
  const auto program = TraceApply(specs_, options_, mesh_);
  FB_CHECK(program.ok(), program.status().ToString());
  program_ = client_.Compile(*program).value();
  for (size_t i = 0; i < specs_.size(); ++i) {
    buffers_.push_back(Place(params[i], specs_[i].shape, specs_[i].partition));
  }
  for (const StateSpec& s : states_) {
    const std::vector<std::byte> zeros(static_cast<size_t>(s.shape.bytes()));
    buffers_.push_back(Place(zeros, s.shape, s.partition));
  }
}

float OptimizerProgram::Step(const FloatArrays& gradients, double rate) {
  std::vector<xla::Buffer> inputs;
  for (size_t i = 0; i < specs_.size(); ++i) {
    inputs.push_back(Place(gradients[i], specs_[i].shape, specs_[i].partition));
  }
  inputs.push_back(Place(HyperParameters(options_, rate, ++updates_),
                         {xla::DType::kF32, {HyperCount(options_)}}, {}));
  std::vector<xla::Buffer*> arguments;
  for (auto& buffer : buffers_) arguments.push_back(&buffer);
  for (auto& buffer : inputs) arguments.push_back(&buffer);
  auto results = program_->Execute(arguments);
  FB_CHECK(results.ok(), results.status().ToString());
  buffers_ = std::move(*results);
  const float norm = buffers_.back().ToVector<float>().value()[0];
  buffers_.pop_back();
  return norm;
}

std::vector<float> OptimizerProgram::Param(size_t i) const {
  return buffers_[i].ToVector<float>().value();
}

ByteArrays OptimizerProgram::Save() const {
  ByteArrays out;
  for (const auto& buffer : buffers_) {
    out.emplace_back(static_cast<size_t>(buffer.shape().bytes()));
    FB_CHECK(buffer.ToHost(out.back()).ok(), "copy");
  }
  return out;
}

void OptimizerProgram::Load(const ByteArrays& saved, int64_t updates) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const bool is_param = i < specs_.size();
    const size_t s = i - (is_param ? 0 : specs_.size());
    buffers_[i] = Place(saved[i], is_param ? specs_[i].shape : states_[s].shape,
                        is_param ? specs_[i].partition : states_[s].partition);
  }
  updates_ = updates;
}

xla::Buffer OptimizerProgram::Place(std::span<const std::byte> bytes, const xla::Shape& shape,
                                    const xla::PartitionSpec& partition) const {
  const xla::Sharding sharding =
      mesh_.size() == 1 ? xla::Sharding{} : xla::Sharding{.mesh = mesh_, .spec = partition};
  auto buffer = xla::SplitFromHost(client_, bytes, shape, sharding);
  FB_CHECK(buffer.ok(), buffer.status().ToString());
  return std::move(*buffer);
}

xla::Buffer OptimizerProgram::Place(const std::vector<float>& values, const xla::Shape& shape,
                                    const xla::PartitionSpec& partition) const {
  return Place(std::as_bytes(std::span(values)), shape, partition);
}

}  // namespace forebay::learner
