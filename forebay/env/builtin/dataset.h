// DatasetEnv: prompts with answers from a file of JSON lines, graded by built-in rewards.
//
// An episode has one turn, or `tries` of them. docs/environments.md describes the options.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/environment.h"

namespace forebay::env {

// Reads the files (of at most 1 GiB; blocks) and keeps their rows in memory. Names of files are
// relative to `folder`, unless that is "". Options (an object):
//   path, eval_path           files; without eval_path, eval_fraction (0.1) of path is held out.
//                             0: train and eval share all rows
//   prompt_key, answer_key    "prompt" and "answer" unless given
//   system                    a text put in front of every prompt, as system message
//   demonstrations            a list of {role, content}: turns between the system message and the
//                             prompt that show how an agent answers; never trained on
//   template                  of a prompt that is one message of the user: {prompt} stands for it
//   rewards                   a list of graders (grading.h); the first one decides what is right
//   tries, retry              answers that an episode may have (1), and what is said after a wrong
//                             one; right at the n-th try, the first reward is divided by n
// Task n is row n, modulo their number. kInvalidArgument, kNotFound name the option or the place.
Result<std::unique_ptr<EnvironmentPool>> MakeDatasetPool(const nlohmann::json& options,
                                                         const std::string& folder, Loop& loop);

}  // namespace forebay::env
