#include "forebay/models/program_testing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/models/model.h"
#include "forebay/weights/safetensors.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/shape.h"

namespace forebay::models {
namespace {

using weights::HostTensor;

template <typename T>
HostTensor FromVector(xla::DType dtype, xla::Dims dims, const std::vector<T>& values) {
  std::span<std::byte> bytes;
  HostTensor tensor = HostTensor::Allocate({dtype, std::move(dims)}, &bytes);
  FB_CHECK(bytes.size() == values.size() * sizeof(T), "as many values as the dims say");
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return tensor;
}

}  // namespace

xla::Client& TestClient() {
  static const std::unique_ptr<xla::Client> client =
      xla::Client::Create({.plugin_path = xla::FindPlugin("").value()}).value();
  return *client;
}

HostTensor F32(xla::Dims dims, const std::vector<float>& values) {
  return FromVector(xla::DType::kF32, std::move(dims), values);
}
HostTensor S32(xla::Dims dims, const std::vector<int32_t>& values) {
  return FromVector(xla::DType::kS32, std::move(dims), values);
}

xla::Value TestProgram::Input(const HostTensor& tensor, std::string_view name) {
  inputs_.push_back(tensor);
  return graph_.Parameter(tensor.shape(), name);
}

ParamValues TestProgram::Inputs(const weights::TensorMap& tensors) {
  ParamValues values;
  for (const auto& [name, tensor] : tensors) values[name] = Input(tensor, name);
  return values;
}

std::vector<std::vector<float>> TestProgram::Run(std::span<const xla::Value> results) {
  xla::Client& client = TestClient();
  const xla::Program program = graph_.Finish(results).value();
  const auto executable = client.Compile(program).value();
  std::vector<xla::Buffer> buffers;
  buffers.reserve(inputs_.size());
  for (const HostTensor& input : inputs_) {
    buffers.push_back(client.FromHost(input.bytes(), input.shape()).value());
  }
  std::vector<xla::Buffer*> arguments;
  arguments.reserve(buffers.size());
  for (xla::Buffer& buffer : buffers) arguments.push_back(&buffer);
  const std::vector<xla::Buffer> fetched = executable->Execute(arguments).value();
  std::vector<std::vector<float>> values;
  values.reserve(fetched.size());
  for (const xla::Buffer& buffer : fetched) {
    values.push_back(buffer.ToVector<float>().value());
  }
  return values;
}

Golden LoadGolden(const std::string& source_dir, const std::string& family) {
  const std::string folder = source_dir + "/tests/goldens/parity/" + family + "/";
  Golden golden;
  golden.config_json = ReadFile(folder + "config.json").value();
  golden.model = Model::Create(golden.config_json).value();
  golden.checkpoint = weights::ReadSafetensors(folder + "model.safetensors").value();
  golden.reference = weights::ReadSafetensors(folder + "reference.safetensors").value();
  return golden;
}

PackedRows::PackedRows(int64_t rows_in, int64_t length_in) : rows(rows_in), length(length_in) {
  const auto size = static_cast<size_t>(rows * length);
  tokens.assign(size, 0);
  segments.assign(size, 0);
  positions.assign(size, 0);
}

void PackedRows::Place(int64_t row, int64_t start, int32_t segment,
                       std::span<const int32_t> sequence) {
  FB_CHECK(start + static_cast<int64_t>(sequence.size()) <= length, "the sequence fits the row");
  for (size_t i = 0; i < sequence.size(); ++i) {
    const size_t at = static_cast<size_t>(row * length + start) + i;
    tokens[at] = sequence[i];
    segments[at] = segment;
    positions[at] = static_cast<int32_t>(i);
  }
}

PackedInputs PackedRows::Inputs(TestProgram* program) const {
  const xla::Dims dims = {rows, length};
  return {program->Input(S32(dims, tokens), "tokens"),
          program->Input(S32(dims, segments), "segments"),
          program->Input(S32(dims, positions), "positions")};
}

double MaxDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  }
  return worst;
}

double MaxMagnitude(std::span<const float> a) {
  double worst = 0;
  for (const float x : a) worst = std::max(worst, std::abs(static_cast<double>(x)));
  return worst;
}

}  // namespace forebay::models
