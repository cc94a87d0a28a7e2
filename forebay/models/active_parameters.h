// How many of a model's parameters multiply each token: what a step's arithmetic is counted by.
#pragma once

#include "forebay/models/model.h"

namespace forebay::models {

struct ActiveParameters {
  double all = 0;      // not an embedding that is only looked up, and of the experts those chosen
  double experts = 0;  // of them, those of experts
};
ActiveParameters CountActiveParameters(const Model& model);

}  // namespace forebay::models
