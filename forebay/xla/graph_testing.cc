#include "forebay/xla/graph_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharded_buffer.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

template <typename T>
void Put(std::vector<std::byte>& bytes, float value) {
  const T element = static_cast<T>(value);
  const auto* raw = reinterpret_cast<const std::byte*>(&element);
  bytes.insert(bytes.end(), raw, raw + sizeof(T));
}

template <typename T>
float Get(std::span<const std::byte> bytes, size_t i) {
  T element;
  std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
  return static_cast<float>(element);
}

std::vector<std::byte> ToBytes(const Floats& values, DType dtype) {
  std::vector<std::byte> bytes;
  for (const float v : values) {
    switch (dtype) {
      case DType::kPred:
        Put<uint8_t>(bytes, v != 0 ? 1.0F : 0.0F);
        break;
      case DType::kS8:
        Put<int8_t>(bytes, v);
        break;
      case DType::kU8:
        Put<uint8_t>(bytes, v);
        break;
      case DType::kS32:
        Put<int32_t>(bytes, v);
        break;
      case DType::kU32:
        Put<uint32_t>(bytes, v);
        break;
      case DType::kS64:
        Put<int64_t>(bytes, v);
        break;
      case DType::kU64:
        Put<uint64_t>(bytes, v);
        break;
      case DType::kBF16: {
        const auto bits = std::bit_cast<uint32_t>(v);
        const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
        const auto half = static_cast<uint16_t>(rounded >> 16);
        const auto* raw = reinterpret_cast<const std::byte*>(&half);
        bytes.insert(bytes.end(), raw, raw + 2);
        break;
      }
      case DType::kF32:
        Put<float>(bytes, v);
        break;
      case DType::kF16:
        FB_CHECK(false, "f16 arrays are not used by tests");
    }
  }
  return bytes;
}

float ElementAt(std::span<const std::byte> bytes, DType dtype, size_t i) {
  switch (dtype) {
    case DType::kPred:
    case DType::kU8:
      return Get<uint8_t>(bytes, i);
    case DType::kS8:
      return Get<int8_t>(bytes, i);
    case DType::kS32:
      return Get<int32_t>(bytes, i);
    case DType::kU32:
      return Get<uint32_t>(bytes, i);
    case DType::kS64:
      return Get<int64_t>(bytes, i);
    case DType::kU64:
      return Get<uint64_t>(bytes, i);
    case DType::kBF16: {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i * 2, 2);
      return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
    }
    case DType::kF32:
      return Get<float>(bytes, i);
    case DType::kF16:
      break;
  }
  FB_CHECK(false, "f16 arrays are not used by tests");
}

// A small generator of its own, so that test data does not change with a library.
uint64_t NextBits(uint64_t& state) {
  state += 0x9E3779B97F4A7C15ULL;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// sum_i <weights_i, float result_i>: any error in any cotangent shows in it.
Value WeightedSum(Graph& graph, const Values& results) {
  Value total = Constant(graph, 0.0, DType::kF32);
  uint64_t seed = 77;
  for (const Value& r : results) {
    if (!IsFloat(r.dtype())) continue;
    const Floats weights = RandomFloats(r.shape().elements(), ++seed, 0.5F, 1.5F);
    const Value w = ConstantArray(graph, weights, r.dims());
    Dims axes;
    for (int64_t i = 0; i < r.shape().rank(); ++i) axes.push_back(i);
    total = total + ReduceSum(Convert(r, DType::kF32) * w, axes);
  }
  return total;
}

Client* MakeTestClient(int devices) {
  const Result<std::string> plugin = FindPlugin("");
  FB_CHECK(plugin.ok(), plugin.status().ToString());
  Result<std::unique_ptr<Client>> created =
      Client::Create({.plugin_path = *plugin, .cpu_device_count = devices});
  FB_CHECK(created.ok(), created.status().ToString());
  return std::move(created).value().release();
}

Values Parameters(Graph& graph, const std::vector<Argument>& arguments) {
  Values values;
  values.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    values.push_back(graph.Parameter(arguments[i].shape, "arg" + std::to_string(i)));
  }
  return values;
}

std::vector<Floats> HostValues(const std::vector<Argument>& arguments) {
  std::vector<Floats> values;
  values.reserve(arguments.size());
  for (const Argument& a : arguments) values.push_back(a.values);
  return values;
}

}  // namespace

// Both are leaked on purpose: the plugin's threads outlive static destructors.
Client& TestClient() {
  static Client* const client = MakeTestClient(0);
  return *client;
}
Client& MeshTestClient() {
  static Client* const client = MakeTestClient(8);
  return *client;
}

std::vector<Floats> RunProgram(const Program& program, const std::vector<Floats>& arguments) {
  const bool on_mesh = program.mesh.size() > 1;
  Client& client = on_mesh ? MeshTestClient() : TestClient();
  Result<std::shared_ptr<Executable>> executable = client.Compile(program);
  if (!executable.ok()) {
    ADD_FAILURE() << executable.status().ToString() << "\n" << program.stablehlo.substr(0, 20000);
    return {};
  }
  if (arguments.size() != program.arguments.size()) {
    ADD_FAILURE() << arguments.size() << " arguments for " << program.arguments.size();
    return {};
  }
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Shape& shape = program.arguments[i];
    const std::vector<std::byte> bytes = ToBytes(arguments[i], shape.dtype);
    Result<Buffer> buffer =
        on_mesh ? SplitFromHost(client, bytes, shape, {program.mesh, program.argument_specs[i]})
                : client.FromHost(bytes, shape);
    if (!buffer.ok()) {
      ADD_FAILURE() << "argument " << i << ": " << buffer.status().ToString();
      return {};
    }
    buffers.push_back(std::move(buffer).value());
  }
  std::vector<Buffer*> pointers;
  pointers.reserve(buffers.size());
  for (Buffer& b : buffers) pointers.push_back(&b);
  Result<std::vector<Buffer>> outputs = (*executable)->Execute(pointers);
  if (!outputs.ok()) {
    ADD_FAILURE() << outputs.status().ToString();
    return {};
  }
  std::vector<Floats> results;
  for (const Buffer& output : *outputs) {
    std::vector<std::byte> bytes(static_cast<size_t>(output.shape().bytes()));
    const Status status = output.ToHost(bytes);
    if (!status.ok()) {
      ADD_FAILURE() << status.ToString();
      return {};
    }
    Floats values(static_cast<size_t>(output.shape().elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = ElementAt(bytes, output.shape().dtype, i);
    }
    results.push_back(std::move(values));
  }
  return results;
}

std::vector<Floats> RunGraph(Graph& graph, std::span<const Value> results,
                             const std::vector<Floats>& arguments) {
  const Result<Program> program = graph.Finish(results);
  if (!program.ok()) {
    ADD_FAILURE() << program.status().ToString();
    return {};
  }
  return RunProgram(*program, arguments);
}

std::vector<Floats> RunFn(const TracedFn& fn, const std::vector<Argument>& arguments) {
  Graph graph("test");
  const Values results = fn(Parameters(graph, arguments));
  return RunGraph(graph, results, HostValues(arguments));
}

std::vector<Floats> RunShardMap(const ShardMapCase& map, const TracedFn& body,
                                const std::vector<Argument>& arguments) {
  return RunFn(
      [&](std::span<const Value> xs) {
        return ShardMap(map.mesh, map.in_specs, map.out_specs, body, xs);
      },
      arguments);
}

Floats RandomFloats(int64_t count, uint64_t seed, float low, float high) {
  Floats values;
  uint64_t state = seed * 1000003;
  for (int64_t i = 0; i < count; ++i) {
    const auto unit = static_cast<float>(NextBits(state) >> 40) / 16777216.0F;
    values.push_back(low + (high - low) * unit);
  }
  return values;
}

Argument RandomArgument(const Dims& dims, uint64_t seed, float low, float high) {
  const Shape shape{DType::kF32, dims};
  return {shape, RandomFloats(shape.elements(), seed, low, high)};
}

void ExpectGradientsMatch(const TracedFn& fn, const std::vector<Argument>& arguments,
                          const GradientCheck& options) {
  Graph graph("gradient");
  const Values parameters = Parameters(graph, arguments);
  const Value loss = WeightedSum(graph, fn(parameters));
  std::vector<int> wrt = options.wrt;
  if (wrt.empty()) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].shape.dtype == DType::kF32) wrt.push_back(static_cast<int>(i));
    }
  }
  Values wrt_values;
  for (const int i : wrt) wrt_values.push_back(parameters[static_cast<size_t>(i)]);
  Values outputs = Gradients(loss, wrt_values);
  outputs.push_back(loss);
  const Result<Program> program = graph.Finish(outputs);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const std::vector<Floats> gradients = RunProgram(*program, HostValues(arguments));
  ASSERT_EQ(gradients.size(), outputs.size());

  uint64_t state = 5;
  for (size_t w = 0; w < wrt.size(); ++w) {
    const auto argument = static_cast<size_t>(wrt[w]);
    const size_t count = arguments[argument].values.size();
    for (int k = 0; k < options.positions && count > 0; ++k) {
      const size_t at = NextBits(state) % count;
      const auto loss_at = [&](double offset) {
        std::vector<Floats> moved = HostValues(arguments);
        moved[argument][at] += static_cast<float>(offset);
        const std::vector<Floats> r = RunProgram(*program, moved);
        return r.empty() ? NAN : static_cast<double>(r.back()[0]);
      };
      const double slope = (loss_at(options.step) - loss_at(-options.step)) / (2 * options.step);
      const double gradient = gradients[w][at];
      EXPECT_LE(std::fabs(gradient - slope) / (1 + std::fabs(slope)), options.tolerance)
          << "argument " << argument << " element " << at << ": gradient " << gradient
          << ", central difference " << slope;
    }
  }
}

void ExpectNear(const Floats& actual, const Floats& expected, double tolerance,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]))) continue;
    const double difference = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    const double scale = std::max(1.0, std::fabs(static_cast<double>(expected[i])));
    ASSERT_LE(difference, tolerance * scale)
        << what << " element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

}  // namespace forebay::xla
