// AdaptiveShapes: which compiled shapes the next optimizer step packs into.
//
//   the step's lengths -> ShapePlanner -> (background) plan, compile -> switch before a later step
//
// A switch happens only when every new program is compiled, so no step ever waits for one. It is
// logged first (shape_log.h): a learner that starts again repeats the switches of the log at their
// steps, and plans on its own only after the last of them. One owner; the learner's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/learner/compile_ahead.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/shape_log.h"
#include "forebay/learner/shape_planner.h"
#include "forebay/learner/train_step.h"

namespace forebay::learner {

struct AdaptiveShapesOptions {
  ShapePlannerOptions planner;
  int64_t replan_every_steps = 8;  // 0: only what the log says
  std::string log;                 // "": none
};

class AdaptiveShapes {
 public:
  // `first` is used where the log says nothing of `step`. Logged shapes that cannot hold
  // planner.plan.tokens_max, or are more than its shapes_max, are left out. Errors: of the log.
  static Result<std::unique_ptr<AdaptiveShapes>> Create(const AdaptiveShapesOptions& options,
                                                        std::vector<BucketShape> first,
                                                        int64_t step);

  // What must be compiled before the first step: the current shapes, and those that the log has for
  // later steps.
  std::vector<BucketShape> ToCompile() const;

  // Before the step that follows `steps_done`: switches if it is time. Does not block.
  void BeforeStep(int64_t steps_done, TrainStep& train);
  // After it; `lengths` are those of its sequences. Starts planning when it is due; `train` must
  // outlive this object.
  void AfterStep(int64_t steps_done, std::span<const int64_t> lengths, TrainStep& train);

  const std::vector<BucketShape>& current() const { return current_; }
  int64_t switches() const { return switches_; }
  // Programs compiled in the background. Any thread.
  int64_t programs_ahead() const { return programs_ahead_; }
  // Why planning has ended (a compilation failed, or the log cannot be written); OK while it goes
  // on.
  const Status& status() const { return status_; }

 private:
  AdaptiveShapes(const AdaptiveShapesOptions& options, ShapeHistory history)
      : options_(options), history_(std::move(history)), planner_(options.planner) {}
  void Use(std::vector<BucketShape> shapes, TrainStep& train);

  const AdaptiveShapesOptions options_;
  ShapeHistory history_;
  ShapePlanner planner_;
  std::vector<BucketShape> current_;
  int64_t steps_done_ = 0;
  int64_t switches_ = 0;
  Status status_;
  std::atomic<int64_t> programs_ahead_ = 0;
  CompileAhead ahead_;  // last: joins first
};

}  // namespace forebay::learner
