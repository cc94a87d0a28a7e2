// The built-in engine: continuous batching on the model code that the learner trains.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine.h"
#include "forebay/tokenizer/tokenizer.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"

namespace forebay::rollout {

struct XlaEngineOptions {
  int64_t slots = 16;     // sequences that decode together
  int64_t context = 512;  // tokens of a sequence, prompt included
  // Decode looks at the smallest of these that covers all running sequences. Ascending, the last is
  // `context`; empty: 128, 192, 256, 384, ... and context.
  std::vector<int64_t> context_buckets;
  std::vector<int64_t> prefill_chunks = {16, 32, 64, 128};  // ascending, the first at most context
  int64_t waiting_max = 4096;                               // requests without a slot
  // One context bucket and one chunk size (the largest), and a prefix is reused only where the bits
  // of its entries do not depend on it: a request's tokens and log-probabilities are then the same
  // bits whatever runs beside it. Slower.
  bool deterministic = false;
  // What weights and cache are held in: kF32 or kBF16. With bf16 weights activations are bf16 too,
  // sums, norms, softmax and logits f32; log-probabilities then differ from an f32 learner's.
  xla::DType weights_dtype = xla::DType::kF32;
  xla::DType cache_dtype = xla::DType::kF32;
  // Decode steps take their products from a kernel of this process where that is faster
  // (xla/host_product.h): few slots, a CPU with AVX-512.
  bool host_products = true;
  // Needed for stop strings; may be null.
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
};

// An engine with `initial` as its first weights. Compiles and runs every program once (seconds to
// minutes; the client's cache helps) and then owns one thread for generation and one that uploads
// new weights. `client` must outlive it. Errors: kInvalidArgument (options, or weights that do not
// fit the model), and what compiling reports.
//
// One prefill serves a group: a prompt that begins like the tokens another slot holds, under the
// same weights, copies that slot's entries. Slots keep their entries after their request, so that
// the next turn of an episode prefills only what is new. After new weights nothing is reused;
// sequences that are running keep their entries and go on with the new weights.
//
// If the device fails, every request gets kUnavailable with the reason, from then on at once and on
// the caller's thread (so too after Shutdown).
Result<std::unique_ptr<Engine>> MakeXlaEngine(const XlaEngineOptions& options, xla::Client& client,
                                              std::shared_ptr<const models::Model> model,
                                              const weights::Snapshot& initial);

}  // namespace forebay::rollout
