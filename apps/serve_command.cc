#include "apps/serve_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "apps/interrupt.h"
#include "apps/model_setup.h"
#include "apps/room_options.h"
#include "apps/run_checkpoint.h"
#include "apps/secrets.h"
#include "fmt/core.h"
#include "fmt/ranges.h"
#include "forebay/base/clock.h"
#include "forebay/base/http.h"
#include "forebay/base/http_server.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/control/config.h"
#include "forebay/learner/checkpoint.h"
#include "forebay/learner/lora.h"
#include "forebay/learner/train_step.h"
#include "forebay/rollout/engine.h"
#include "forebay/rollout/openai_server.h"
#include "forebay/rollout/weights_endpoint.h"
#include "forebay/rollout/xla_engine.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/client.h"
#include "forebay/xla/shape.h"

namespace forebay::apps {
namespace {

constexpr int64_t kContextDefault = 2048;  // tokens, if the model holds as many
constexpr int64_t kTinyContext = 1024;
constexpr auto kStopDeadline = std::chrono::seconds(10);
constexpr int kTextWorkers = 2;  // for JSON, templates and tokenizing

// The model with the weights that are served, and their version.
struct Loaded {
  control::Config config;
  LoadedModel model;
  weights::Snapshot snapshot;
};

// The runs in a folder, as the rest of a sentence.
std::string RunsIn(const std::filesystem::path& folder) {
  constexpr size_t kShown = 5;
  std::error_code error;
  std::vector<std::string> runs;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::error_code none;
    if (std::filesystem::exists(it->path() / "config.toml", none)) {
      runs.push_back(it->path().string());
    }
  }
  if (runs.empty()) return {};
  std::ranges::sort(runs);
  const size_t more = runs.size() - std::min(runs.size(), kShown);
  runs.resize(runs.size() - more);
  return fmt::format("; there are the runs {}{}", fmt::join(runs, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : std::string());
}

// Whether there is something to serve, before anything is read.
Status CheckModel(const std::string& model) {
  namespace fs = std::filesystem;
  if (model.starts_with("tiny:")) return OkStatus();
  std::error_code error;
  const fs::path path = fs::path(model).lexically_normal();
  if (!fs::exists(path, error)) {
    fs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
    if (parent.empty()) parent = ".";
    std::string runs = RunsIn(parent);
    if (runs.empty()) runs = RunsIn("runs");
    return NotFound(fmt::format(
        "there is no '{}': what is served is a run directory, a Hugging Face folder, a .gguf file "
        "or tiny:{}",
        model, runs));
  }
  if (fs::is_directory(path, error) && !fs::exists(path / "config.toml", error) &&
      !fs::exists(path / "config.json", error)) {
    return NotFound(
        fmt::format("'{}' is neither a run (it has no config.toml) nor a Hugging Face folder (no "
                    "config.json){}",
                    model, RunsIn(path)));
  }
  return OkStatus();
}

Result<Loaded> LoadRun(const ServeCommand& command) {
  Loaded out;
  FB_ASSIGN_OR_RETURN(out.config, control::LoadConfig(command.model + "/config.toml", {}));
  FB_ASSIGN_OR_RETURN(const learner::LoadedCheckpoint checkpoint,
                      LoadRunCheckpoint(command.model, command.step));
  FB_ASSIGN_OR_RETURN(out.model, LoadModel(out.config));
  out.model.initial.clear();  // the checkpoint's are served
  const learner::TrainState& train = checkpoint.data.state.train;
  FB_ASSIGN_OR_RETURN(out.snapshot.tensors,
                      learner::MergeAdapters(train.params, train.adapters,
                                             learner::LoraScale(checkpoint.data.lora)));
  out.snapshot.policy_version = checkpoint.data.state.policy_version;
  std::printf("the weights after step %lld\n", static_cast<long long>(checkpoint.data.state.step));
  return out;
}

Result<Loaded> LoadPlain(const ServeCommand& command) {
  Loaded out;
  out.config.model.path = command.model;
  const bool tiny = command.model.starts_with("tiny:");
  // A tiny: model is made for this context; others say what they hold once they are read.
  out.config.rollout.context = std::max(command.context, kTinyContext);
  FB_ASSIGN_OR_RETURN(out.model, LoadModel(out.config));
  out.config.rollout.context =
      tiny ? kTinyContext : std::min(kContextDefault, out.model.model->config().context_max);
  out.snapshot.tensors = std::move(out.model.initial);
  return out;
}

Result<Loaded> Load(const ServeCommand& command) {
  const bool run = std::filesystem::exists(command.model + "/config.toml");
  if (!run && command.step >= 0) {
    return InvalidArgument("--step names a checkpoint of a run, and '" + command.model +
                           "' is none (it has no config.toml)");
  }
  FB_ASSIGN_OR_RETURN(Loaded out, run ? LoadRun(command) : LoadPlain(command));
  if (command.slots > 0) out.config.rollout.slots = command.slots;
  if (command.context > 0) {
    const int64_t most = out.model.model->config().context_max;
    if (command.context > most) {
      return InvalidArgument(fmt::format(
          "--context {} is beyond what the model was made for: {} tokens", command.context, most));
    }
    out.config.rollout.context = command.context;
    out.config.rollout.context_buckets.clear();
    out.config.rollout.prefill_chunks.clear();
  }
  if (!command.plugin.empty()) out.config.device.plugin = command.plugin;
  if (!command.cache_dir.empty()) out.config.device.cache_dir = command.cache_dir;
  return out;
}

std::string ModelName(const ServeCommand& command) {
  if (!command.name.empty()) return command.name;
  std::filesystem::path path = std::filesystem::path(command.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

// Whether the server can listen, before anybody waits for a model to be loaded and compiled.
Status CheckAddresses(const rollout::OpenAiServerOptions& options) {
  const std::unique_ptr<Loop> loop = MakeLoop();
  HttpServerOptions http{.listen = options.listen,
                         .certificate_file = options.certificate_file,
                         .key_file = options.key_file};
  if (!options.token.empty()) http.authorize = [](const HttpRequest&) { return false; };
  return HttpServer::Start(*loop, std::move(http), nullptr).status();
}

// The server on a thread of its own, until the interrupt.
// With `current`, the weights that the engine has, it takes newer ones.
Status RunServer(const rollout::ServedModel& model, rollout::OpenAiServerOptions options,
                 std::optional<weights::Snapshot> current) {
  const std::unique_ptr<Loop> loop = MakeLoop();
  WorkerPool workers(kTextWorkers);
  options.workers = &workers;
  std::unique_ptr<rollout::WeightsEndpoint> endpoint;
  if (current) {
    endpoint = rollout::WeightsEndpoint::Create(*loop, &workers, *model.engine, *current);
    options.weights = endpoint.get();
    current.reset();
  }
  std::promise<void> interrupted;
  const Interrupt interrupt([&] { interrupted.set_value(); });
  std::thread thread([&] { loop->Run(); });
  std::promise<Status> started;
  std::unique_ptr<rollout::OpenAiServer> server;
  loop->Post([&] {
    auto made = rollout::OpenAiServer::Start(*loop, model, options);
    if (made.ok()) server = std::move(*made);
    started.set_value(made.status());
  });
  Status status = started.get_future().get();
  if (status.ok()) {
    for (const std::string& address : server->addresses()) {
      std::printf("serving %s on %s\n", model.name.c_str(), address.c_str());
    }
    std::fflush(stdout);
    interrupted.get_future().wait();
    std::promise<void> stopped;
    loop->Post([&] {
      loop->Spawn(server->Stop(Now() + kStopDeadline), [&] {
        const rollout::OpenAiServerStats stats = server->stats();
        std::printf("stopped: %lld requests, %lld refused, %lld cancelled by their clients\n",
                    static_cast<long long>(stats.requests), static_cast<long long>(stats.refused),
                    static_cast<long long>(stats.cancelled));
        server.reset();
        stopped.set_value();
      });
    });
    stopped.get_future().wait();
  }
  loop->Stop();
  thread.join();
  return status;
}

}  // namespace

Status Serve(const ServeCommand& command) {
  rollout::OpenAiServerOptions options;
  options.listen = command.listen;
  if (options.listen.empty()) {
    const bool brackets = command.host.find(':') != std::string::npos;
    options.listen = {fmt::format("tcp:{}{}{}:{}", brackets ? "[" : "", command.host,
                                  brackets ? "]" : "", command.port)};
  }
  options.allowed_hosts = command.allowed_hosts;
  options.certificate_file = command.certificate_file;
  options.key_file = command.key_file;
  options.request_deadline = FromSeconds(command.request_deadline_s);
  options.seed = static_cast<uint64_t>(command.seed < 0 ? WallMicros() : command.seed);
  if (!command.token_file.empty()) {
    FB_ASSIGN_OR_RETURN(options.token, TokenFromFile(command.token_file));
  }
  if (!command.quiet) {
    options.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  }

  FB_RETURN_IF_ERROR(CheckModel(command.model));
  FB_RETURN_IF_ERROR(CheckAddresses(options));
  std::printf("loading %s\n", command.model.c_str());
  std::fflush(stdout);
  FB_ASSIGN_OR_RETURN(Loaded loaded, Load(command));
  FB_ASSIGN_OR_RETURN(const std::string plugin,
                      xla::FindPlugin(loaded.config.Resolve(loaded.config.device.plugin)));
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<xla::Client> client,
      xla::Client::Create({.plugin_path = plugin,
                           .cache_dir = loaded.config.Resolve(loaded.config.device.cache_dir)}));
  rollout::XlaEngineOptions engine_options = MakeEngineOptions(loaded.config);
  engine_options.tokenizer = loaded.model.tokenizer;
  if (command.dtype == "bf16") {
    engine_options.weights_dtype = engine_options.cache_dtype = xla::DType::kBF16;
  }
  std::printf("compiling for %lld slots of %lld tokens\n",
              static_cast<long long>(engine_options.slots),
              static_cast<long long>(engine_options.context));
  std::fflush(stdout);
  FB_ASSIGN_OR_RETURN(
      const std::unique_ptr<rollout::Engine> engine,
      rollout::MakeXlaEngine(engine_options, *client, loaded.model.model, loaded.snapshot));
  std::optional<weights::Snapshot> current;
  if (command.take_weights) current = std::move(loaded.snapshot);
  loaded.snapshot.tensors.clear();  // the engine has its own copy

  const rollout::ServedModel served = Served(loaded.model, ModelName(command), engine.get());
  if (served.chat == nullptr) {
    std::fprintf(stderr,
                 "note: %s has no chat template (a base model): /v1/completions answers, "
                 "/v1/chat/completions is refused\n",
                 served.name.c_str());
  } else if (!rollout::KnowsTools(served)) {
    std::fprintf(stderr,
                 "note: the chat template of %s knows no tools: those of a request stand in the "
                 "system message (docs/serving.md)\n",
                 served.name.c_str());
  }
  const Status status = RunServer(served, options, std::move(current));
  engine->Shutdown();
  return status;
}

ServeApp AddServeCommand(CLI::App& parent) {
  const auto command = std::make_shared<ServeCommand>();
  CLI::App* app = parent.add_subcommand(
      "serve", "a model or a run's checkpoint behind OpenAI's HTTP API, until interrupted");
  app->add_option("model", command->model,
                  "a Hugging Face folder, a .gguf file, tiny: or a run directory")
      ->required();
  app->add_option("--step", command->step, "of a run: the checkpoint (default: the newest)");
  app->add_option("--name", command->name, "what clients call the model (default: its file name)");
  app->add_option("--host", command->host, "where to listen")->capture_default_str();
  app->add_option("--port", command->port, "0 takes any that is free")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app->add_option("--listen", command->listen,
                  "unix:/path/to.sock or tcp:host:port, instead of --host and --port (repeatable)")
      ->allow_extra_args(false);
  app->add_option(
         "--allowed-host", command->allowed_hosts,
         "a name beside localhost under which requests may come, where no key is asked for "
         "(repeatable)")
      ->allow_extra_args(false);
  app->add_flag("--take-weights", command->take_weights,
                "let a run with rollout.engine = \"forebay\" give new weights: whoever can send "
                "requests then decides what is sampled");
  app->add_option("--token-file", command->token_file,
                  "clients must send what it holds as their API key");
  app->add_option("--certificate", command->certificate_file, "PEM: TLS on TCP");
  app->add_option("--key", command->key_file, "PEM: of the certificate");
  app->add_option("--slots", command->slots, "sequences that decode at once (default: 16)")
      ->check(CLI::Range(1, 1 << 14));
  app->add_option("--context", command->context,
                  "tokens of a sequence, prompt included (default: the run's, or at most 2048)")
      ->check(CLI::Range(16, 1 << 24));
  app->add_option("--dtype", command->dtype, "of weights and cache: f32 or bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  app->add_option("--plugin", command->plugin, "a PJRT plugin file");
  app->add_option("--cache-dir", command->cache_dir, "compiled programs, kept for the next start");
  app->add_option("--seed", command->seed, "of requests that bring none (default: the clock)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--request-deadline-s", command->request_deadline_s, "of one answer")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e6));
  app->add_flag("--quiet", command->quiet, "no line for each request");
  app->footer(
      "POST /v1/chat/completions, /v1/completions, /inference/v1/generate; GET /v1/models,\n"
      "/health. Beyond loopback it needs --certificate, --key and --token-file. docs/serving.md\n"
      "says what is supported.");
  return {.app = app, .run = [command] { return Serve(*command); }};
}

}  // namespace forebay::apps
