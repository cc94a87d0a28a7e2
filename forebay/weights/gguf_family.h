// What differs between the architectures of GGUF files.
#pragma once

#include <span>
#include <string_view>

#include "forebay/base/status.h"
#include "forebay/weights/gguf.h"

namespace forebay::weights {

struct GgufLayerName {
  std::string_view gguf, hugging_face;  // "attn_q", "self_attn.q_proj"
};

struct GgufFamily {
  std::string_view architecture;  // general.architecture, and the prefix of its keys
  std::string_view hugging_face, model_type;
  std::span<const GgufLayerName> layer_names;
  bool interleaved = false;  // the rows of attn_q and attn_k
  bool norms_plus_one = false;
  double rms_eps = 1e-6, rope_theta = 1e6;  // where the file is silent
};

// kInvalidArgument names the architecture and those that are known.
Result<GgufFamily> GgufFamilyOf(const GgufFile& file);

}  // namespace forebay::weights
