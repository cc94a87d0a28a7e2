// forebay: the command line. Parsing only; the work is in apps/*_command.cc.
#include <sys/resource.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/buffer_command.h"
#include "apps/commands.h"
#include "apps/serve_command.h"
#include "forebay/base/status.h"
#include "forebay/control/nearest.h"

namespace forebay::apps {
namespace {

void AddRunOptions(CLI::App* app, std::string* config, std::vector<std::string>* sets,
                   std::string* run, bool* overwrite) {
  app->add_option("config", *config, "TOML configuration; `forebay config` lists its keys");
  app->add_option("--set", *sets,
                  "override one key, for instance --set learner.learning_rate=3e-5 (repeatable); a "
                  "relative path is taken from the configuration's folder, as in the file")
      ->allow_extra_args(false);
  app->add_option("--run", *run, "run directory (default: runs/<name of the config>)");
  app->add_flag("--overwrite", *overwrite, "replace a run that is in that directory");
}

// What is wrong with an argument that names no command where one is expected; "" when none does.
std::string UnknownCommand(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string path = app.get_name();
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto commands = at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty()) return "";
    const std::string given = argv[i];
    const auto found = std::ranges::find(commands, given, &CLI::App::get_name);
    if (found != commands.end()) {
      at = *found;
      path += " " + given;
      continue;
    }
    std::vector<std::string_view> names;
    names.reserve(commands.size());
    for (const CLI::App* command : commands) names.emplace_back(command->get_name());
    const std::string_view nearest = control::Nearest(given, names);
    const std::string hint =
        nearest.empty() ? "" : fmt::format("; the nearest is '{} {}'", path, nearest);
    return fmt::format("there is no command '{} {}'{} ({} --help lists them)", path,
                       given.substr(0, 80), hint, path);
  }
  return "";
}

int Main(int argc, char** argv) {
  CLI::App app("Forebay: asynchronous reinforcement learning for agents on slow environments",
               "forebay");
  app.set_version_flag("--version", std::string("forebay ") + FOREBAY_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 internal error, or a replay with other bits; 2 wrong usage or "
      "configuration; 3 not found; 4 "
      "corrupt data;\n"
      "5 a part of the run died (environment, engine, log); 6 out of a resource; 7 a deadline "
      "passed;\n"
      "130 interrupted (resumable).");

  TrainCommand train;
  CLI::App* train_app =
      app.add_subcommand("train", "train a model; prints progress, then a report");
  AddRunOptions(train_app, &train.config, &train.sets, &train.run, &train.overwrite);
  std::string resume;
  train_app->add_option("--resume", resume, "go on with the run in this directory")
      ->excludes("config");
  train_app->add_flag("--quiet", train.quiet, "no progress display");
  int virtual_devices = 0;
  train_app
      ->add_option("--virtual-devices", virtual_devices,
                   "as --set device.virtual_devices=N: try a mesh on the CPU")
      ->check(CLI::Range(1, 1024));

  CompareCommand compare;
  CLI::App* compare_app = app.add_subcommand(
      "compare", "run the synchronous loop and the decoupled one on the same work");
  AddRunOptions(compare_app, &compare.config, &compare.sets, &compare.run, &compare.overwrite);
  compare_app->add_flag("--json", compare.json, "end with one JSON object");

  ExportCommand export_command;
  CLI::App* export_app = app.add_subcommand(
      "export", "write a checkpoint, or a model (GGUF, say), as a Hugging Face folder");
  export_app->add_option("run", export_command.run, "run directory, model folder or .gguf file")
      ->required();
  export_app->add_option("output", export_command.output, "folder to write")->required();
  export_app->add_flag("--adapters", export_command.adapters,
                       "only the LoRA adapters, in PEFT's format (default: merged into the model)");
  export_app->add_option("--step", export_command.step, "checkpoint to take (default: the newest)");

  ReplayCommand replay;
  CLI::App* replay_app = app.add_subcommand(
      "replay", "take an optimizer step again from the batch log and compare the bits");
  replay_app->add_option("run", replay.run, "run directory; nothing in it is changed")->required();
  CLI::Option* replay_list =
      replay_app->add_flag("--list", replay.list, "print which steps can be replayed");
  CLI::Option* replay_step =
      replay_app->add_option("--step", replay.step, "the optimizer step to take again")
          ->excludes(replay_list);
  replay_app
      ->add_option(
          "--set", replay.sets,
          "change one key of the step's configuration, to see what it changes (repeatable)")
      ->allow_extra_args(false)
      ->excludes(replay_list);
  replay_app->add_flag("--json", replay.json, "one JSON object instead of the table")
      ->excludes(replay_list);

  PlanCommand plan;
  CLI::App* plan_app = app.add_subcommand(
      "plan",
      "compile a configuration's optimizer step for a TPU pod, without the pod, and print what it "
      "takes there");
  plan_app->add_option("config", plan.config, "TOML configuration")->required();
  plan_app->add_option("--topology", plan.topology, "chips and their grid, for instance v5p:4x4x8")
      ->required();
  plan_app->add_option("--set", plan.sets, "override one key (repeatable)")
      ->allow_extra_args(false);
  plan_app->add_option("--compiler", plan.compiler,
                       "the TPU compiler's file (default: what tools/setup_tpu_compiler.sh got)");
  plan_app->add_flag("--json", plan.json, "one JSON object instead of text");

  AuditCommand audit;
  CLI::App* audit_app =
      app.add_subcommand("audit", "where the time of a run went, and how many actors it needs");
  audit_app->add_option("run", audit.run, "run directory")->required();
  audit_app->add_flag("--json", audit.json, "one JSON object instead of text");

  DevicesCommand devices;
  CLI::App* devices_app =
      app.add_subcommand("devices", "list the accelerator plugin and its devices");
  devices_app->add_option("--plugin", devices.plugin, "a PJRT plugin file");

  CLI::App* config_app =
      app.add_subcommand("config", "list every configuration key, its default and its meaning");

  const BufferApp buffer = AddBuffer(app);
  const ServeApp serve = AddServeCommand(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string unknown = UnknownCommand(app, argc, argv); !unknown.empty()) {
      std::fprintf(stderr, "forebay: %s\n", unknown.c_str());
      return 2;
    }
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }

  Status status;
  if (train_app->parsed()) {
    if (!resume.empty()) {
      train.resume = true;
      train.run = resume;
    }
    if (virtual_devices > 0) {
      train.sets.push_back("device.virtual_devices=" + std::to_string(virtual_devices));
    }
    status = Train(train);
  } else if (compare_app->parsed()) {
    status = Compare(compare);
  } else if (export_app->parsed()) {
    status = Export(export_command);
  } else if (replay_app->parsed()) {
    status = replay.list || replay_step->count() > 0
                 ? ReplayRun(replay)
                 : InvalidArgument(
                       "replay needs a step: forebay replay RUN --step N (--list names them)");
  } else if (audit_app->parsed()) {
    status = AuditRun(audit);
  } else if (plan_app->parsed()) {
    status = PlanStep(plan);
  } else if (devices_app->parsed()) {
    status = Devices(devices);
  } else if (config_app->parsed()) {
    status = PrintConfigKeys();
  } else if (buffer.app->parsed()) {
    status = buffer.run();
  } else if (serve.app->parsed()) {
    status = serve.run();
  }
  // What was asked for and could not be printed is no success.
  if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = ResourceExhausted("cannot write to the standard output (disk full?)");
  }
  if (!status.ok()) std::fprintf(stderr, "forebay: %s\n", status.message().c_str());
  return ExitCode(status);
}

// An exception that nothing caught, on any thread: a machine that is out of memory or threads, or
// a bug. Nothing acknowledged is lost: the run can be resumed as after kill -9.
[[noreturn]] void OnTerminate() {
  int code = 1;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    std::fputs("forebay: terminated\n", stderr);
  } catch (const std::bad_alloc&) {
    std::fputs(
        "forebay: out of memory: give it more, or lower rollout.slots, rollout.context, "
        "learner.tokens_per_program or buffer.memory_mb_max\n",
        stderr);
    code = 6;
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "forebay: the system refused (threads, descriptors or memory ran out?): %s\n",
                 error.what());
    code = 6;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forebay: an error that nothing expected: %s\n", error.what());
  } catch (...) {
    std::fputs("forebay: an error that nothing expected\n", stderr);
  }
  std::_Exit(code);
}

}  // namespace
}  // namespace forebay::apps

// A buffer holds the files of its segments open, which the usual soft limit of 1024 is too small
// for. Not more than this: children inherit it, and some walk through all of it.
static void RaiseOpenFilesLimit() {
  constexpr rlim_t kOpenFiles = 65536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kOpenFiles) return;
  limit.rlim_cur = std::min(kOpenFiles, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char** argv) {
  // A limit on the size of files is an error of the write, as a full disk is. A handler, because an
  // ignored signal would be ignored in the environment's programs too.
  std::signal(SIGXFSZ, [](int) {});
  std::set_terminate(forebay::apps::OnTerminate);
  RaiseOpenFilesLimit();
  return forebay::apps::Main(argc, argv);
}
