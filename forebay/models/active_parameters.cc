#include "forebay/models/active_parameters.h"

#include <string>

#include "forebay/models/model.h"
#include "forebay/models/weight_map.h"

namespace forebay::models {

ActiveParameters CountActiveParameters(const Model& model) {
  const ModelConfig& config = model.config();
  ActiveParameters active;
  for (const ParamSpec& spec : model.Params(LayerLayout::kStacked)) {
    if (spec.name == kEmbedName && !config.tied_embedding) continue;
    auto count = static_cast<double>(spec.shape.elements());
    if (config.experts > 0 && spec.name.find(".experts.") != std::string::npos) {
      count *= static_cast<double>(config.experts_per_token) / static_cast<double>(config.experts);
      active.experts += count;
    }
    active.all += count;
  }
  return active;
}

}  // namespace forebay::models
