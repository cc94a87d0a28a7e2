// Environments of an OpenEnv server, over its WebSocket: one connection is one episode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/worker_pool.h"
#include "forebay/env/environment.h"

namespace forebay::env {

struct OpenEnvOptions {
  std::string url;     // "http://127.0.0.1:8000", "wss://..."; without a path it is "/ws"
  std::string bearer;  // the token of "Authorization: Bearer ..."; "" for none

  // How what the model writes becomes an action: a JSON object in which the text "$action" stands
  // for it, or "" when the model has to write the JSON object itself (a fence around it is taken
  // off).
  std::string action = R"({"message": "$action"})";
  // What reset is told: a JSON object in which "$seed", "$task", "$split" and "$episode" stand for
  // themselves. "$seed" is a number made of task and split, so that all samples of a task play the
  // same one; "$episode_seed" differs for each of them. Servers drop what their reset does not
  // take.
  std::string reset = R"({"seed": "$seed"})";
  // Which field of the observation the model sees; "": the only one that is not null, or all of
  // them as JSON.
  std::string observation;
  std::string system;  // a system message in front; "" for none

  int64_t sessions_max = 64;  // connections at once; others wait. The server has a limit, too:
                              // beyond it, it is asked again until the deadline.
  size_t message_bytes_max = size_t{4} << 20;
  WorkerPool* workers = nullptr;  // read and write long messages (json_work.h); null: the loop does
};

// The reward of a step is the component "reward". An action that the server calls invalid, or that
// is no JSON, is answered by an error that the model sees. Errors: kInvalidArgument names the
// option. Of episodes: kUnavailable (not reachable, broken off), kDeadlineExceeded, kDataLoss (not
// OpenEnv's messages), kInternal (the environment raised an exception; its text).
Result<std::unique_ptr<EnvironmentPool>> MakeOpenEnvPool(Loop& loop, OpenEnvOptions options);

}  // namespace forebay::env
