// Config: everything a run can be told, from one strict TOML file and `--set key=value`.
//
// Plain values only: apps/ maps them onto the options of each room. Every key, its default, range
// and meaning stand in one table (config_schema.cc), from which parsing, errors and `forebay
// config` are made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::control {

struct RunConfig {
  int64_t steps = 100;  // optimizer steps
  int64_t seed = 1;
  std::string mode = "decoupled";  // decoupled | sync
};

struct ModelSection {
  // A Hugging Face folder, a .gguf file, or "tiny:" for a random byte-level model.
  std::string path;
  int64_t tiny_layers = 2, tiny_width = 64, tiny_heads = 4, tiny_kv_heads = 2, tiny_ff = 128;
};

struct DeviceSection {
  std::string plugin;           // a PJRT plugin file; "" is the one that set-up installed
  std::string cache_dir;        // compiled programs on disk; "" keeps them in memory
  int64_t virtual_devices = 0;  // of the CPU plugin, for the learner's mesh; 0: one
};

// Devices along each axis of the learner's mesh (docs/sharding.md). All 1: one device.
struct MeshSection {
  int64_t data = 1, fsdp = 1, expert = 1, context = 1, tensor = 1;
  std::string attention = "auto";  // auto | ring | gather
  std::string experts = "auto";    // auto | all_to_all | gather
};

struct EnvSection {
  std::string name = "environment";
  std::string kind = "python";       // python | builtin | openenv | harness
  std::vector<std::string> command;  // python, harness: argv; relative to the config file
  std::vector<std::string> python_path;
  std::string builtin;         // builtin: its name
  std::string options = "{}";  // JSON handed to the environment
  int64_t processes = 1;
  int64_t episodes_per_process = 256;
  int64_t tasks = 0;  // number of training tasks, cycled in shuffled epochs; 0: task = group
  double start_deadline_s = 30, reset_deadline_s = 30, step_deadline_s = 60;
  double episode_deadline_s = 600;        // harness
  int64_t episode_tokens_max = 65536;     // harness: of all branches together
  std::string url;                        // openenv: its server
  std::string token_variable;             // the variable of ours that holds the server's token
  std::vector<std::string> tools;         // calculator | python | shell | mcp
  std::string tools_prompt = "template";  // template | system
  double tool_deadline_s = 60;
  std::vector<std::string> mcp_command;  // argv; relative paths are relative to the config file
  std::string mcp_url, mcp_token_variable;
  int64_t mcp_connections = 1;
  bool mcp_connection_per_episode = false;
  int64_t sandbox_cpu_s = 5, sandbox_memory_mb = 512, sandbox_processes = 32, sandbox_parallel = 0;
  double sandbox_wall_s = 10;
};

struct RolloutSection {
  int64_t actors = 32;                                   // concurrent episodes
  int64_t slots = 16;                                    // sequences decoded at once
  int64_t context = 512;                                 // tokens a slot can hold
  std::vector<int64_t> context_buckets, prefill_chunks;  // empty: chosen from context
  double temperature = 1.0;
  int64_t turns_max = 4, new_tokens_per_turn_max = 64, tokens_max = 512;
  std::vector<std::string> stop_tokens;  // empty: the model's end-of-turn tokens
  double generate_deadline_s = 120;
  // One context bucket: bits do not depend on what runs beside a sequence.
  bool deterministic = false;
  int64_t attempts_max = 4;  // failures of one member of a group before its task is quarantined

  // Whose engine: builtin, or servers: forebay (`forebay serve`), vllm, sglang, llamacpp.
  std::string engine = "builtin";
  std::vector<std::string> servers;  // "http://host:8000", ...
  std::string server_model;          // the name that requests give; empty: none
  std::string server_token_variable, server_ca_file;
  int64_t server_requests_max = 64;  // sent to one server at once
  bool reload = true;                // the servers take new weights
  std::string weights_folder;        // where from; empty: in the run's folder
};

struct BufferSection {
  std::string durability = "sync";  // memory | os | sync
  int64_t max_staleness = 4;        // policy versions
  int64_t memory_mb_max = 1024, disk_mb_max = 16384, segment_mb = 64, record_mb_max = 16;
  double append_deadline_s = 60;
};

struct LearnerSection {
  int64_t groups_per_step = 4, group_size = 8;
  std::string advantage = "grpo";          // grpo | dr_grpo | rloo
  std::string aggregation = "token_mean";  // see docs/GLOSSARY.md
  std::string optimizer = "adamw";         // adamw | adamw_8bit | adafactor | lion | muon
  double learning_rate = 1e-5, weight_decay = 0.0, beta1 = 0.9, beta2 = 0.95, adam_eps = 1e-8;
  double momentum = 0.95;             // muon
  double grad_clip = 1.0;             // global norm; 0: off
  std::string schedule = "constant";  // constant | linear | cosine | wsd | inverse_sqrt
  int64_t warmup_steps = 0, decay_steps = 0;
  double learning_rate_end = 0;  // fraction of learning_rate
  int64_t lora_rank = 0;         // 0: all weights are trained
  double lora_alpha = 16;
  bool lora_rslora = false;
  std::vector<std::string> lora_targets = {"all-linear"};
  double clip_low = 0.2, clip_high = 0.2;
  double is_cap = 2.0;  // truncated importance sampling; 0: no correction
  bool skip_zero_advantage = true;
  std::vector<int64_t>
      row_lengths;  // packed row lengths; empty: chosen, and adapted to the batches
  int64_t tokens_per_program = 1024;  // rows * row length of one compiled shape
  int64_t shapes_max = 8;
  int64_t replan_every_steps = 8;          // 0: keep the row lengths of the start
  std::string layer_layout = "per_layer";  // per_layer | stacked
  bool remat = false;
  std::string compute = "f32";  // f32 | bf16
  int64_t logprob_chunk = 512;
  double lease_deadline_s = 600;
};

struct CheckpointSection {
  int64_t every_steps = 10;  // 0: only at the end
  int64_t keep = 2;
};

struct EvalSection {
  int64_t tasks = 20, samples = 1;  // held-out episodes before and after; tasks = 0: none
  double temperature = 1.0;
};

struct Config {
  RunConfig run;
  ModelSection model;
  DeviceSection device;
  MeshSection mesh;
  EnvSection env;
  RolloutSection rollout;
  BufferSection buffer;
  LearnerSection learner;
  CheckpointSection checkpoint;
  EvalSection eval;

  // run.folder: where relative paths start; by default the folder of the file it came from.
  std::string folder;

  // `path` itself if absolute, else below `folder`.
  std::string Resolve(const std::string& path) const;
};

// Reads `path`, then applies `sets` ("learner.learning_rate=3e-5") in order, then checks every
// range and combination. Errors are kInvalidArgument (kNotFound for the file): they name the key,
// the line, what was wrong, and for an unknown key the nearest known one.
Result<Config> LoadConfig(const std::string& path, const std::vector<std::string>& sets);

// The same from text; `origin` stands in errors, `folder` resolves relative paths.
Result<Config> ParseConfig(std::string_view text, const std::string& origin,
                           const std::string& folder, const std::vector<std::string>& sets);

// A complete TOML file that parses to the same Config (relative paths made absolute).
std::string FormatConfig(const Config& config);

// A key whose values differ between two configurations, as FormatConfig prints them.
struct KeyDifference {
  std::string key;  // "learner.learning_rate"
  std::string left, right;
};
// In the order of the documentation. Pure.
std::vector<KeyDifference> DifferingKeys(const Config& left, const Config& right);

// What `forebay config` prints: each key, its default and its meaning.
std::string DescribeConfig();

}  // namespace forebay::control
