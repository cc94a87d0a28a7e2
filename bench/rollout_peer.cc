#include "bench/rollout_peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/status.h"

extern char** environ;

namespace forebay::bench {
namespace {

std::string Deps(const std::string& path) {
  return std::string(FOREBAY_SOURCE_DIR) + "/.deps/peers/" + path;
}

bool Wanted(const char* name) {
  const char* peer = std::getenv("FOREBAY_ROLLOUT_PEER");
  return peer == nullptr || std::string_view(peer) == name;
}

}  // namespace

std::vector<std::string> RolloutPeer::LlamaCpp(const Model& model) {
  if (!Wanted("llamacpp")) return {};
  const std::string program = Deps("llamacpp/llamacpp_decode");
  if (access(program.c_str(), X_OK) != 0) return {};
  return {program,
          model.gguf,
          Deps("llamacpp/model-f16.gguf"),
          std::to_string(std::thread::hardware_concurrency()),
          std::to_string(model.streams_max),
          std::to_string(model.context)};
}

std::vector<std::string> RolloutPeer::Vllm(const Model& model, const std::string& dtype) {
  if (!Wanted("vllm")) return {};
  const std::string program = Deps("vllm/bin/python");
  if (access(program.c_str(), X_OK) != 0) return {};
  return {program,
          std::string(FOREBAY_SOURCE_DIR) + "/bench/peers/vllm_decode.py",
          model.folder,
          std::to_string(model.context),
          std::to_string(model.streams_max),
          dtype};
}

RolloutPeer::RolloutPeer(pid_t pid, FILE* to, FILE* from, std::string log)
    : pid_(pid), to_(to), from_(from), log_(std::move(log)) {}

RolloutPeer::~RolloutPeer() {
  std::fclose(to_);
  std::fclose(from_);
  kill(-pid_, SIGKILL);  // its group: vLLM has children
  waitpid(pid_, nullptr, 0);
}

Result<std::unique_ptr<RolloutPeer>> RolloutPeer::Start(const std::vector<std::string>& arguments,
                                                        const std::string& log) {
  std::array<int, 2> in = {}, out = {};
  if (pipe2(in.data(), O_CLOEXEC) != 0) return Unavailable("cannot make a pipe");
  if (pipe2(out.data(), O_CLOEXEC) != 0) {
    close(in[0]);
    close(in[1]);
    return Unavailable("cannot make a pipe");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(in[0]);
  close(out[1]);
  if (failed != 0) {
    close(in[1]);
    close(out[0]);
    return Unavailable("cannot start " + arguments[0]);
  }
  std::unique_ptr<RolloutPeer> peer(
      new RolloutPeer(pid, fdopen(in[1], "w"), fdopen(out[0], "r"), log));
  FB_ASSIGN_OR_RETURN(const std::string ready, peer->ReadLine());
  if (ready != "ready") return DataLoss(arguments[0] + " began with \"" + ready + "\"");
  return peer;
}

Result<std::string> RolloutPeer::ReadLine() {
  std::string line;
  for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
    if (c == EOF) return Unavailable("a peer ended: see " + log_);
    line += static_cast<char>(c);
  }
  return line;
}

Result<double> RolloutPeer::Decode(int64_t streams, int64_t prompt, int64_t new_tokens) {
  if (std::fputs(fmt::format("{} {} {}\n", streams, prompt, new_tokens).c_str(), to_) < 0 ||
      std::fflush(to_) != 0) {
    return Unavailable("a peer ended: see " + log_);
  }
  FB_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  const double seconds = std::strtod(line.c_str(), nullptr);
  if (!(seconds > 0)) return Unavailable("a peer answered \"" + line + "\": see " + log_);
  return static_cast<double>(streams * new_tokens) / seconds;
}

}  // namespace forebay::bench
