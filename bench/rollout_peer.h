// RolloutPeer: another engine, in a process of its own, that decodes when it is told to.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::bench {

// The process prints "ready", then answers each line "STREAMS PROMPT NEW" with the seconds that NEW
// decode steps of STREAMS streams took (-1: it could not). It is killed when this goes.
class RolloutPeer {
 public:
  // The arguments for llama.cpp and vLLM (bench/peers/setup_rollout.sh), empty where they are not
  // installed, or where FOREBAY_ROLLOUT_PEER ("llamacpp", "vllm") names the other one. `gguf` and
  // `folder` are the model in each one's form; `streams_max` sequences of at most `context` tokens.
  struct Model {
    std::string gguf, folder;
    int64_t streams_max = 0, context = 0;
  };
  static std::vector<std::string> LlamaCpp(const Model& model);
  // `dtype`: "float32" or "bfloat16".
  static std::vector<std::string> Vllm(const Model& model, const std::string& dtype);

  // Starts it and waits until it is ready, which may take minutes. Its stderr goes to `log`.
  static Result<std::unique_ptr<RolloutPeer>> Start(const std::vector<std::string>& arguments,
                                                    const std::string& log);
  ~RolloutPeer();
  RolloutPeer(const RolloutPeer&) = delete;
  RolloutPeer& operator=(const RolloutPeer&) = delete;

  // Tokens a second. Blocks.
  Result<double> Decode(int64_t streams, int64_t prompt, int64_t new_tokens);

 private:
  RolloutPeer(pid_t pid, FILE* to, FILE* from, std::string log);
  Result<std::string> ReadLine();

  pid_t pid_;
  FILE *to_, *from_;
  std::string log_;
};

}  // namespace forebay::bench
