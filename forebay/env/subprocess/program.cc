// Awaited tasks are named variables: g++ 12 miscompiles the lifetime of temporaries in co_await.
#include "forebay/env/program.h"

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess/read.h"
#include "forebay/env/subprocess/stderr_log.h"

namespace forebay::env {
namespace {

constexpr auto kStopInterval = std::chrono::milliseconds(200);

// What it has written, some of it at a time; false: nothing more will come.
bool Drain(const Fd& fd, StderrTail* tail) {
  return ReadAvailable(fd.get(), kReadBytesPerTurn, [tail](std::string_view bytes) {
    tail->Add(bytes);
    return true;
  });
}

class Run : public std::enable_shared_from_this<Run> {
 public:
  Run(Loop& loop, size_t tail_bytes)
      : loop_(loop), ended_(loop), output_(tail_bytes), errors_(tail_bytes) {}
  ~Run() {
    if (process_ == nullptr) return;
    for (const Fd* fd : {&process_->output(), &process_->errors()}) loop_.Forget(fd->get());
    loop_.Forget(process_->exit_fd());
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Status Start(const ProcessOptions& options) {
    FB_ASSIGN_OR_RETURN(process_, ChildProcess::Start(options));
    process_->input().Close();
    Watch(process_->output(), &output_);
    Watch(process_->errors(), &errors_);
    WatchExit();
    return OkStatus();
  }
  auto Ended() const { return ended_.Wait(); }
  void Kill(Status why) {
    if (!why_.ok() || ended_.is_set()) return;
    why_ = std::move(why);
    process_->KillGroup(SIGKILL);
  }
  Result<ProgramEnd> End() const {
    if (const std::string lines = errors_.Lines(); !why_.ok() && !lines.empty()) {
      return Status(why_.code(), why_.message() + "; its last lines on stderr:\n" + lines);
    }
    if (!why_.ok()) return why_;
    return ProgramEnd{.ok = !exit_->signalled && exit_->value == 0,
                      .how = exit_->ToString(),
                      .output = output_.Lines(),
                      .errors = errors_.Lines()};
  }

 private:
  void Watch(const Fd& fd, StderrTail* tail) {
    loop_.WhenReadable(fd.get(), [weak = weak_from_this(), &fd, tail] {
      const auto self = weak.lock();
      if (self != nullptr && Drain(fd, tail)) self->Watch(fd, tail);
    });
  }
  void WatchExit() {
    loop_.WhenReadable(process_->exit_fd(), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->exit_ = self->process_->Poll();
      if (!self->exit_) return self->WatchExit();
      Drain(self->process_->output(), &self->output_);
      Drain(self->process_->errors(), &self->errors_);
      self->ended_.Set(true);
    });
  }

  Loop& loop_;
  const OneShot<bool> ended_;
  StderrTail output_, errors_;
  std::unique_ptr<ChildProcess> process_;
  std::optional<ExitStatus> exit_;
  Status why_;  // it was killed
};

void AskWhetherToStop(Loop& loop, const std::weak_ptr<Run>& weak, std::function<bool()> stop) {
  loop.RunAt(loop.Now() + kStopInterval, [&loop, weak, stop = std::move(stop)] {
    const auto run = weak.lock();
    if (run == nullptr) return;
    if (stop()) {
      run->Kill(Cancelled("the program was stopped"));
    } else {
      AskWhetherToStop(loop, weak, stop);
    }
  });
}

}  // namespace

Task<Result<ProgramEnd>> RunProgram(Loop& loop, ProgramOptions options, TimePoint deadline,
                                    std::function<bool()> stop) {
  const auto run = std::make_shared<Run>(loop, options.tail_bytes);
  const TimePoint began = loop.Now();
  const Status started = run->Start({.command = std::move(options.command),
                                     .folder = std::move(options.folder),
                                     .environment = std::move(options.environment),
                                     .limits = {.memory_bytes_max = options.memory_bytes_max}});
  if (!started.ok()) co_return started;
  const bool bounded = deadline != TimePoint::max();
  uint64_t timer = 0;
  if (bounded) {
    timer = loop.RunAt(deadline, [weak = std::weak_ptr<Run>(run), began, deadline] {
      if (const auto late = weak.lock()) {
        late->Kill(DeadlineExceeded(fmt::format(
            "the program ran for longer than {:.1f} s and was killed", Seconds(deadline - began))));
      }
    });
  }
  if (stop) AskWhetherToStop(loop, run, std::move(stop));
  auto ended = run->Ended();
  co_await ended;
  if (bounded) loop.Cancel(timer);
  co_return run->End();
}

}  // namespace forebay::env
