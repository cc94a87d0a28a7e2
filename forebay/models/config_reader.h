// ConfigReader: reads config.json for every family, and says what is wrong with it in one way.
//
// Every error is kInvalidArgument and names the key, its value and what would be right. Unknown
// keys that cannot change the result are ignored; known ones with a value that would change it are
// refused, rather than computed wrongly.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/models/model.h"
#include "forebay/models/rope.h"

namespace forebay::models {

class ConfigReader {
 public:
  // `family` is "Llama" in "a Llama model needs it".
  static Result<ConfigReader> Parse(const std::string& config_json, std::string_view family);

  // Sizes from 1, positive numbers, booleans and token ids (the first of a list). Where a key is
  // absent or null, `out` stays as it is, unless it is required.
  Status Size(std::string_view key, int64_t* out, bool required = false) const;
  Status Positive(std::string_view key, double* out) const;
  Status Bool(std::string_view key, bool* out) const;
  Status Token(std::string_view key, int64_t vocab_size, int32_t* out) const;
  // A list of strings; empty where the key is absent.
  Status Strings(std::string_view key, std::vector<std::string>* out) const;

  // Refuses a present value other than these.
  Status ExpectString(std::string_view key, std::initializer_list<std::string_view> known) const;
  Status ExpectFalse(std::initializer_list<std::string_view> keys) const;
  Status ExpectAbsent(std::initializer_list<std::string_view> keys) const;

  // What all families have in common; `tied` is what the family assumes where the file is silent.
  Result<ModelConfig> Base(std::string_view architecture, bool tied) const;
  // "rope_parameters" (as newer versions of transformers write it) or "rope_scaling". `part`: the
  // member of it that counts, where each type of layer has its own. A rope_theta in it goes to the
  // config, and so does the context that a stretched rotation reaches.
  Result<std::optional<RopeScaling>> Rope(ModelConfig* config, std::string_view part = "") const;
  // Of a member of "rope_parameters" alone, if it is there.
  Result<std::optional<RopeScaling>> LocalRope(std::string_view part, const ModelConfig& config,
                                               double* theta) const;
  // Which layers slide over a window ("layer_types"); empty where the file does not say.
  Result<std::vector<bool>> SlidingLayers(int64_t layers) const;
  // Whether the key is absent, null or an empty list.
  bool EmptyList(std::string_view key) const;
  // Whether the key is there and not null.
  bool Has(std::string_view key) const;

 private:
  ConfigReader(std::shared_ptr<const nlohmann::json> object, std::string_view family)
      : object_(std::move(object)), family_(family) {}
  Status Heads(ModelConfig* config) const;

  std::shared_ptr<const nlohmann::json> object_;
  std::string family_;
};

}  // namespace forebay::models
