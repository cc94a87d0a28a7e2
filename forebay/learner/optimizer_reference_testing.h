// The optimizers in plain C++ and double precision, for tests: written from the formulas in
// optimizer.h, one parameter and one element at a time. 8-bit states are kept in full here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"

namespace forebay::learner {

class ReferenceOptimizer {
 public:
  ReferenceOptimizer(const OptimizerOptions& options, std::vector<models::ParamSpec> specs,
                     const std::vector<std::vector<float>>& params);
  // One update; returns the norm of the gradients.
  double Step(const std::vector<std::vector<float>>& gradients, double rate);
  const std::vector<std::vector<double>>& params() const { return params_; }

 private:
  using Array = std::vector<double>;
  // What is subtracted, times the rate.
  Array Direction(size_t i, const Array& g);
  Array AdamW(size_t i, const Array& g);
  Array Lion(size_t i, const Array& g);
  Array Adafactor(size_t i, const Array& g);
  Array Muon(size_t i, const Array& g);

  OptimizerOptions options_;
  std::vector<models::ParamSpec> specs_;
  std::vector<Array> params_, m_, v_, row_, column_;
  int64_t t_ = 0;
};

}  // namespace forebay::learner
