#include "forebay/control/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/control/config.h"

namespace forebay::control {
namespace {

constexpr int64_t kDevicesMax = int64_t{1} << 16;

}  // namespace

std::vector<Field> Fields(Config& c) {
  constexpr double kMany = 1e12, kMeshMax = 4096;
  return {
      {"run.steps", &c.run.steps, "optimizer steps to train", 0, kMany},
      {"run.seed", &c.run.seed, "every random choice derives from it", 0, kMany},
      {"run.mode",
       &c.run.mode,
       "decoupled: acting and learning at once; sync: one after the other",
       0,
       0,
       {"decoupled", "sync"}},
      {"run.folder", &c.folder, "where relative paths start; empty: the config file's folder"},

      {.key = "model.path",
       .target = &c.model.path,
       .meaning = "a Hugging Face folder, a .gguf file, or tiny: (random weights, bytes as tokens)",
       .is_path = true},
      {"model.tiny_layers", &c.model.tiny_layers, "layers of a tiny: model", 1, 64},
      {"model.tiny_width", &c.model.tiny_width, "width of a tiny: model", 8, 4096},
      {"model.tiny_heads", &c.model.tiny_heads, "query heads of a tiny: model", 1, 64},
      {"model.tiny_kv_heads", &c.model.tiny_kv_heads, "key/value heads of a tiny: model", 1, 64},
      {"model.tiny_ff", &c.model.tiny_ff, "feed-forward width of a tiny: model", 8, 16384},

      {.key = "device.plugin",
       .target = &c.device.plugin,
       .meaning = "PJRT plugin file; empty: the CPU plugin that set-up installed",
       .is_path = true},
      {.key = "device.cache_dir",
       .target = &c.device.cache_dir,
       .meaning = "folder for compiled programs; empty: memory only",
       .is_path = true},
      {"device.virtual_devices", &c.device.virtual_devices,
       "devices that the CPU plugin shows to the learner, to try a mesh; 0: one", 0, 1024},

      {"mesh.data", &c.mesh.data, "devices that split the rows, each with all weights", 1,
       kMeshMax},
      {"mesh.fsdp", &c.mesh.fsdp, "devices that split rows and weights", 1, kMeshMax},
      {"mesh.expert", &c.mesh.expert, "devices that split rows and experts", 1, kMeshMax},
      {"mesh.context", &c.mesh.context, "devices that split each row and the weights", 1, kMeshMax},
      {"mesh.tensor", &c.mesh.tensor, "devices that split heads, features and the vocabulary", 1,
       kMeshMax},
      {"mesh.attention",
       &c.mesh.attention,
       "how a row split over context meets its keys: ring sends them around, gather puts all on "
       "each device; auto: the ring where arithmetic hides its messages",
       0,
       0,
       {"auto", "ring", "gather"}},
      {"mesh.experts",
       &c.mesh.experts,
       "how tokens meet experts split over expert: all_to_all sends each to its experts, gather "
       "sends all to all; auto: what sends less",
       0,
       0,
       {"auto", "all_to_all", "gather"}},

      {"env.name", &c.env.name, "its name in metrics and audit"},
      {"env.kind",
       &c.env.kind,
       "python: a process that speaks docs/environment_protocol.md; builtin: compiled in; openenv: "
       "a server; harness: a program that asks the policy through OpenAI's API (docs/serving.md)",
       0,
       0,
       {"python", "builtin", "openenv", "harness"}},
      {"env.command", &c.env.command,
       "program and arguments (python, harness: started for each episode); file names are "
       "relative to the config file"},
      {"env.python_path", &c.env.python_path,
       "folders put in front of PYTHONPATH (python, harness)"},
      {"env.builtin", &c.env.builtin, "name of the built-in environment"},
      {"env.options", &c.env.options, "JSON object handed to the environment"},
      {"env.processes", &c.env.processes, "environment processes", 1, 1024},
      {"env.episodes_per_process", &c.env.episodes_per_process,
       "episodes that one process serves at once", 1, 65536},
      {"env.tasks", &c.env.tasks,
       "training tasks, cycled in shuffled epochs; 0: a new task for each group", 0,
       1e6},  // an epoch's order is made anew for each group
      {"env.start_deadline_s", &c.env.start_deadline_s, "seconds for a process to say hello", 0.1,
       3600},
      {"env.reset_deadline_s", &c.env.reset_deadline_s, "seconds for a reset", 0.01, 86400},
      {"env.step_deadline_s", &c.env.step_deadline_s, "seconds for a step", 0.01, 86400},
      {"env.episode_deadline_s", &c.env.episode_deadline_s,
       "seconds for an episode (harness); then its processes are killed", 0.1, 86400},
      {"env.episode_tokens_max", &c.env.episode_tokens_max,
       "tokens of an episode with all its branches (harness); then its calls are refused", 8,
       1 << 20},
      {"env.url", &c.env.url, "the server (openenv), for instance http://127.0.0.1:8000"},
      {"env.token_variable", &c.env.token_variable,
       "environment variable with the token that env.url wants; empty: none"},
      {"env.tools", &c.env.tools,
       "tools that the agent may call in any environment: calculator, python and shell (in a "
       "sandbox), mcp"},
      {"env.tools_prompt",
       &c.env.tools_prompt,
       "how the agent learns of env.tools: by the model's chat template, or by a system message",
       0,
       0,
       {"template", "system"}},
      {"env.tool_deadline_s", &c.env.tool_deadline_s,
       "seconds for one tool call, within env.step_deadline_s", 0.01, 86400},
      {"env.mcp_command", &c.env.mcp_command,
       "program and arguments of an MCP server over stdio; file names are relative to the config "
       "file"},
      {"env.mcp_url", &c.env.mcp_url, "or its URL, for instance http://127.0.0.1:8000/mcp"},
      {"env.mcp_token_variable", &c.env.mcp_token_variable,
       "environment variable with the token that env.mcp_url wants; empty: none"},
      {"env.mcp_connections", &c.env.mcp_connections,
       "connections (for mcp_command: processes) at once", 1, 4096},
      {"env.mcp_connection_per_episode", &c.env.mcp_connection_per_episode,
       "each episode has a connection of its own: for servers that keep state"},
      {"env.sandbox_cpu_s", &c.env.sandbox_cpu_s, "processor seconds of a process in the sandbox",
       1, 86400},
      {"env.sandbox_wall_s", &c.env.sandbox_wall_s, "seconds of one call of python or shell", 0.01,
       86400},
      {"env.sandbox_memory_mb", &c.env.sandbox_memory_mb,
       "address space of a process in the sandbox; 0: no limit", 0, 1 << 20},
      {"env.sandbox_processes", &c.env.sandbox_processes, "processes and threads of one call", 1,
       65536},
      {"env.sandbox_parallel", &c.env.sandbox_parallel,
       "calls of python and shell at once; 0: as many as processors", 0, 4096},

      {"rollout.actors", &c.rollout.actors, "concurrent episodes", 1, 100000},
      {"rollout.slots", &c.rollout.slots, "sequences that the engine decodes at once", 1, 1024},
      {"rollout.context", &c.rollout.context, "tokens that a slot can hold", 16, 1 << 20},
      {"rollout.context_buckets", &c.rollout.context_buckets,
       "compiled attention lengths; empty: chosen from context"},
      {"rollout.prefill_chunks", &c.rollout.prefill_chunks,
       "compiled prompt chunk sizes; empty: chosen from context"},
      {"rollout.temperature", &c.rollout.temperature, "of sampling; the loss uses the same", 0.01,
       100},
      {"rollout.turns_max", &c.rollout.turns_max, "actions in an episode", 1, 10000},
      {"rollout.new_tokens_per_turn_max", &c.rollout.new_tokens_per_turn_max,
       "sampled tokens in an action", 1, 1 << 20},
      {"rollout.tokens_max", &c.rollout.tokens_max,
       "tokens of a trajectory, prompts and observations included", 8, 1 << 20},
      {"rollout.stop_tokens", &c.rollout.stop_tokens,
       "tokens that end an action, by text; empty: the model's end-of-turn tokens"},
      {"rollout.generate_deadline_s", &c.rollout.generate_deadline_s,
       "seconds for the engine to answer", 0.1, 86400},
      {"rollout.deterministic", &c.rollout.deterministic,
       "bits do not depend on what runs beside a sequence (slower)"},
      {"rollout.attempts_max", &c.rollout.attempts_max,
       "failures in one group before its task is quarantined", 1, 1000},
      {"rollout.engine",
       &c.rollout.engine,
       "builtin, or the kind of rollout.servers (docs/external_engines.md); forebay: forebay serve",
       0,
       0,
       {"builtin", "forebay", "vllm", "sglang", "llamacpp"}},
      {"rollout.servers", &c.rollout.servers,
       "of another engine: their URLs, for instance http://127.0.0.1:8000"},
      {"rollout.server_model", &c.rollout.server_model,
       "the model's name there; empty: requests name none"},
      {"rollout.server_token_variable", &c.rollout.server_token_variable,
       "environment variable with the API key of the servers; empty: none"},
      {"rollout.server_ca_file", &c.rollout.server_ca_file,
       "certificates (PEM) trusted for https; empty: those of this machine"},
      {"rollout.server_requests_max", &c.rollout.server_requests_max,
       "requests sent to one server at once", 1, 65536},
      {"rollout.reload", &c.rollout.reload,
       "the servers take new weights; false: they keep theirs, for at most buffer.max_staleness "
       "steps"},
      {"rollout.weights_folder", &c.rollout.weights_folder,
       "where servers read new weights, the same path for them; empty: in the run's folder"},

      {"buffer.durability",
       &c.buffer.durability,
       "what an acknowledged trajectory survives: sync power loss, os kill -9, memory nothing "
       "(docs/buffer.md helps to choose)",
       0,
       0,
       {"memory", "os", "sync"}},
      {"buffer.max_staleness", &c.buffer.max_staleness,
       "policy versions; no older token is trained on", 0, 1000000},
      {"buffer.memory_mb_max", &c.buffer.memory_mb_max,
       "MiB of segments kept in memory, older ones are read from disk; with durability memory the "
       "limit: appends wait above it",
       1, 1 << 20},
      {"buffer.disk_mb_max", &c.buffer.disk_mb_max,
       "MiB of segments on disk; appends wait above it until a checkpoint makes room", 16, 1 << 26},
      {"buffer.segment_mb", &c.buffer.segment_mb,
       "MiB of one log segment; less with durability os (16 at most) or memory (1), and where five "
       "would not fit the limit",
       1, 1024},
      {"buffer.record_mb_max", &c.buffer.record_mb_max,
       "MiB of one trajectory; on disk never more than a segment holds", 1, 1024},
      {"buffer.append_deadline_s", &c.buffer.append_deadline_s,
       "seconds that an append waits for room; then its episode is played again", 0.1, 86400},

      {"learner.groups_per_step", &c.learner.groups_per_step, "groups of a batch", 1, 1 << 20},
      {"learner.group_size", &c.learner.group_size, "samples of one task", 1, 4096},
      {"learner.advantage",
       &c.learner.advantage,
       "baseline of a group",
       0,
       0,
       {"grpo", "dr_grpo", "rloo"}},
      {"learner.aggregation",
       &c.learner.aggregation,
       "how token losses become one number",
       0,
       0,
       {"token_mean", "sequence_mean_of_token_mean", "sequence_mean_of_token_sum",
        "sequence_mean_token_scale"}},
      {"learner.optimizer",
       &c.learner.optimizer,
       "adamw_8bit: state in a quarter of the memory; adafactor: hardly any; lion: half; muon: "
       "orthogonal updates of the layers' matrices (docs/training.md)",
       0,
       0,
       {"adamw", "adamw_8bit", "adafactor", "lion", "muon"}},
      {"learner.learning_rate", &c.learner.learning_rate, "peak learning rate", 0, 10},
      {"learner.weight_decay", &c.learner.weight_decay, "decoupled, matrices only", 0, 10},
      {"learner.beta1", &c.learner.beta1, "adamw, lion", 0, 0.999999},
      {"learner.beta2", &c.learner.beta2, "adamw, lion", 0, 0.999999},
      {"learner.adam_eps", &c.learner.adam_eps, "adamw", 0, 1},
      {"learner.momentum", &c.learner.momentum, "muon", 0, 0.999999},
      {"learner.grad_clip", &c.learner.grad_clip, "global gradient norm; 0: off", 0, 1e9},
      {"learner.schedule",
       &c.learner.schedule,
       "of the learning rate after warm-up",
       0,
       0,
       {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}},
      {"learner.warmup_steps", &c.learner.warmup_steps, "steps of linear warm-up", 0, kMany},
      {"learner.decay_steps", &c.learner.decay_steps,
       "wsd: the last steps, in which the rate falls; 0: a tenth of run.steps", 0, kMany},
      {"learner.learning_rate_end", &c.learner.learning_rate_end,
       "linear, cosine, wsd: the rate at the end, as a fraction of learning_rate", 0, 1},
      {"learner.lora_rank", &c.learner.lora_rank,
       "rank of LoRA adapters, the only weights that are trained; 0: all weights are", 0, 4096},
      {"learner.lora_alpha", &c.learner.lora_alpha, "adapters are scaled by lora_alpha / lora_rank",
       1e-6, 1e6},
      {"learner.lora_rslora", &c.learner.lora_rslora,
       "scale by lora_alpha / sqrt(lora_rank) instead"},
      {"learner.lora_targets", &c.learner.lora_targets,
       "linears with an adapter: all-linear, the end of a module's name (q_proj), or a pattern "
       "(model.layers.1*.q_proj)"},
      {"learner.clip_low", &c.learner.clip_low, "PPO clip below 1", 0, 1},
      {"learner.clip_high", &c.learner.clip_high, "PPO clip above 1", 0, 1000},
      {"learner.is_cap", &c.learner.is_cap,
       "cap of the truncated importance weight against the rollout policy; 0: no correction", 0,
       1e6},
      {"learner.skip_zero_advantage", &c.learner.skip_zero_advantage,
       "leave sequences without advantage out of the computation (same gradient)"},
      {"learner.row_lengths", &c.learner.row_lengths,
       "packed row lengths; empty: chosen from rollout.tokens_max, then from the batches"},
      {"learner.tokens_per_program", &c.learner.tokens_per_program, "tokens of one compiled shape",
       8, 1 << 24},
      {"learner.shapes_max", &c.learner.shapes_max, "compiled shapes", 1, 8},
      {"learner.replan_every_steps", &c.learner.replan_every_steps,
       "without row_lengths: how often better ones are looked for and compiled ahead; 0: never", 0,
       kMany},
      {"learner.layer_layout",
       &c.learner.layer_layout,
       "per_layer: fastest on CPU; stacked: compiles in constant time",
       0,
       0,
       {"per_layer", "stacked"}},
      {"learner.remat", &c.learner.remat, "recompute layers in the backward pass to save memory"},
      {"learner.compute",
       &c.learner.compute,
       "type of activations and products; weights, sums and the optimizer are f32",
       0,
       0,
       {"f32", "bf16"}},
      {"learner.logprob_chunk", &c.learner.logprob_chunk, "tokens whose logits exist at once", 8,
       1 << 20},
      {"learner.lease_deadline_s", &c.learner.lease_deadline_s,
       "seconds without a batch before the run stops with the reason", 1, 86400},

      {"checkpoint.every_steps", &c.checkpoint.every_steps, "0: only at the end", 0, kMany},
      {"checkpoint.keep", &c.checkpoint.keep,
       "newest checkpoints kept; steps after the oldest can be replayed", 1, 1000},

      {"eval.tasks", &c.eval.tasks, "held-out tasks played before and after; 0: none", 0, 100000},
      {"eval.samples", &c.eval.samples, "episodes of each", 1, 1024},
      {"eval.temperature", &c.eval.temperature, "0: greedy", 0, 100},
  };
}

namespace {

Status CheckHarness(const Config& c) {
  if (c.env.command.empty()) {
    return InvalidArgument(
        "env.command is missing: for env.kind = \"harness\" give the program and its arguments "
        "that play an episode, for instance [\"python3\", \"agent.py\"]");
  }
  if (!c.env.tools.empty()) {
    return InvalidArgument(
        "env.tools has no effect with env.kind = \"harness\": a harness brings its own tools and "
        "names them in its requests; leave env.tools out");
  }
  if (c.rollout.tokens_max != c.rollout.context) {
    return InvalidArgument(fmt::format(
        "rollout.tokens_max = {} and rollout.context = {}: with env.kind = \"harness\" they must "
        "be "
        "the same, because each conversation may fill a slot and is a sequence of its own in a "
        "row; env.episode_tokens_max limits all of an episode's together",
        c.rollout.tokens_max, c.rollout.context));
  }
  return OkStatus();
}

Status CheckTools(const EnvSection& env) {
  if (env.kind == "openenv" && env.url.empty()) {
    return InvalidArgument(
        "env.url is missing: for env.kind = \"openenv\" give the server, for instance "
        "\"http://127.0.0.1:8000\"");
  }
  bool mcp = false;
  for (const std::string& tool : env.tools) {
    if (std::ranges::count(env.tools, tool) > 1) {
      return InvalidArgument(fmt::format("env.tools names '{}' twice", tool));
    }
    if (tool == "mcp") {
      mcp = true;
    } else if (tool != "calculator" && tool != "python" && tool != "shell") {
      return InvalidArgument(
          fmt::format("env.tools has '{}'; there are: calculator, python, shell, mcp", tool));
    }
  }
  if (mcp && env.mcp_command.empty() == env.mcp_url.empty()) {
    return InvalidArgument(
        "env.tools has mcp: give its server by env.mcp_command or by env.mcp_url, one of them");
  }
  if (!mcp && !(env.mcp_command.empty() && env.mcp_url.empty())) {
    return InvalidArgument(
        "env.mcp_command or env.mcp_url names a server that env.tools does not have: add \"mcp\" "
        "to "
        "env.tools");
  }
  return OkStatus();
}

// Rows are rounded up to what divides over the mesh; their lengths are taken as they are.
Status CheckRowLengths(const Config& c) {
  const MeshSection& m = c.mesh;
  const int64_t parts = m.data * m.fsdp * m.expert;
  for (const int64_t length : c.learner.row_lengths) {
    const int64_t rows = std::max<int64_t>(1, c.learner.tokens_per_program / length);
    const int64_t rows_of_one = (rows + parts - 1) / parts;
    if (length % m.context == 0 && rows_of_one * (length / m.context) % m.tensor == 0) continue;
    const int64_t multiple = m.context * m.tensor;
    const int64_t above = (length / multiple + 1) * multiple;
    return InvalidArgument(fmt::format(
        "learner.row_lengths has {}, which mesh.context = {} and mesh.tensor = {} do not divide: "
        "each row is split over both, so use multiples of {}, for instance {}",
        length, m.context, m.tensor, multiple, above));
  }
  return OkStatus();
}

Status CheckEngine(const Config& c) {
  const RolloutSection& r = c.rollout;
  if (r.engine == "builtin") {
    if (r.servers.empty()) return OkStatus();
    return InvalidArgument(
        "rollout.servers is set, but rollout.engine = \"builtin\" asks none: set rollout.engine to "
        "what they are (forebay, vllm, sglang or llamacpp), or remove them");
  }
  if (r.servers.empty()) {
    return InvalidArgument(fmt::format(
        "rollout.servers is missing: for rollout.engine = \"{}\" give the servers' URLs, for "
        "instance [\"http://127.0.0.1:8000\"]",
        r.engine));
  }
  if (r.engine == "llamacpp" && r.reload) {
    return InvalidArgument(
        "rollout.engine = \"llamacpp\": its server cannot take new weights; set rollout.reload = "
        "false");
  }
  const int64_t staleness = c.run.mode == "sync" ? 0 : c.buffer.max_staleness;
  if (!r.reload && c.run.steps > staleness) {
    return InvalidArgument(fmt::format(
        "rollout.reload = false: the servers keep their first weights, and nothing they sample can "
        "be trained on after {} steps (buffer.max_staleness; 0 in sync mode), but run.steps = {}. "
        "Use servers that take new weights, or fewer steps",
        staleness, c.run.steps));
  }
  return OkStatus();
}

}  // namespace

Status CheckCombinations(const Config& c) {
  const int64_t devices =
      c.mesh.data * c.mesh.fsdp * c.mesh.expert * c.mesh.context * c.mesh.tensor;
  if (devices > kDevicesMax) {
    return InvalidArgument(
        fmt::format("mesh: the product of its axes is {} devices; at most {} are possible", devices,
                    kDevicesMax));
  }
  if (c.device.virtual_devices > 0 && devices > c.device.virtual_devices) {
    return InvalidArgument(fmt::format(
        "mesh.data x fsdp x expert x context x tensor = {} x {} x {} x {} x {} needs {} devices, "
        "but "
        "device.virtual_devices (--virtual-devices) = {}: set it to {}, or lower an axis",
        c.mesh.data, c.mesh.fsdp, c.mesh.expert, c.mesh.context, c.mesh.tensor, devices,
        c.device.virtual_devices, devices));
  }
  if (c.model.path.empty()) {
    return InvalidArgument(
        "model.path is missing: give a Hugging Face folder, a .gguf file, or \"tiny:\"");
  }
  if (c.env.kind == "python" && c.env.command.empty()) {
    return InvalidArgument(
        "env.command is missing: for env.kind = \"python\" give the program and its arguments, "
        "for instance [\"python3\", \"env.py\"]");
  }
  if (c.env.kind == "harness") FB_RETURN_IF_ERROR(CheckHarness(c));
  FB_RETURN_IF_ERROR(CheckTools(c.env));
  if (c.env.kind == "builtin" && c.env.builtin.empty()) {
    return InvalidArgument(
        "env.builtin is missing: for env.kind = \"builtin\" give the environment's name");
  }
  FB_RETURN_IF_ERROR(CheckEngine(c));
  if (c.rollout.tokens_max > c.rollout.context) {
    return InvalidArgument(
        fmt::format("rollout.tokens_max = {} does not fit rollout.context = {}: a trajectory must "
                    "fit a slot; raise context "
                    "or lower tokens_max",
                    c.rollout.tokens_max, c.rollout.context));
  }
  const auto& rows = c.learner.row_lengths;
  if (!rows.empty()) {
    const int64_t longest = *std::max_element(rows.begin(), rows.end());
    const int64_t shortest = *std::min_element(rows.begin(), rows.end());
    constexpr int64_t kRowMax = int64_t{1} << 20;  // as rollout.tokens_max
    if (shortest < 1) return InvalidArgument("learner.row_lengths must be positive");
    if (longest > kRowMax) {
      return InvalidArgument(fmt::format(
          "learner.row_lengths end at {}: a row has at most {} tokens", longest, kRowMax));
    }
    if (longest < c.rollout.tokens_max) {
      return InvalidArgument(
          fmt::format("learner.row_lengths end at {}, but rollout.tokens_max = {}: the longest row "
                      "must hold the longest "
                      "trajectory",
                      longest, c.rollout.tokens_max));
    }
    if (static_cast<int64_t>(rows.size()) > c.learner.shapes_max) {
      return InvalidArgument(
          fmt::format("learner.row_lengths has {} entries, but learner.shapes_max = {}",
                      rows.size(), c.learner.shapes_max));
    }
    FB_RETURN_IF_ERROR(CheckRowLengths(c));
  }
  if (c.learner.advantage != "dr_grpo" && c.learner.group_size < 2) {
    return InvalidArgument(
        "learner.group_size must be at least 2: a baseline needs other samples of the task");
  }
  return OkStatus();
}

}  // namespace forebay::control
