// Every collective: its values against a computation on the host, and its gradient.
//
// Gradients are checked two ways. Outside: central differences through the whole ShardMap. Inside:
// the Vjp of each collective against its matrix, transposed: for random x and ct over all devices,
// sum over devices of <ct, f(x)> must be that of <f^T(ct), x>.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/xla/collectives.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/graph_testing.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/shard_map.h"
#include "forebay/xla/sharding.h"

namespace forebay::xla {
namespace {

using Body = std::function<Value(Value)>;

Mesh MakeMesh(std::vector<MeshAxis> axes) { return Mesh::Create(std::move(axes)).value(); }

// Meshes of 1, 2, 4 and 8 devices whose axis "x" has 1, 2, 4, 8, 2 or 4 of them.
std::vector<Mesh> Meshes() {
  return {MakeMesh({{"x", 1}}), MakeMesh({{"x", 2}}),           MakeMesh({{"x", 4}}),
          MakeMesh({{"x", 8}}), MakeMesh({{"x", 2}, {"y", 4}}), MakeMesh({{"y", 2}, {"x", 4}})};
}

// All devices' values: argument and result have a leading axis of devices that every axis splits.
PartitionSpec PerDevice(const Mesh& mesh) { return PartitionSpec{mesh.Others(Axes())}; }

// f on [devices, rows, columns] arrays, device by device.
Values OnDevices(const Mesh& mesh, const Body& body, Value x) {
  const std::vector<PartitionSpec> specs{PerDevice(mesh)};
  return ShardMap(
      mesh, specs, specs,
      [&](std::span<const Value> args) { return Values{ExpandDims(body(Squeeze(args[0], 0)), 0)}; },
      std::span(&x, 1));
}

// What each device has after `f`, given what each had.
using HostFn = std::function<std::vector<Floats>(const Mesh&, const std::vector<Floats>&)>;

struct Case {
  std::string name;
  std::function<Body(const Mesh&)> body;
  HostFn expected;
};

// For each device, the members of its group along x.
std::vector<int64_t> GroupOf(const Mesh& mesh, int64_t device) {
  for (const std::vector<int64_t>& group : mesh.Groups("x")) {
    for (const int64_t member : group) {
      if (member == device) return group;
    }
  }
  return {};
}

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 8;

HostFn PerGroup(
    const std::function<Floats(const std::vector<Floats>& group, size_t index)>& one_device) {
  return [one_device](const Mesh& mesh, const std::vector<Floats>& xs) {
    std::vector<Floats> out;
    for (int64_t device = 0; device < mesh.size(); ++device) {
      std::vector<Floats> group;
      for (const int64_t member : GroupOf(mesh, device)) {
        group.push_back(xs[static_cast<size_t>(member)]);
      }
      out.push_back(one_device(group, static_cast<size_t>(mesh.Index(device, "x"))));
    }
    return out;
  };
}

Floats Sum(const std::vector<Floats>& group) {
  Floats sum(group[0].size(), 0.0F);
  for (const Floats& x : group) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
  }
  return sum;
}

std::vector<Case> Cases() {
  return {
      {"Psum", [](const Mesh&) { return [](Value x) { return Psum(x, "x"); }; },
       PerGroup([](const std::vector<Floats>& group, size_t) { return Sum(group); })},
      {"PMean", [](const Mesh&) { return [](Value x) { return PMean(x, "x"); }; },
       PerGroup([](const std::vector<Floats>& group, size_t) {
         Floats mean = Sum(group);
         for (float& v : mean) v /= static_cast<float>(group.size());
         return mean;
       })},
      {"AllGather rows", [](const Mesh&) { return [](Value x) { return AllGather(x, "x", 0); }; },
       PerGroup([](const std::vector<Floats>& group, size_t) {
         Floats all;
         for (const Floats& x : group) all.insert(all.end(), x.begin(), x.end());
         return all;
       })},
      {"AllGather columns",
       [](const Mesh&) { return [](Value x) { return AllGather(x, "x", -1); }; },
       PerGroup([](const std::vector<Floats>& group, size_t) {
         Floats all;
         for (int64_t row = 0; row < kRows; ++row) {
           for (const Floats& x : group) {
             all.insert(all.end(), x.begin() + row * kColumns, x.begin() + (row + 1) * kColumns);
           }
         }
         return all;
       })},
      {"ReduceScatter rows",
       [](const Mesh&) { return [](Value x) { return ReduceScatter(x, "x", 0); }; },
       PerGroup([](const std::vector<Floats>& group, size_t index) {
         const Floats sum = Sum(group);
         const size_t part = sum.size() / group.size();
         return Floats(sum.begin() + static_cast<int64_t>(index * part),
                       sum.begin() + static_cast<int64_t>((index + 1) * part));
       })},
      {"ReduceScatter columns",
       [](const Mesh&) { return [](Value x) { return ReduceScatter(x, "x", 1); }; },
       PerGroup([](const std::vector<Floats>& group, size_t index) {
         const Floats sum = Sum(group);
         const auto width = kColumns / static_cast<int64_t>(group.size());
         Floats part;
         for (int64_t row = 0; row < kRows; ++row) {
           for (int64_t c = 0; c < width; ++c) {
             part.push_back(sum[static_cast<size_t>(row * kColumns +
                                                    static_cast<int64_t>(index) * width + c)]);
           }
         }
         return part;
       })},
      {"RingShift", [](const Mesh&) { return [](Value x) { return RingShift(x, "x", 1); }; },
       PerGroup([](const std::vector<Floats>& group, size_t index) {
         return group[(index + group.size() - 1) % group.size()];
       })},
      {"Ppermute of one pair",
       [](const Mesh& mesh) {
         const int64_t last = mesh.Size("x") - 1;
         return [last](Value x) {
           const std::vector<std::pair<int64_t, int64_t>> pairs{{last, 0}};
           return Ppermute(x, "x", pairs);
         };
       },
       PerGroup([](const std::vector<Floats>& group, size_t index) {
         return index == 0 ? group.back() : Floats(group[0].size(), 0.0F);
       })},
      {"AllToAll rows to columns",
       [](const Mesh&) { return [](Value x) { return AllToAll(x, "x", 0, 1); }; },
       PerGroup([](const std::vector<Floats>& group, size_t index) {
         Floats out;
         const auto rows = kRows / static_cast<int64_t>(group.size());
         for (int64_t r = 0; r < rows; ++r) {
           const int64_t row = static_cast<int64_t>(index) * rows + r;
           for (const Floats& x : group) {
             out.insert(out.end(), x.begin() + row * kColumns, x.begin() + (row + 1) * kColumns);
           }
         }
         return out;
       })},
      {"AllToAll in place",
       [](const Mesh&) { return [](Value x) { return AllToAll(x, "x", 0, 0); }; },
       PerGroup([](const std::vector<Floats>& group, size_t index) {
         Floats out;
         const int64_t block = kRows * kColumns / static_cast<int64_t>(group.size());
         const int64_t from = static_cast<int64_t>(index) * block;
         for (const Floats& x : group) {
           out.insert(out.end(), x.begin() + from, x.begin() + from + block);
         }
         return out;
       })},
  };
}

TEST(CollectivesTest, ValuesAreThoseOfTheHost) {
  for (const Mesh& mesh : Meshes()) {
    const Argument x = RandomArgument({mesh.size(), kRows, kColumns}, 3);
    std::vector<Floats> parts;
    for (int64_t d = 0; d < mesh.size(); ++d) {
      const auto begin = x.values.begin() + d * kRows * kColumns;
      parts.emplace_back(begin, begin + kRows * kColumns);
    }
    // One program for all: compiling is what takes the time.
    const std::vector<Case> cases = Cases();
    const std::vector<Floats> results = RunFn(
        [&](std::span<const Value> args) {
          Values out;
          for (const Case& c : cases) out.push_back(OnDevices(mesh, c.body(mesh), args[0])[0]);
          return out;
        },
        {x});
    ASSERT_EQ(results.size(), cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      Floats expected;
      for (const Floats& part : cases[i].expected(mesh, parts)) {
        expected.insert(expected.end(), part.begin(), part.end());
      }
      ExpectNear(results[i], expected, 1e-6, cases[i].name + " on " + mesh.ToString());
    }
  }
}

TEST(CollectivesTest, TheVjpInTheBodyIsTheExactTranspose) {
  for (const Mesh& mesh : {MakeMesh({{"x", 8}}), MakeMesh({{"x", 2}, {"y", 2}})}) {
    const Argument x = RandomArgument({mesh.size(), kRows, kColumns}, 5);
    const std::vector<Case> cases = Cases();
    const std::vector<Floats> results = RunFn(
        [&](std::span<const Value> args) {
          Values out;
          for (const Case& c : cases) {
            const Body body = c.body(mesh);
            // sum over devices of <ct, f(x)> and of <f^T(ct), x>, with ct = cos(f(x)) + device.
            const auto both = [&](std::span<const Value> in) {
              const Value own = Squeeze(in[0], 0);
              const Value y = body(own);
              Graph& graph = *y.graph();
              const Value device = Convert(AxisIndex(graph, mesh.Others(Axes())), DType::kF32);
              const Value ct = Cos(y) + BroadcastTo(device, y.dims());
              const Value back = Vjp(std::span(&y, 1), std::span(&ct, 1), std::span(&own, 1))[0];
              const Axes all = mesh.Others(Axes());
              return Values{Psum(ReduceSum(ct * y, {0, 1}), all),
                            Psum(ReduceSum(back * own, {0, 1}), all)};
            };
            const Values sums = ShardMap(mesh, std::vector<PartitionSpec>{PerDevice(mesh)},
                                         std::vector<PartitionSpec>(2), both, args);
            out.insert(out.end(), sums.begin(), sums.end());
          }
          return out;
        },
        {x});
    ASSERT_EQ(results.size(), 2 * cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      ExpectNear(results[2 * i], results[2 * i + 1], 1e-5,
                 cases[i].name + " on " + mesh.ToString());
      EXPECT_GT(std::fabs(results[2 * i][0]), 1e-3) << cases[i].name;
    }
  }
}

TEST(CollectivesTest, GradientsThroughShardMapMatchDifferences) {
  const Mesh mesh = MakeMesh({{"x", 2}, {"y", 2}});
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    ExpectGradientsMatch(
        [&](std::span<const Value> args) {
          const Body body = c.body(mesh);
          return OnDevices(mesh, [&](Value x) { return Sin(body(x * x)); }, args[0]);
        },
        {RandomArgument({mesh.size(), kRows, kColumns}, 7)}, {.positions = 2});
  }
}

TEST(CollectivesTest, SeveralAxesCountTheFirstSlowest) {
  const Mesh mesh = MakeMesh({{"a", 2}, {"b", 2}, {"c", 2}});
  Floats values(8);
  for (size_t i = 0; i < 8; ++i) values[i] = static_cast<float>(i);
  const std::vector<Floats> results = RunShardMap(
      {mesh,
       {PartitionSpec{{"a", "b", "c"}}},
       {PartitionSpec{"b"}, PartitionSpec{{"c", "a"}}, {}, PartitionSpec{{"a", "b", "c"}}}},
      [](std::span<const Value> args) {
        Graph& graph = *args[0].graph();
        const Value x = args[0];
        const Value index = Convert(AxisIndex(graph, {"c", "a"}), DType::kF32);
        EXPECT_EQ(AxisSize(graph, {"c", "a"}), 4);
        return Values{AllGather(x, {"c", "a"}, 0), PMean(x, "b"), PMax(x, {"a", "b", "c"}),
                      x * 0 + index};
      },
      {{{DType::kF32, {8}}, values}});
  ASSERT_EQ(results.size(), 4u);
  // Device (a, b, c) holds 4a + 2b + c. For each b: c slow, a fast.
  EXPECT_EQ(results[0], (Floats{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(results[1], (Floats{1, 5, 2, 6}));  // means over b, for (c, a)
  EXPECT_EQ(results[2], (Floats{7}));
  EXPECT_EQ(results[3], (Floats{0, 2, 0, 2, 1, 3, 1, 3}));  // 2c + a
}

TEST(CollectivesTest, OtherTypesTravelToo) {
  const Mesh mesh = MakeMesh({{"x", 4}});
  for (const DType dtype : {DType::kS32, DType::kU32, DType::kBF16}) {
    const std::vector<Floats> results =
        RunShardMap({mesh, {PartitionSpec{"x"}}, {{}, {}, PartitionSpec{"x"}}},
                    [](std::span<const Value> args) {
                      return Values{Psum(args[0], "x"), AllGather(args[0], "x", 0),
                                    RingShift(args[0], "x", -1)};
                    },
                    {{{dtype, {4}}, {1, 2, 3, 4}}});
    ASSERT_EQ(results.size(), 3u);
    EXPECT_EQ(results[0], (Floats{10})) << Shape{dtype, {}}.ToString();
    EXPECT_EQ(results[1], (Floats{1, 2, 3, 4}));
    EXPECT_EQ(results[2], (Floats{2, 3, 4, 1}));
  }
}

TEST(CollectivesTest, ManyInOneProgramMeetInOneOrder) {
  const Mesh mesh = MakeMesh({{"x", 2}, {"y", 4}});
  const std::vector<Floats> results = RunShardMap(
      {mesh, {PartitionSpec{{"x", "y"}}}, {{}}},
      [](std::span<const Value> args) {
        Values sums;
        for (int i = 1; i <= 24; ++i) {
          sums.push_back(Psum(Psum(args[0] * i, i % 2 == 0 ? "x" : "y"), i % 2 == 0 ? "y" : "x"));
        }
        Value total = sums[0];
        for (size_t i = 1; i < sums.size(); ++i) total = total + sums[i];
        return Values{total};
      },
      {{{DType::kF32, {8}}, Floats(8, 1.0F)}});
  EXPECT_EQ(results, (std::vector<Floats>{{8 * 300}}));
}

}  // namespace
}  // namespace forebay::xla
