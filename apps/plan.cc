#include "apps/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/chips.h"
#include "apps/commands.h"
#include "apps/mesh_check.h"
#include "apps/model_setup.h"
#include "apps/room_options.h"
#include "forebay/base/status.h"
#include "forebay/control/config.h"
#include "forebay/learner/learner.h"
#include "forebay/learner/learner_options.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/micro_batch.h"
#include "forebay/learner/optimizer.h"
#include "forebay/learner/train_programs.h"
#include "forebay/models/active_parameters.h"
#include "forebay/models/model.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/sharding.h"
#include "forebay/xla/topology.h"
#include "forebay/xla/traced_cost.h"

namespace forebay::apps {
namespace {

// Score and value products of causal attention over whole rows: 2 T^2 a head's size forward.
double AttentionFlops(const models::ModelConfig& c, learner::BucketShape shape) {
  const auto length = static_cast<double>(shape.length);
  return 2.0 * length * length * static_cast<double>(shape.rows * c.layers * c.query_heads) *
         static_cast<double>(c.head_dim);
}

Result<PlannedProgram> Compile(xla::Topology& topology, std::string name,
                               const Result<xla::Program>& program) {
  if (!program.ok()) return program.status();
  FB_ASSIGN_OR_RETURN(const xla::CompiledStats stats, topology.Compile(*program));
  return PlannedProgram{.name = std::move(name), .compiled = stats, .traced = program->cost};
}

// "gradient for 2 row shapes (1 x 256, 1 x 512), zeros, apply".
std::string ProgramNames(const Plan& plan) {
  std::string shapes;
  for (const learner::BucketShape shape : plan.shapes) {
    shapes += fmt::format("{}{} x {}", shapes.empty() ? "" : ", ", shape.rows, shape.length);
  }
  return fmt::format("gradient for {} row shape{} ({}), {}, apply{}{}", plan.shapes.size(),
                     plan.shapes.size() == 1 ? "" : "s", shapes,
                     plan.into_sum ? "zeros" : "accumulate", plan.lora ? ", merge" : "",
                     plan.adaptive ? "; better shapes may take their place in the background" : "");
}

nlohmann::ordered_json ToJson(const PlannedProgram& p) {
  nlohmann::ordered_json out = {{"name", p.name},
                                {"argument_bytes", p.compiled.memory.argument_bytes},
                                {"output_bytes", p.compiled.memory.output_bytes},
                                {"alias_bytes", p.compiled.memory.alias_bytes},
                                {"temp_bytes", p.compiled.memory.temp_bytes},
                                {"compile_seconds", p.compiled.compile_seconds},
                                {"dot_flops", p.traced.dot_flops}};
  for (const xla::CollectiveUse& use : p.traced.collectives) {
    out["collectives"].push_back({{"op", use.op},
                                  {"axes", use.axes.ToString()},
                                  {"count", use.count},
                                  {"sent_bytes", use.sent_bytes}});
  }
  return out;
}

}  // namespace

double Plan::Mfu(double seconds) const {
  if (!chip || seconds <= 0) return 0;
  return model_flops / (chip->bf16_flops * static_cast<double>(mesh.size()) * seconds);
}

int64_t Plan::ProgramCount() const {
  return static_cast<int64_t>(shapes.size()) + 2 + (lora ? 1 : 0);
}

Result<Plan> MakePlan(const control::Config& config, const std::string& topology_name,
                      const std::string& compiler) {
  FB_ASSIGN_OR_RETURN(const auto model, ReadModel(config));
  FB_ASSIGN_OR_RETURN(const std::string path, xla::FindTpuCompiler(compiler));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<xla::Topology> topology,
                      xla::Topology::Create({.plugin_path = path, .name = topology_name}));
  Plan plan;
  plan.topology = topology_name;
  plan.chip = ChipOf(topology_name);
  if (!topology->devices().empty()) plan.chip_kind = topology->devices()[0].kind;
  const auto chips = static_cast<int64_t>(topology->devices().size());
  FB_RETURN_IF_ERROR(CheckDeviceCount(config, chips));
  FB_ASSIGN_OR_RETURN(plan.mesh, xla::Mesh::Create(MakeMeshSizes(config), chips));

  const learner::LearnerOptions options = MakeLearnerOptions(config, "");
  FB_ASSIGN_OR_RETURN(plan.shapes, learner::Buckets(options));
  plan.shape = *std::ranges::max_element(plan.shapes, {}, &learner::BucketShape::tokens);
  plan.adaptive = options.row_lengths.empty() && options.replan_every_steps > 0;
  plan.lora = options.lora.rank > 0;
  learner::GradientProgramOptions gradient = learner::GradientOptions(options);
  gradient.mesh = plan.mesh;
  plan.into_sum = gradient.into_sum;
  const auto specs = model->Params(gradient.layout);
  for (const models::ParamSpec& spec : specs) plan.parameters += spec.shape.elements();
  auto trained = specs;
  if (plan.lora) {
    FB_ASSIGN_OR_RETURN(trained, learner::LoraSpecs(specs, options.lora));
  }
  const models::ActiveParameters active = models::CountActiveParameters(*model);
  FB_ASSIGN_OR_RETURN(PlannedProgram step,
                      Compile(*topology, "gradient " + plan.shape.ToString(),
                              learner::TraceGradient(*model, gradient, plan.shape)));
  FB_ASSIGN_OR_RETURN(
      PlannedProgram apply,
      Compile(*topology, "apply", learner::TraceApply(trained, options.optimizer, plan.mesh)));

  const auto bytes = [](int64_t n) { return static_cast<double>(n); };
  const double gradients = bytes(step.compiled.memory.output_bytes);
  const double params =
      bytes(step.compiled.memory.argument_bytes) - (plan.into_sum ? gradients : 0);
  // What adapters stand beside; they themselves are as large as their gradients.
  const double frozen = plan.lora ? params - gradients : 0;
  plan.resident_bytes = bytes(apply.compiled.memory.argument_bytes) - gradients + frozen;
  const double state = plan.resident_bytes - params;
  // In the next step's first gradients the weights that adapters were merged into are still there,
  // until they are published.
  const double running = bytes(step.compiled.total_bytes()) + state + frozen;
  plan.one_program_bytes = std::max(running, bytes(apply.compiled.total_bytes()) + frozen);
  // From the second micro-batch of a step on, the sum of the gradients before lies beside its own,
  // unless they are added to it.
  plan.peak_bytes = std::max(plan.one_program_bytes, running + (plan.into_sum ? 0 : gradients));

  const double attention = AttentionFlops(model->config(), plan.shape);
  const auto tokens = static_cast<double>(plan.shape.tokens());
  plan.model_flops = 6.0 * active.all * tokens + 3 * attention;
  plan.chip_flops = step.traced.dot_flops + apply.traced.dot_flops;
  // Loops that run as often as the data want are counted once: attention's over blocks of keys
  // (forward, again in the backward pass, and 2.5 times that for the gradients), and the experts'
  // over blocks of tokens (3 products forward, 3 again, 8 for the gradients), spread evenly.
  if (step.traced.has_while) {
    const double loops = 4.5 * attention + 14.0 / 3 * 2 * active.experts * tokens;
    plan.chip_flops += loops / bytes(plan.mesh.size());
  }
  plan.sent_bytes = step.traced.sent_bytes() + apply.traced.sent_bytes();
  if (plan.chip) {
    const double compute = plan.chip_flops / plan.chip->bf16_flops;
    const double messages = plan.sent_bytes / plan.chip->link_rate;
    plan.seconds_at_best = std::max(compute, messages);
    plan.seconds_at_worst = compute + messages;
  }
  plan.programs.push_back(std::move(step));
  plan.programs.push_back(std::move(apply));
  return plan;
}

std::string FormatPlan(const Plan& plan) {
  constexpr double kGb = 1e9;
  std::string text = fmt::format(
      "topology    {} ({} chips, {})\nmesh        {}\nparameters  {:.2f} G\nstep        {} rows of "
      "{} tokens\n",
      plan.topology, plan.mesh.size(), plan.chip_kind, plan.mesh.ToString(),
      static_cast<double>(plan.parameters) / kGb, plan.shape.rows, plan.shape.length);
  text += fmt::format("programs    {}: {}\n\n", plan.ProgramCount(), ProgramNames(plan));
  text += "program (GB a chip)         arguments  results  reused  temporary  compiled in s\n";
  for (const PlannedProgram& p : plan.programs) {
    const auto gb = [&](int64_t n) { return static_cast<double>(n) / kGb; };
    text += fmt::format("{:<27} {:>9.2f} {:>8.2f} {:>7.2f} {:>10.2f} {:>14.0f}\n", p.name,
                        gb(p.compiled.memory.argument_bytes), gb(p.compiled.memory.output_bytes),
                        gb(p.compiled.memory.alias_bytes), gb(p.compiled.memory.temp_bytes),
                        p.compiled.compile_seconds);
  }
  const std::string steps = plan.into_sum
                                ? "however many programs a step takes"
                                : fmt::format(
                                      "in a step of one program, {:.2f} GB where the gradients of "
                                      "several are summed",
                                      plan.peak_bytes / kGb);
  text += fmt::format(
      "\nmemory      {:.2f} GB a chip {}\n            ({:.2f} GB weights and optimizer state)\n",
      plan.one_program_bytes / kGb, steps, plan.resident_bytes / kGb);
  if (plan.chip) {
    text += fmt::format("            {:.0f} GB are there: it {}\n", plan.chip->memory_bytes / kGb,
                        plan.peak_bytes <= plan.chip->memory_bytes ? "fits" : "does NOT fit");
  }
  text += "\ncollectives of a step                count   GB sent a chip\n";
  for (const PlannedProgram& p : plan.programs) {
    for (const xla::CollectiveUse& use : p.traced.collectives) {
      text += fmt::format("{:<14} over {:<16} {:>6} {:>16.2f}\n", use.op, use.axes.ToString(),
                          use.count, use.sent_bytes / kGb);
    }
  }
  text += fmt::format("\narithmetic  {:.3g} TFLOP a chip ({:.3g} without what is recomputed)\n",
                      plan.chip_flops / 1e12,
                      plan.model_flops / static_cast<double>(plan.mesh.size()) / 1e12);
  if (plan.chip) {
    text += fmt::format(
        "step time   {:.2f} s if messages travel beside the arithmetic, {:.2f} s if none does\n"
        "MFU         {:.0f} % or {:.0f} %, at the chip's peak rate for every product\n",
        plan.seconds_at_best, plan.seconds_at_worst, 100 * plan.Mfu(plan.seconds_at_best),
        100 * plan.Mfu(plan.seconds_at_worst));
  } else {
    text += "step time   unknown: this chip's rates are not in the table (apps/chips.cc)\n";
  }
  return text;
}

Status PlanStep(const PlanCommand& command) {
  FB_ASSIGN_OR_RETURN(const control::Config config,
                      control::LoadConfig(command.config, command.sets));
  std::fprintf(stderr, "compiling for %s, about half a minute\n", command.topology.c_str());
  FB_ASSIGN_OR_RETURN(const Plan plan, MakePlan(config, command.topology, command.compiler));
  std::fputs(command.json ? (PlanJson(plan) + "\n").c_str() : FormatPlan(plan).c_str(), stdout);
  if (plan.chip && plan.peak_bytes > plan.chip->memory_bytes) {
    return ResourceExhausted("the step does not fit in the chips' memory");
  }
  return OkStatus();
}

std::string PlanJson(const Plan& plan) {
  nlohmann::ordered_json out = {{"topology", plan.topology},
                                {"mesh", plan.mesh.ToString()},
                                {"chips", plan.mesh.size()},
                                {"parameters", plan.parameters},
                                {"rows", plan.shape.rows},
                                {"length", plan.shape.length},
                                {"programs_to_compile", plan.ProgramCount()},
                                {"resident_bytes", plan.resident_bytes},
                                {"one_program_bytes", plan.one_program_bytes},
                                {"peak_bytes", plan.peak_bytes},
                                {"model_flops", plan.model_flops},
                                {"chip_flops", plan.chip_flops},
                                {"sent_bytes", plan.sent_bytes}};
  for (const learner::BucketShape shape : plan.shapes) {
    out["shapes"].push_back({{"rows", shape.rows}, {"length", shape.length}});
  }
  for (const PlannedProgram& p : plan.programs) out["programs"].push_back(ToJson(p));
  if (plan.chip) {
    out["memory_bytes"] = plan.chip->memory_bytes;
    out["fits"] = plan.peak_bytes <= plan.chip->memory_bytes;
    out["seconds_at_best"] = plan.seconds_at_best;
    out["seconds_at_worst"] = plan.seconds_at_worst;
    out["mfu_at_best"] = plan.Mfu(plan.seconds_at_best);
    out["mfu_at_worst"] = plan.Mfu(plan.seconds_at_worst);
  }
  return out.dump();
}

}  // namespace forebay::apps
