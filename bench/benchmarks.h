// The benchmarks, one function each. They return the fields of their JSON object; a field whose
// peer is not installed is null.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/harness.h"
#include "forebay/base/status.h"

namespace forebay::bench {

// Ten thousand episodes at once on an environment whose steps take two seconds: memory of an
// episode, how late it wakes up, steps a second, and that none is lost.
Result<nlohmann::ordered_json> ActorsBench(const BenchOptions& options);
// The same with so many episodes, over so many seconds. Adds cpu_seconds_per_s, of the process.
Result<nlohmann::ordered_json> MeasureActors(int64_t episodes, int window_s,
                                             const BenchOptions& options);

// One optimizer step of SmolLM2-135M on 2 x 512 packed tokens, f32, full fine-tuning, against the
// same step in JAX on the same plugin (bench/peers/setup_jax.sh makes it).
Result<nlohmann::ordered_json> LearnerBench(const BenchOptions& options);

// SmolLM2-135M: decoding at 1, 16 and 32 streams against vLLM's CPU build and llama.cpp
// (bench/peers/setup_rollout.sh), prompt processing, and how far the sampled log-probabilities are
// from the learner's.
Result<nlohmann::ordered_json> RolloutBench(const BenchOptions& options);

// New weights for SmolLM2-135M beside sixteen running streams, in this process and over a socket in
// another one: the time to the first token from them, how long it held the streams up, and how much
// of them was sent.
Result<nlohmann::ordered_json> PublishBench(const BenchOptions& options);

// The synchronous loop against the decoupled one on a slow environment, same code, same rewards.
Result<nlohmann::ordered_json> UtilizationBench(const BenchOptions& options);

// Sequences of log-normal length through a small model: what packing wastes, whether a step ever
// waits for a compilation, and the same batches padded.
Result<nlohmann::ordered_json> PackingBench(const BenchOptions& options);

// The buffer, in this process and from another one, against the disk's own limits and every peer
// that bench/peers/setup_buffer.sh installed.
Result<nlohmann::ordered_json> BufferBench(const BenchOptions& options);

// Writers, a buffer server and a learner that are killed 200 times: nothing that was acknowledged
// is lost, nothing is trained on twice, the ledger balances every time.
Result<nlohmann::ordered_json> RecoveryBench(const BenchOptions& options);

// A start after a crash with 10 million records of 2 KiB: its time and memory.
Result<nlohmann::ordered_json> StartupBench(const BenchOptions& options);

// How cost grows with the work: ten times the actors, four times the tokens of an episode, four
// times the model, ten times its layers (compiling), one to eight virtual devices.
Result<nlohmann::ordered_json> ScaleBench(const BenchOptions& options);

}  // namespace forebay::bench
