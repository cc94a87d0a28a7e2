// Plan: what an optimizer step of a configuration takes on a pod, from the compiler that would run
// it, without the pod.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/chips.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/topology.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::apps {

// One compiled program.
struct PlannedProgram {
  std::string name;  // "gradient [16 x 4096]"
  xla::CompiledStats compiled;
  xla::TracedCost traced;  // loops counted as often as they run
};

struct Plan {
  std::string topology, chip_kind;
  xla::Mesh mesh;
  int64_t parameters = 0;
  // The row shapes that a run compiles before its first step, each a gradient program; and the
  // largest, which is planned here.
  std::vector<learner::BucketShape> shapes;
  learner::BucketShape shape;
  bool adaptive = false;  // other shapes may take their place during the run, in the background
  bool lora = false;      // has a program more, which merges the adapters
  std::vector<PlannedProgram> programs;
  // Of each chip: weights and optimizer state.
  double resident_bytes = 0;
  bool into_sum = false;  // learner::GradientProgramOptions
  // With what the program that needs most adds to them: in a step that one program takes, and in
  // one whose gradients are summed (the same with into_sum).
  double one_program_bytes = 0, peak_bytes = 0;
  // Of one step of one micro-batch over all chips: 6 a parameter that acts on a token and token,
  // and attention (arXiv 2204.02311, appendix B); what is recomputed does not count.
  double model_flops = 0;
  // Of each chip, with what is recomputed.
  double chip_flops = 0;
  double sent_bytes = 0;
  std::optional<Chip> chip;
  // Of a step: if all messages travel beside the arithmetic, and if none does. 0 without a chip.
  double seconds_at_best = 0, seconds_at_worst = 0;

  double Mfu(double seconds) const;
  // How many programs a run compiles before its first step.
  int64_t ProgramCount() const;
};

// Compiles every program of a step. Blocks for minutes. Errors: a mesh that does not fit the model,
// the rows or the topology, with what would; what the compiler says.
Result<Plan> MakePlan(const control::Config& config, const std::string& topology,
                      const std::string& compiler);

std::string FormatPlan(const Plan& plan);
std::string PlanJson(const Plan& plan);

}  // namespace forebay::apps
