// Compiles and runs a traced graph on host arrays: for the tests of every room that traces
// programs.
//
// One CPU client serves the whole test program, and another one with eight virtual devices those
// programs that run on a mesh. Failures are gtest failures with the program's
// text, and the results are then empty.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

using Floats = std::vector<float>;

// The process-wide client of the CPU plugin. Never null: aborts where no plugin can be loaded.
Client& TestClient();
// The same with eight virtual devices.
Client& MeshTestClient();

// Runs `graph` with one host array a Parameter, in order; returns one array a result. Arrays are
// floats whatever the dtype: integers and bf16 are converted on the way in and out (exact to 2^24).
std::vector<Floats> RunGraph(Graph& graph, std::span<const Value> results,
                             const std::vector<Floats>& arguments);
// The same for a program that was finished elsewhere. On a mesh, whole arrays go in and come out.
std::vector<Floats> RunProgram(const Program& program, const std::vector<Floats>& arguments);

// A function of arrays, as tests write it: traced on parameters of the given shapes.
using TracedFn = std::function<Values(std::span<const Value>)>;
struct Argument {
  Shape shape;
  Floats values;
};
std::vector<Floats> RunFn(const TracedFn& fn, const std::vector<Argument>& arguments);

// ShardMap(mesh, in_specs, out_specs, body) of the arguments.
struct ShardMapCase {
  Mesh mesh;
  std::vector<PartitionSpec> in_specs;
  std::vector<PartitionSpec> out_specs;
};
std::vector<Floats> RunShardMap(const ShardMapCase& map, const TracedFn& body,
                                const std::vector<Argument>& arguments);

// Floats in [low, high), the same for a seed on every machine.
Floats RandomFloats(int64_t count, uint64_t seed, float low = -1.0F, float high = 1.0F);
Argument RandomArgument(const Dims& dims, uint64_t seed, float low = -1.0F, float high = 1.0F);

struct GradientCheck {
  double step = 1e-2;
  double tolerance = 2e-2;    // of |difference| / (1 + |slope|)
  int positions = 6;          // random elements checked in each argument
  std::vector<int> wrt = {};  // arguments checked; empty: all of kF32
};
// Checks Gradients of a random weighting of all float results of `fn` against central differences.
void ExpectGradientsMatch(const TracedFn& fn, const std::vector<Argument>& arguments,
                          const GradientCheck& options = {});

// Every element within `tolerance` absolutely or relatively; names the first that is not.
void ExpectNear(const Floats& actual, const Floats& expected, double tolerance,
                const std::string& what = "");

}  // namespace forebay::xla
