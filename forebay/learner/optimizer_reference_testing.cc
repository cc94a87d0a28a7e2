#include "forebay/learner/optimizer_reference_testing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "forebay/learner/optimizer.h"
#include "forebay/models/model.h"

namespace forebay::learner {
namespace {

using Array = std::vector<double>;

// a [m, k] times b [k, n].
Array Product(const Array& a, const Array& b, size_t m, size_t k, size_t n) {
  Array out(m * n, 0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t l = 0; l < k; ++l) out[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return out;
}

Array Transposed(const Array& a, size_t m, size_t n) {
  Array out(a.size());
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) out[j * m + i] = a[i * n + j];
  }
  return out;
}

Array NewtonSchulz(Array x, size_t m, size_t n) {
  double square = 0;
  for (const double v : x) square += v * v;
  for (double& v : x) v /= std::sqrt(square) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    // Always with the Gram matrix of the rows: the same for either side.
    const Array gram = Product(x, Transposed(x, m, n), m, n, m);
    const Array gram2 = Product(gram, gram, m, m, m);
    Array poly(gram.size());
    for (size_t i = 0; i < gram.size(); ++i) poly[i] = -4.7750 * gram[i] + 2.0315 * gram2[i];
    const Array rest = Product(poly, x, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + rest[i];
  }
  return x;
}

void ClipRms(Array* u) {
  double square = 0;
  for (const double v : *u) square += v * v;
  const double rms = std::sqrt(square / static_cast<double>(u->size()));
  for (double& v : *u) v /= std::max(1.0, rms);
}

}  // namespace

ReferenceOptimizer::ReferenceOptimizer(const OptimizerOptions& options,
                                       std::vector<models::ParamSpec> specs,
                                       const std::vector<std::vector<float>>& params)
    : options_(options), specs_(std::move(specs)) {
  for (const auto& p : params) {
    params_.emplace_back(p.begin(), p.end());
    m_.emplace_back(p.size(), 0);
    v_.emplace_back(p.size(), 0);
    row_.emplace_back();
    column_.emplace_back();
  }
}

double ReferenceOptimizer::Step(const std::vector<std::vector<float>>& gradients, double rate) {
  ++t_;
  double square = 0;
  for (const auto& g : gradients) {
    for (const float x : g) square += static_cast<double>(x) * static_cast<double>(x);
  }
  const double norm = std::sqrt(square);
  const double scale =
      options_.grad_clip > 0 ? std::min(1.0, options_.grad_clip / (norm + 1e-6)) : 1;
  for (size_t i = 0; i < params_.size(); ++i) {
    Array g(gradients[i].begin(), gradients[i].end());
    for (double& x : g) x *= scale;
    const Array step = Direction(i, g);
    for (size_t k = 0; k < step.size(); ++k) {
      const double decay = specs_[i].decay ? options_.weight_decay * params_[i][k] : 0;
      params_[i][k] -= rate * (step[k] + decay);
    }
  }
  return norm;
}

Array ReferenceOptimizer::Direction(size_t i, const Array& g) {
  const std::string& name = specs_[i].name;
  switch (options_.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdamW8bit:
      return AdamW(i, g);
    case OptimizerKind::kLion:
      return Lion(i, g);
    case OptimizerKind::kAdafactor:
      return Adafactor(i, g);
    case OptimizerKind::kMuon:
      break;
  }
  const bool hidden = specs_[i].shape.rank() == 2 && name.find("embed") == std::string::npos;
  return hidden ? Muon(i, g) : AdamW(i, g);
}

Array ReferenceOptimizer::AdamW(size_t i, const Array& g) {
  const auto t = static_cast<double>(t_);
  Array step(g.size());
  for (size_t k = 0; k < g.size(); ++k) {
    m_[i][k] = options_.beta1 * m_[i][k] + (1 - options_.beta1) * g[k];
    v_[i][k] = options_.beta2 * v_[i][k] + (1 - options_.beta2) * g[k] * g[k];
    const double m = m_[i][k] / (1 - std::pow(options_.beta1, t));
    const double v = v_[i][k] / (1 - std::pow(options_.beta2, t));
    step[k] = m / (std::sqrt(v) + options_.epsilon);
  }
  return step;
}

Array ReferenceOptimizer::Lion(size_t i, const Array& g) {
  Array step(g.size());
  for (size_t k = 0; k < g.size(); ++k) {
    const double mixed = options_.beta1 * m_[i][k] + (1 - options_.beta1) * g[k];
    step[k] = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
    m_[i][k] = options_.beta2 * m_[i][k] + (1 - options_.beta2) * g[k];
  }
  return step;
}

Array ReferenceOptimizer::Adafactor(size_t i, const Array& g) {
  const double decay = 1 - std::pow(static_cast<double>(t_), -0.8);
  Array u(g.size());
  if (specs_[i].shape.rank() < 2) {
    for (size_t k = 0; k < g.size(); ++k) {
      v_[i][k] = decay * v_[i][k] + (1 - decay) * (g[k] * g[k] + 1e-30);
      u[k] = g[k] / std::sqrt(v_[i][k]);
    }
    ClipRms(&u);
    return u;
  }
  const auto rows = static_cast<size_t>(specs_[i].shape.dims[0]);
  const auto columns = static_cast<size_t>(specs_[i].shape.dims[1]);
  row_[i].resize(rows);
  column_[i].resize(columns);
  for (double& x : row_[i]) x *= decay;
  for (double& x : column_[i]) x *= decay;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const double square = g[r * columns + c] * g[r * columns + c] + 1e-30;
      row_[i][r] += (1 - decay) * square / static_cast<double>(columns);
      column_[i][c] += (1 - decay) * square / static_cast<double>(rows);
    }
  }
  double mean = 0;
  for (const double x : row_[i]) mean += x / static_cast<double>(rows);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      u[r * columns + c] = g[r * columns + c] / std::sqrt(row_[i][r] / mean * column_[i][c]);
    }
  }
  ClipRms(&u);
  return u;
}

Array ReferenceOptimizer::Muon(size_t i, const Array& g) {
  const auto rows = static_cast<size_t>(specs_[i].shape.dims[0]);
  const auto columns = static_cast<size_t>(specs_[i].shape.dims[1]);
  Array u(g.size());
  for (size_t k = 0; k < g.size(); ++k) {
    m_[i][k] = options_.momentum * m_[i][k] + g[k];
    u[k] = g[k] + options_.momentum * m_[i][k];
  }
  u = NewtonSchulz(u, rows, columns);
  for (double& x : u) x *= 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  return u;
}

}  // namespace forebay::learner
