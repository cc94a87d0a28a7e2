// forebay: the command line. Parsing only; the work is in apps/*_command.cc.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "apps/buffer_command.h"
#include "apps/commands.h"
#include "apps/help_format.h"
#include "apps/mistyped.h"
#include "apps/serve_command.h"
#include "forebay/base/status.h"

namespace forebay::apps {
namespace {

CLI::Option* AddSets(CLI::App* app, std::vector<std::string>* sets, const std::string& meaning) {
  return app->add_option("--set", *sets, meaning)->type_name("KEY=VALUE")->allow_extra_args(false);
}

void AddRunOptions(CLI::App* app, std::string* config, std::vector<std::string>* sets,
                   std::string* run, bool* overwrite) {
  app->add_option("config", *config, "TOML configuration; `forebay config` lists its keys");
  AddSets(
      app, sets,
      "override one key, for instance --set learner.learning_rate=3e-5 (repeatable); a relative "
      "path is taken from the configuration's folder, as in the file");
  app->add_option("--run", *run)->type_name("FOLDER");
  app->add_flag("--overwrite", *overwrite, "replace a run that is in that directory");
}

int Main(int argc, char** argv) {
  CLI::App app("Forebay: asynchronous reinforcement learning for agents on slow environments",
               "forebay");
  app.formatter(std::make_shared<HelpFormat>());
  app.set_help_flag("-h,--help", "print this and end");
  app.set_version_flag("--version", std::string("forebay ") + FOREBAY_VERSION,
                       "print the version and end");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 internal error, or a replay with other bits; 2 wrong usage or\n"
      "configuration; 3 not found; 4 corrupt data; 5 a part of the run died (environment, engine,\n"
      "log); 6 out of a resource; 7 a deadline passed; 130 interrupted (a training run can be "
      "resumed).\n"
      "docs/commands.md says more of each command.");

  TrainCommand train;
  CLI::App* train_app =
      app.add_subcommand("train", "train a model; prints progress, then a report");
  AddRunOptions(train_app, &train.config, &train.sets, &train.run, &train.overwrite);
  train_app->get_option("--run")->description(
      "run directory (default: runs/NAME, after the configuration NAME.toml)");
  std::string resume;
  train_app
      ->add_option("--resume", resume,
                   "go on with the run in this directory, under its own configuration and --set")
      ->type_name("RUN")
      ->excludes("config")
      ->excludes("--run")
      ->excludes("--overwrite");
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
  compare_app->get_option("config")->required();
  compare_app->get_option("--run")->description(
      "folder of the two runs, sync and decoupled (default: runs/NAME-compare)");
  compare_app->get_option("--overwrite")->description("replace runs that are in that directory");
  compare_app->add_flag("--json", compare.json, "one JSON object instead of text");

  ExportCommand export_command;
  CLI::App* export_app = app.add_subcommand(
      "export", "write a run's checkpoint, or a model (GGUF, say), as a Hugging Face folder");
  export_app
      ->add_option("source", export_command.source,
                   "a run directory, whose checkpoint is written, or a model: a folder or a .gguf "
                   "file")
      ->required();
  export_app->add_option("output", export_command.output, "folder to write")->required();
  export_app->add_flag("--adapters", export_command.adapters,
                       "of a run with LoRA: only the adapters, in PEFT's format (else they are "
                       "merged into the model)");
  export_app->add_option("--step", export_command.step,
                         "of a run: the checkpoint to write (default: the newest)");

  ReplayCommand replay;
  CLI::App* replay_app = app.add_subcommand(
      "replay", "take an optimizer step again from the batch log and compare the bits");
  replay_app->add_option("run", replay.run, "run directory; nothing in it is changed")->required();
  CLI::Option* replay_list =
      replay_app->add_flag("--list", replay.list, "print which steps can be replayed");
  CLI::Option* replay_step =
      replay_app->add_option("--step", replay.step, "the optimizer step to take again")
          ->excludes(replay_list);
  AddSets(replay_app, &replay.sets,
          "change one key of the step's configuration, to see what it changes (repeatable)")
      ->excludes(replay_list);
  replay_app->add_flag("--json", replay.json, "one JSON object instead of text")
      ->excludes(replay_list);

  PlanCommand plan;
  CLI::App* plan_app = app.add_subcommand(
      "plan",
      "compile an optimizer step for a TPU pod, without the pod, and print what it takes there");
  plan_app->add_option("config", plan.config, "TOML configuration; `forebay config` lists its keys")
      ->required();
  plan_app->add_option("--topology", plan.topology, "chips and their grid, for instance v5p:4x4x8")
      ->required();
  AddSets(plan_app, &plan.sets, "override one key of the configuration (repeatable)");
  plan_app
      ->add_option("--compiler", plan.compiler,
                   "the TPU compiler's file (default: what tools/setup_tpu_compiler.sh got)")
      ->type_name("FILE");
  plan_app->add_flag("--json", plan.json, "one JSON object instead of text");

  AuditCommand audit;
  CLI::App* audit_app =
      app.add_subcommand("audit", "where the time of a run went, and how many actors it needs");
  audit_app->add_option("run", audit.run, "run directory, of a run that goes on or has ended")
      ->required();
  audit_app->add_flag("--json", audit.json, "one JSON object instead of text");

  DevicesCommand devices;
  CLI::App* devices_app =
      app.add_subcommand("devices", "list the accelerator plugin and its devices");
  devices_app
      ->add_option("--plugin", devices.plugin,
                   "a PJRT plugin file (default: the one in FOREBAY_PJRT_PLUGIN, else the CPU's)")
      ->type_name("FILE");

  CLI::App* config_app =
      app.add_subcommand("config", "list every configuration key, its default and its meaning");

  const BufferApp buffer = AddBuffer(app);
  const ServeApp serve = AddServeCommand(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool help = error.get_exit_code() == 0;  // of --help and --version
    std::string mistyped = help ? "" : MistypedCommand(app, argc, argv);
    if (mistyped.empty() && !help) mistyped = MistypedOption(app, argc, argv);
    if (!mistyped.empty()) {
      std::fprintf(stderr, "forebay: %s\n", mistyped.c_str());
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
