// Parallel: how a training forward pass is spread over the devices of a mesh, as the few steps in
// which it differs from one device. docs/sharding.md explains it.
//
//   rows of a batch                                    over data, fsdp and expert
//   tokens of a row                                    over context
//   heads, features of a feed-forward layer, words of the vocabulary     over tensor
//   tokens between those layers (norms, residual sums)                   over tensor as well
//   matrices        over tensor as above and, in the other dimension, over all axes that split the
//                   tokens but data; a layer gathers them when it runs, and their gradients come
//                   back summed and scattered
//   experts         over expert
//
// Legend: N tokens of the rows that the devices along tensor share, M = N / tensor, D width, V
// vocabulary.
#pragma once

#include <cstdint>

#include "forebay/xla/graph.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/shape.h"
#include "forebay/xla/sharding.h"

namespace forebay::models {

// The axes over which tokens are spread; what is summed over tokens is summed over them.
xla::Axes TokenAxes();
// The axes over which a matrix is gathered.
xla::Axes WeightAxes();
// Of arrays [B, T] with one number a token.
xla::PartitionSpec RowsPartition();

// How a row that is split over context meets its keys: kRing sends blocks of keys around the
// devices, so that none holds more than its own and the next ones; kGather has all keys of a row on
// each. kAuto: the ring where its messages hide behind the arithmetic (RingHides).
enum class ContextAttention { kAuto, kRing, kGather };
// How tokens meet experts that are split over expert: kAllToAll sends each token to the devices
// that have its experts, kGather sends all to all. kAuto: whichever sends less (SpreadExperts).
enum class ExpertTraffic { kAuto, kAllToAll, kGather };

struct ParallelOptions {
  ContextAttention context_attention = ContextAttention::kAuto;
  ExpertTraffic expert_traffic = ExpertTraffic::kAuto;
};

class Parallel {
 public:
  // `on`: in the body of a ShardMap over a mesh with all of Forebay's axes. Else every step is the
  // identity.
  constexpr Parallel() = default;
  constexpr explicit Parallel(bool on, const ParallelOptions& options = {})
      : on_(on), options_(options) {}
  bool on() const { return on_; }
  ContextAttention context_attention() const { return options_.context_attention; }
  ExpertTraffic expert_traffic() const { return options_.expert_traffic; }

  // This device's part of a weight -> what a layer uses: split over tensor (and experts) alone.
  // Converted to `dtype` before it travels.
  xla::Value Gather(xla::Value weight, const xla::PartitionSpec& partition, xla::DType dtype) const;
  // [M, D] -> [N, D]: before products whose results are split over tensor.
  xla::Value Enter(xla::Value x) const;
  // [N, D], of which each device along tensor has a term -> their sum, [M, D]: after products that
  // sum over what is split over tensor. kInvalidArgument (on the graph): N is no multiple of
  // tensor.
  xla::Value Leave(xla::Value partial) const;
  // The same with the whole sum on each device, [N, ...] -> [N, ...].
  xla::Value Sum(xla::Value partial) const;
  xla::Value Max(xla::Value x) const;  // no gradient

  // [N, ...] -> those of all devices along expert, [N * expert, ...]: each of them has the tokens
  // of all and adds what its own experts make of them (models/experts.h has the other way).
  xla::Value EnterExperts(xla::Value x) const;
  // [N * expert, D] of terms -> their sum, [N, D].
  xla::Value LeaveExperts(xla::Value partial) const;
  // Numbers of experts -> of this device's, of which it has `count`; others are out of range.
  xla::Value OwnExperts(xla::Value experts, int64_t count) const;

  // Of a table that is split over tensor, `rows` a device: each index as one of this device's rows
  // (some row, if it is none), and whether it is one.
  struct Local {
    xla::Value index, mine;
  };
  Local ToLocal(xla::Value index, int64_t rows) const;

 private:
  bool on_ = false;
  ParallelOptions options_ = {};
};

}  // namespace forebay::models
