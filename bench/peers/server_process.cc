#include "bench/peers/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr auto kTermWait = std::chrono::seconds(2);

std::string EndOfLog(const std::string& path) {
  auto text = ReadFile(path);
  if (!text.ok()) return "";
  constexpr size_t kChars = 600;
  return text->size() > kChars ? text->substr(text->size() - kChars) : *text;
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// In the child: only what is safe after fork.
[[noreturn]] void Exec(const std::string& program, char* const* argv, int log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before prctl
  setpgid(0, 0);                        // an interrupt of the terminal is the parent's to handle
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  const int null = open("/dev/null", O_RDONLY);  // NOLINT(*-vararg)
  dup2(null, STDIN_FILENO);
  execv(program.c_str(), argv);
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::Start(const Options& options) {
  const std::string program = FindProgram(options.program);
  if (program.empty()) return NotFound("there is no program " + options.program);
  const Fd log(open(options.log.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
  if (!log.valid()) return ErrnoStatus("cannot open " + options.log, errno);
  std::vector<std::string> words = {program};
  words.insert(words.end(), options.args.begin(), options.args.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus("cannot start " + program, errno);
  if (pid == 0) Exec(program, argv.data(), log.get(), parent);
  std::unique_ptr<ServerProcess> server(new ServerProcess(pid));
  const TimePoint deadline = Now() + std::chrono::milliseconds(options.start_ms_max);
  while (!options.ready()) {
    if (server->Ended()) {
      return Unavailable(program + " ended as it started: " + EndOfLog(options.log));
    }
    if (Now() > deadline) {
      return Unavailable(program + " was not ready in time: " + EndOfLog(options.log));
    }
    std::this_thread::sleep_for(kPoll);
  }
  return server;
}

bool ServerProcess::Ended() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

ServerProcess::~ServerProcess() {
  if (Ended()) return;
  kill(pid_, SIGTERM);
  const TimePoint deadline = Now() + kTermWait;
  while (!Ended() && Now() < deadline) std::this_thread::sleep_for(kPoll);
  if (Ended()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Result<int> FreePort() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus("no free port on the loopback interface", errno);
  }
  return static_cast<int>(ntohs(address.sin_port));
}

bool Accepts(int port) {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(port);
  return fd.valid() &&
         connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const path = std::getenv("PATH");
  // Debian puts some servers where only root's PATH leads.
  std::istringstream folders(std::string(path == nullptr ? "" : path) + ":/usr/sbin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string program = folder;
    program.append("/").append(name);
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

}  // namespace forebay::bench
