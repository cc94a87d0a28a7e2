// forebay serve: a model, or a run's checkpoint, behind OpenAI's HTTP API.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace CLI {
class App;
}

namespace forebay::apps {

struct ServeCommand {
  std::string model;  // a Hugging Face folder, a .gguf file, "tiny:", or a run
  int64_t step = -1;  // of a run: which checkpoint; -1: the newest
  std::string name;   // what clients call it; "": from `model`
  std::string host = "127.0.0.1";
  int64_t port = 8000;              // 0: any that is free
  std::vector<std::string> listen;  // instead of host and port
  std::vector<std::string> allowed_hosts;
  std::string token_file, certificate_file, key_file;
  int64_t slots = 0, context = 0;  // 0: chosen
  std::string dtype = "f32";       // f32 | bf16, of weights and cache
  std::string plugin, cache_dir;
  int64_t seed = -1;  // -1: from the clock
  double request_deadline_s = 600;
  bool take_weights = false;  // of a run, while it serves
  bool quiet = false;         // no line for each request
};

// Serves until SIGINT or SIGTERM; OK then.
Status Serve(const ServeCommand& command);

struct ServeApp {
  CLI::App* app = nullptr;
  std::function<Status()> run;
};
ServeApp AddServeCommand(CLI::App& parent);

}  // namespace forebay::apps
