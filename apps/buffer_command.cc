#include "apps/buffer_command.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "apps/buffer_serve_command.h"
#include "forebay/base/status.h"

namespace forebay::apps {
namespace {

// Of counts and batch numbers; a limit that a message can show.
constexpr int64_t kMost = int64_t{1} << 60;

constexpr const char* kFolderHelp =
    "a run directory, or the folder of a buffer (where segment-*.log lie)";

// Adds a subcommand with its own options; `run` gets them when it was asked for.
template <typename Command>
CLI::App* Add(CLI::App& parent, BufferApp& buffer, const char* name, const char* help,
              std::shared_ptr<Command> command, Status (*run)(const Command&)) {
  CLI::App* app = parent.add_subcommand(name, help);
  app->add_option("folder", command->folder, kFolderHelp)->required();
  buffer.run = [app, command = std::move(command), run, next = std::move(buffer.run)] {
    if (app->parsed()) return run(*command);
    return next ? next() : OkStatus();
  };
  return app;
}

void AddExport(CLI::App& parent, BufferApp& buffer) {
  const auto command = std::make_shared<BufferExportCommand>();
  CLI::App* app =
      Add(parent, buffer, "export", "write trajectories as JSON lines or Parquet, one row each",
          command, BufferExport);
  app->add_option("--format", command->format, "of the output")
      ->capture_default_str()
      ->check(CLI::IsMember({"jsonl", "parquet"}));
  app->add_option("--output,-o", command->output,
                  "file to write, aside and renamed when complete (default: stdout, jsonl only)")
      ->type_name("FILE");
  app->add_flag("--overwrite", command->overwrite, "replace an output that is there");
  app->add_option("--from-batch", command->from_batch, "only trajectories of this batch or later")
      ->check(CLI::Range(int64_t{1}, kMost));
  app->add_option("--to-batch", command->to_batch, "only trajectories of this batch or earlier")
      ->check(CLI::Range(int64_t{1}, kMost));
  app->add_option("--outcome", command->outcomes,
                  "only this outcome, for instance done or truncated_tokens (repeatable)")
      ->type_name("OUTCOME")
      ->allow_extra_args(false);
  app->add_flag("--pending", command->pending, "only those that are not trained on yet");
  app->add_flag("--trained", command->trained, "only those that were trained on");
  app->add_flag("--quiet", command->quiet, "do not say what was written");
  app->footer(
      "One row: ids, environment, outcome, state (pending, leased, trained, rejected, unknown),\n"
      "batch, rewards, versions, tokens, loss_mask, rollout_logprobs, turns with their times.\n"
      "Rejected trajectories and older ones are there until their segment is recycled.\n"
      "docs/buffer_tools.md lists every field.");
}

}  // namespace

BufferApp AddBuffer(CLI::App& root) {
  BufferApp buffer;
  buffer.app = root.add_subcommand(
      "buffer",
      "look into the buffer of a run, live or after the fact; export it; repair it; serve one");
  buffer.app->require_subcommand(1);
  buffer.app->footer(
      "All but repair and serve only read: they take no lock and may be used on a live run.\n"
      "Exit codes: 4 when something is damaged; otherwise as for every command (forebay --help).");

  const auto ls = std::make_shared<BufferLsCommand>();
  CLI::App* app =
      Add(*buffer.app, buffer, "ls",
          "list the segments: number, state, bytes, sequences, records by type", ls, BufferLs);
  app->add_flag("--json", ls->json, "one JSON object instead of text");

  const auto stat = std::make_shared<BufferStatCommand>();
  app = Add(*buffer.app, buffer, "stat",
            "ledger, groups, batches, sizes, lengths, staleness of what is pending", stat,
            BufferStat);
  app->add_flag("--quick", stat->quick, "read the indexes only: no lengths and no outcomes");
  app->add_flag("--json", stat->json, "one JSON object instead of text");

  const auto verify = std::make_shared<BufferVerifyCommand>();
  app = Add(*buffer.app, buffer, "verify",
            "check every record, every index and the state files; name what is damaged", verify,
            BufferVerify);
  app->add_flag("--json", verify->json, "one JSON object instead of text");

  const auto tail = std::make_shared<BufferTailCommand>();
  app = Add(*buffer.app, buffer, "tail", "the newest records, one a line", tail, BufferTail);
  app->add_option("-n,--lines", tail->lines, "how many records")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kMost));
  app->add_flag("-f,--follow", tail->follow,
                "go on with what is written from now on, until interrupted");
  app->add_option(
         "--type", tail->types,
         "only dispatch, trajectory, reject, close_group, lease, commit, release or consume "
         "records (repeatable)")
      ->type_name("TYPE")
      ->allow_extra_args(false);
  app->add_flag("--json", tail->json, "one JSON object a line");

  AddExport(*buffer.app, buffer);

  const auto repair = std::make_shared<BufferRepairCommand>();
  app = Add(*buffer.app, buffer, "repair",
            "put what is damaged in quarantine and make the rest start cleanly", repair,
            BufferRepair);
  app->add_flag("--dry-run", repair->dry_run, "say what would be done, change nothing");
  app->add_flag("--json", repair->json, "one JSON object instead of text");
  app->footer(
      "Needs the buffer's lock: stop the run first. Deletes nothing: every byte that is replaced\n"
      "is copied to the folder quarantine/ before.");
  AddServe(*buffer.app, buffer);
  return buffer;
}

}  // namespace forebay::apps
