// What the tests of models share: tensors from literals, the golden model, and programs that run on
// the CPU plugin. Every failure here ends the test program with its reason (FB_CHECK): nothing
// useful can follow.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/models/model.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"

namespace forebay::models {

// The CPU plugin's client, one a test program.
xla::Client& TestClient();

weights::HostTensor F32(xla::Dims dims, const std::vector<float>& values);
weights::HostTensor S32(xla::Dims dims, const std::vector<int32_t>& values);

// A graph whose parameters are bound to values.
class TestProgram {
 public:
  explicit TestProgram(const std::string& name) : graph_(name) {}

  xla::Graph& graph() { return graph_; }
  xla::Value Input(const weights::HostTensor& tensor, std::string_view name = "x");
  ParamValues Inputs(const weights::TensorMap& tensors);
  // Compiles, runs and fetches f32 results.
  std::vector<std::vector<float>> Run(std::span<const xla::Value> results);
  std::vector<std::vector<float>> Run(std::initializer_list<xla::Value> results) {
    return Run(std::span<const xla::Value>(results.begin(), results.size()));
  }

 private:
  xla::Graph graph_;
  std::vector<weights::HostTensor> inputs_;
};

// tests/goldens/parity/FAMILY under `source_dir`.
struct Golden {
  std::string config_json;
  std::unique_ptr<Model> model;
  weights::TensorMap checkpoint, reference;
};
Golden LoadGolden(const std::string& source_dir, const std::string& family = "llama");

// Sequences laid out in rows for training.
struct PackedRows {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens, segments, positions;  // rows * length each

  PackedRows(int64_t rows_in, int64_t length_in);
  // Puts a sequence at `start` of `row`.
  void Place(int64_t row, int64_t start, int32_t segment, std::span<const int32_t> sequence);
  PackedInputs Inputs(TestProgram* program) const;
};

// The largest |a - b|; infinite when sizes differ or anything is NaN.
double MaxDifference(std::span<const float> a, std::span<const float> b);
double MaxMagnitude(std::span<const float> a);

}  // namespace forebay::models
