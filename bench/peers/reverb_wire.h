// The few of Reverb's messages (dm-reverb 0.14, reverb_service.proto and schema.proto) that the
// benchmark needs, as bytes: field numbers were read from the descriptors inside its wheel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::bench {

// An InsertStreamRequest for an item of one chunk that holds one uncompressed tensor, up to the
// bytes of the tensor, which must follow. `key` names the item and its chunk.
std::string ReverbInsertPrefix(uint64_t key, std::string_view table, size_t tensor_bytes);

// A SampleStreamRequest, and a ResetRequest.
std::string ReverbSampleRequest(std::string_view table, int64_t samples);
std::string ReverbResetRequest(std::string_view table);

// The tensors in a SampleStreamResponse, as views into it. kDataLoss for anything malformed.
Result<std::vector<std::string_view>> ReverbSampledTensors(std::string_view response);

// How many items an InsertStreamResponse confirms. kDataLoss for anything malformed.
Result<size_t> ReverbConfirmed(std::string_view response);

}  // namespace forebay::bench
