// The engine's options as checked against the model, defaults filled in.
#pragma once

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/rollout/engine/device.h"
#include "forebay/rollout/xla_engine.h"

namespace forebay::rollout {

// kInvalidArgument names the option and what it may be.
Result<EngineDeviceOptions> ResolveOptions(const XlaEngineOptions& options,
                                           const models::ModelConfig& config);

struct RequestLimits {
  int64_t vocab_size = 0, context = 0;
  bool has_tokenizer = false;
};

// Why the engine can never run this request (kInvalidArgument), or OK.
Status CheckRequest(const GenerateRequest& request, const RequestLimits& limits);

}  // namespace forebay::rollout
