// ServerProcess: a peer's server as a child of the benchmark, gone with it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::bench {

// Runs from Start until it is destroyed (SIGTERM, SIGKILL after a moment), and is killed by the
// kernel if the thread that started it ends first. Not thread-safe.
class ServerProcess {
 public:
  struct Options {
    std::string program;            // a path, or a name on PATH
    std::vector<std::string> args;  // after the program
    std::string log;                // a file that takes stdout and stderr
    int start_ms_max = 30'000;      // until ready() is true
    std::function<bool()> ready;    // tried again and again
  };
  // kNotFound: there is no such program. kUnavailable: it ended, or was not ready in time; the
  // message has the end of its log.
  static Result<std::unique_ptr<ServerProcess>> Start(const Options& options);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

 private:
  explicit ServerProcess(pid_t pid) : pid_(pid) {}
  bool Ended();
  pid_t pid_;
};

// A TCP port of the loopback interface that was free a moment ago.
Result<int> FreePort();
// Something accepts connections there.
bool Accepts(int port);

// The path of an executable file: `name` itself with a slash, else the first on PATH; "" if none.
std::string FindProgram(const std::string& name);

}  // namespace forebay::bench
