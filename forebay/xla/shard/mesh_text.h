// How meshes and specs are written in a module, and which specs a program's arguments and results
// have. Private to xla/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops/node.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {

// "sdy.mesh @mesh = <["data"=2, "fsdp"=4]>"
std::string MeshText(const Mesh& mesh);
// "\"data\", \"fsdp\""
std::string AxisNamesText(const Mesh& mesh);
// "[{"data", "fsdp"}, {}]" with one entry a dimension
std::string SpecText(const PartitionSpec& spec, int64_t rank);
// "sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>"
std::string ShardingAttribute(const PartitionSpec& spec, int64_t rank);

// One spec a parameter of the root region, and one a result: those of the ShardMaps that they go
// into or come from. What is made of split values by other ops is split as the first operand of its
// shape is; everything else is whole.
struct ProgramSpecs {
  std::vector<PartitionSpec> arguments;
  std::vector<PartitionSpec> results;
};
ProgramSpecs InferSpecs(const Region& root, std::span<const Value> results);

}  // namespace forebay::xla
