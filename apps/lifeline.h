// Lifeline: programs that end with us, and all that they have started with them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/base/status.h"

namespace forebay::apps {

// A process group that we start is killed whole when we end it. But when we are killed with -9 the
// kernel ends its leader only, and what that has started would live on. So a small shell leads
// the group and a second one waits in it for the end of a pipe that only we hold open.
//
// What leaves the group (setsid) is out of reach.
class Lifeline {
 public:
  static Result<Lifeline> Create();

  // The command that runs `command` on this lifeline: the same standard streams, and the same exit
  // code or deadly signal. For a process that leads a group. A program that does not exist is exit
  // code 127 and a line on standard error.
  std::vector<std::string> Wrap(const std::vector<std::string>& command) const;

 private:
  Lifeline(Fd reads, Fd writes) : reads_(std::move(reads)), writes_(std::move(writes)) {}

  Fd reads_, writes_;
};

}  // namespace forebay::apps
