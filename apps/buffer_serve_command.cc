#include "apps/buffer_serve_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/buffer_command.h"
#include "apps/interrupt.h"
#include "apps/room_options.h"
#include "apps/secrets.h"
#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/buffer/server.h"

namespace forebay::apps {
namespace {

constexpr std::chrono::seconds kStopDeadline{10};

// Called from the signal's thread; waited for on the main one.
class Flag {
 public:
  void Set() {
    {
      const MutexLock lock(mutex_);
      set_ = true;
    }
    changed_.NotifyAll();
  }
  void Wait() {
    const MutexLock lock(mutex_);
    while (!set_) changed_.WaitUntil(mutex_, Now() + std::chrono::hours(1));
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ FB_GUARDED_BY(mutex_) = false;
};

buffer::BufferOptions OptionsOf(const BufferServeCommand& command, const std::string& table) {
  buffer::BufferOptions options;
  options.folder = command.folder + "/" + table;
  options.durability = DurabilityOf(command.durability);
  options.group_size = command.group_size;
  options.max_staleness = command.max_staleness;
  options.memory_bytes_max = command.memory_mb_max << 20;
  options.disk_bytes_max = command.disk_gb_max << 30;
  options.record_bytes_max = command.record_mb_max << 20;
  options.implied_dispatch = true;
  return options;
}

// What the learners' checkpoints hold, as far as the log knows: a learner that holds more says so
// by its next Commit. 0: no log, or one that Open will speak of.
int64_t CommittedBatch(const buffer::BufferOptions& options) {
  if (options.durability == buffer::Durability::kMemory) return 0;
  const auto reader = buffer::LogReader::Open(options.folder);
  if (!reader.ok()) return 0;
  const Result<buffer::LogState> state = (*reader)->ReadState();
  return state.ok() ? state->committed_batch : 0;
}

void PrintRecovery(const std::string& table, const buffer::Recovery& recovery) {
  if (recovery.records > 0) {
    std::printf("table %s: %lld records recovered\n", table.c_str(),
                static_cast<long long>(recovery.records));
  }
  for (const std::string& note : recovery.notes) {
    std::fprintf(stderr, "note: %s: %s\n", table.c_str(), note.c_str());
  }
}

// What is served, what an acknowledgement is worth, and how to come in.
void PrintHowTo(const BufferServeCommand& command, const std::vector<std::string>& names,
                const std::vector<std::string>& addresses) {
  const bool memory = command.durability == "memory";
  const std::string_view survives = memory                       ? "nothing: it is in memory only"
                                    : command.durability == "os" ? "kill -9 of this process"
                                                                 : "power loss";
  fmt::print("tables     {}: groups of {}, at most {} versions behind their reader{}\n",
             fmt::join(names, ", "), command.group_size, command.max_staleness,
             memory ? "" : fmt::format("; logs in {}/TABLE", command.folder));
  fmt::print("durability {}: an acknowledged append survives {}\n", command.durability, survives);
  fmt::print(
      "connect    Python: forebay.buffer.BufferClient(\"{}\", producer=\"actor-1\"{}{}); "
      "others: docs/buffer.md\n",
      addresses.front(),
      names.front() == "train" ? "" : fmt::format(", table=\"{}\"", names.front()),
      command.token_file.empty() ? "" : ", token=...");
  if (!memory) {
    fmt::print("look       forebay buffer stat {}/{}\n", command.folder, names.front());
  }
}

}  // namespace

Status BufferServe(const BufferServeCommand& command) {
  Flag interrupted;
  const Interrupt interrupt([&] { interrupted.Set(); });
  FB_RETURN_IF_ERROR(MakeFolders(command.folder));
  buffer::ServerOptions options;
  options.listen = command.listen;
  if (options.listen.empty()) options.listen = {"unix:" + command.folder + "/buffer.sock"};
  options.certificate_file = command.certificate_file;
  options.key_file = command.key_file;
  if (!command.token_file.empty()) {
    FB_ASSIGN_OR_RETURN(options.token, TokenFromFile(command.token_file));
  }
  // Without a log, what was given out before is unknown after a restart, with or without the file.
  options.folder = command.folder;

  std::vector<std::string> names = command.tables;
  if (names.empty()) names = {"train"};
  for (const std::string& name : names) {
    FB_RETURN_IF_ERROR(buffer::CheckTableName(name));
    if (std::ranges::count(names, name) > 1) {
      return InvalidArgument("table '" + name + "' is named twice");
    }
  }
  std::vector<std::unique_ptr<buffer::Buffer>> buffers;
  std::map<std::string, buffer::ServedTable> tables;
  for (const std::string& name : names) {
    buffer::BufferListener listener;
    listener.on_failure = [name](const Status& why) {
      std::fprintf(stderr, "forebay: table %s takes no more appends: %s\n", name.c_str(),
                   why.message().c_str());
    };
    buffer::Recovery recovery;
    const buffer::BufferOptions buffer_options = OptionsOf(command, name);
    FB_ASSIGN_OR_RETURN(auto opened,
                        buffer::Buffer::Open(buffer_options, CommittedBatch(buffer_options),
                                             std::move(listener), &recovery));
    PrintRecovery(name, recovery);
    buffers.push_back(std::move(opened));
    options.next_trajectory_id = std::max(options.next_trajectory_id, recovery.next_trajectory_id);
    tables[name] = {.buffer = buffers.back().get(),
                    .implied_dispatch = true,
                    .group_size = command.group_size,
                    .record_bytes_max = buffer_options.record_bytes_max};
  }
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<buffer::Server> server,
                      buffer::Server::Start(tables, options));
  for (const std::string& address : server->addresses()) {
    std::printf("serving on %s\n", address.c_str());
  }
  PrintHowTo(command, names, server->addresses());
  std::fflush(stdout);
  interrupted.Wait();
  server->Stop(Now() + kStopDeadline);
  for (const auto& each : buffers) each->Close();
  const buffer::ServerStats stats = server->stats();
  std::printf("stopped: %lld appends, %lld takes, %lld connections\n",
              static_cast<long long>(stats.appends), static_cast<long long>(stats.takes),
              static_cast<long long>(stats.connections_total));
  for (size_t i = 0; i < stats.refused.size(); ++i) {
    if (stats.refused[i] == 0) continue;
    std::printf("refused %s: %lld\n",
                std::string(buffer::RefusalName(static_cast<buffer::Refusal>(i))).c_str(),
                static_cast<long long>(stats.refused[i]));
  }
  return OkStatus();
}

void AddServe(CLI::App& parent, BufferApp& buffer) {
  const auto command = std::make_shared<BufferServeCommand>();
  CLI::App* app = parent.add_subcommand(
      "serve", "a buffer for actors and readers in other processes, until interrupted");
  app->add_option("folder", command->folder, "folder of the tables' logs; made if missing")
      ->required();
  app->add_option("--table", command->tables, "a table to serve (repeatable; default: train)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app->add_option("--listen", command->listen,
                  "unix:/path/to.sock or tcp:host:port (repeatable; default: "
                  "unix:FOLDER/buffer.sock)")
      ->type_name("ADDRESS")
      ->allow_extra_args(false);
  app->add_option("--durability", command->durability,
                  "what an acknowledged append survives: power loss (sync), kill -9 (os), nothing "
                  "(memory)")
      ->capture_default_str()
      ->check(CLI::IsMember({"memory", "os", "sync"}));
  app->add_option("--group-size", command->group_size, "trajectories that are given out together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app->add_option("--max-staleness", command->max_staleness,
                  "policy versions that a trajectory may be behind its reader's")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  const CLI::Range sizes(1, 1 << 20);
  app->add_option("--memory-mb-max", command->memory_mb_max,
                  "MiB of each table's log kept in memory")
      ->capture_default_str()
      ->check(sizes);
  app->add_option("--disk-gb-max", command->disk_gb_max,
                  "GiB of each table's log on disk; appends wait above it")
      ->capture_default_str()
      ->check(sizes);
  app->add_option("--record-mb-max", command->record_mb_max, "MiB of one trajectory")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app->add_option("--token-file", command->token_file,
                  "clients on TCP must know the token that it holds")
      ->type_name("FILE");
  app->add_option("--certificate", command->certificate_file, "TLS on TCP with this one (PEM)")
      ->type_name("FILE");
  app->add_option("--key", command->key_file, "of the certificate (PEM)")->type_name("FILE");
  app->footer(
      "TCP beyond loopback needs --certificate, --key and --token-file. Clients: the Python "
      "package\n"
      "forebay.buffer, forebay/buffer/client.h, or docs/buffer_protocol.md.");
  buffer.run = [app, command, next = std::move(buffer.run)] {
    if (app->parsed()) return BufferServe(*command);
    return next ? next() : OkStatus();
  };
}

}  // namespace forebay::apps
