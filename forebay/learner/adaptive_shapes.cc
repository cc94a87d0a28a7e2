#include "forebay/learner/adaptive_shapes.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/compile_ahead.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/shape_log.h"
#include "forebay/learner/shape_planner.h"
#include "forebay/learner/train_step.h"

namespace forebay::learner {
namespace {

void AddMissing(const std::vector<BucketShape>& shapes, std::vector<BucketShape>* all) {
  for (const BucketShape shape : shapes) {
    if (std::ranges::find(*all, shape) == all->end()) all->push_back(shape);
  }
}

}  // namespace

Result<std::unique_ptr<AdaptiveShapes>> AdaptiveShapes::Create(const AdaptiveShapesOptions& options,
                                                               std::vector<BucketShape> first,
                                                               int64_t step) {
  ShapeHistory history;
  if (!options.log.empty()) {
    FB_ASSIGN_OR_RETURN(history, ReadShapeLog(options.log));
  }
  const ShapePlanOptions& plan = options.planner.plan;
  std::erase_if(history, [&](const auto& entry) {
    return entry.second.back().length < plan.tokens_max ||
           static_cast<int64_t>(entry.second.size()) > plan.shapes_max;
  });
  std::unique_ptr<AdaptiveShapes> out(new AdaptiveShapes(options, std::move(history)));
  out->steps_done_ = step;
  if (const auto* logged = ShapesAt(out->history_, step)) {
    out->current_ = *logged;
  } else {
    out->current_ = std::move(first);
    out->history_[step] = out->current_;
    if (!options.log.empty() && options.replan_every_steps > 0) {
      FB_RETURN_IF_ERROR(WriteShapeLog(options.log, out->history_));
    }
  }
  return out;
}

std::vector<BucketShape> AdaptiveShapes::ToCompile() const {
  std::vector<BucketShape> all = current_;
  for (auto it = history_.upper_bound(steps_done_); it != history_.end(); ++it) {
    AddMissing(it->second, &all);
  }
  return all;
}

void AdaptiveShapes::BeforeStep(int64_t steps_done, TrainStep& train) {
  steps_done_ = steps_done;
  if (const auto* logged = ShapesAt(history_, steps_done);
      logged != nullptr && *logged != current_) {
    Use(*logged, train);
    return;
  }
  if (history_.rbegin()->first > steps_done) return;  // the log goes on: nothing of our own yet
  auto result = ahead_.Take();
  if (!result) return;
  if (!result->ok()) {
    status_ = result->status().WithContext("shapes could not be compiled in the background");
    return;
  }
  std::optional<std::vector<BucketShape>> shapes = std::move(*result).value();
  if (!shapes) return;
  history_[steps_done] = *shapes;
  if (!options_.log.empty()) {
    if (Status logged = WriteShapeLog(options_.log, history_); !logged.ok()) {
      history_.erase(steps_done);  // unlogged, a resumed run could not repeat the step
      status_ = std::move(logged);
      return;
    }
  }
  Use(std::move(*shapes), train);
}

void AdaptiveShapes::AfterStep(int64_t steps_done, std::span<const int64_t> lengths,
                               TrainStep& train) {
  planner_.Observe(lengths);
  if (options_.replan_every_steps == 0 || !status_.ok()) return;
  if (steps_done % options_.replan_every_steps != 0) return;
  if (history_.rbegin()->first > steps_done) return;
  ahead_.Start([this, &train, planner = planner_,
                current = current_]() -> Result<std::optional<std::vector<BucketShape>>> {
    auto better = planner.PlanBetter(current);
    if (!better) return std::optional<std::vector<BucketShape>>();
    const int64_t before = train.programs();
    const Status compiled = train.CompileShapes(*better);
    programs_ahead_ += train.programs() - before;
    if (!compiled.ok()) return compiled;
    return better;
  });
}

void AdaptiveShapes::Use(std::vector<BucketShape> shapes, TrainStep& train) {
  current_ = std::move(shapes);
  ++switches_;
  train.KeepShapes(ToCompile());
}

}  // namespace forebay::learner
