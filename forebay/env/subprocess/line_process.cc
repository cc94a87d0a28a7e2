#include "forebay/env/subprocess/line_process.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess/read.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/subprocess/wire.h"

namespace forebay::env {
namespace {

constexpr int64_t kDrainBytesMax = 64 << 20;  // of a process that has ended
// A process that ends closes its streams a moment before; one that lives on after that is killed.
constexpr Duration kStreamGrace = std::chrono::seconds(1);

}  // namespace

LineProcess::LineProcess(Loop& loop, LineProcessOptions options, LineProcessEvents events)
    : loop_(loop),
      options_(std::move(options)),
      events_(std::move(events)),
      lines_(options_.line_bytes_max),
      tail_(options_.stderr_tail_bytes),
      work_(loop, options_.workers),
      reaped_(loop) {}

Result<std::shared_ptr<LineProcess>> LineProcess::Start(Loop& loop, LineProcessOptions options,
                                                        LineProcessEvents events) {
  std::shared_ptr<LineProcess> self(new LineProcess(loop, std::move(options), std::move(events)));
  FB_ASSIGN_OR_RETURN(self->process_, ChildProcess::Start(self->options_.process));
  self->Begin();
  return self;
}

void LineProcess::Begin() {
  loop_.WhenReadable(process_->exit_fd(), Weakly([](LineProcess& self) { self.OnExit(); }));
  WatchOutput();
  WatchErrors();
}

LineProcess::~LineProcess() { Unwatch(); }

void LineProcess::Unwatch() {
  if (process_ == nullptr) return;
  for (const int fd : {process_->input().get(), process_->output().get(), process_->errors().get(),
                       process_->exit_fd()}) {
    if (fd >= 0) loop_.Forget(fd);
  }
}

void LineProcess::Abandon() {
  events_ = {};
  if (!ended()) reason_ = Cancelled("it was given up");
  Unwatch();
  process_.reset();
  reaped_.Set(true);
}

void LineProcess::Send(std::string_view line) {
  if (ended() || input_ended_) return;
  if (const size_t waits = outbox_.size() - sent_;
      waits + line.size() > options_.outbox_bytes_max) {
    Kill(Unavailable(fmt::format("did not read its standard input: {} bytes wait", waits)));
    return;
  }
  outbox_.append(line);
  outbox_.push_back('\n');
  Write();
}

void LineProcess::Write() {
  while (!outbox_.empty() && !write_watched_ && process_ && process_->input().valid()) {
    const ssize_t n = send(process_->input().get(), outbox_.data() + sent_, outbox_.size() - sent_,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent_ += static_cast<size_t>(n);
      // Half at a time: what is sent of a long line is not moved again and again.
      if (sent_ * 2 > outbox_.size()) outbox_.erase(0, std::exchange(sent_, 0));
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      write_watched_ = true;
      loop_.WhenWritable(process_->input().get(), Weakly([](LineProcess& self) {
                           self.write_watched_ = false;
                           self.Write();
                         }));
    } else if (n < 0 && errno != EINTR) {
      outbox_.clear();
      sent_ = 0;
      StreamEnded("input");
    }
  }
}

void LineProcess::WatchOutput() {
  loop_.WhenReadable(process_->output().get(), Weakly([](LineProcess& self) {
                       if (self.ended()) return;
                       const bool open = self.ReadOutput(kReadBytesPerTurn);
                       if (self.ended() || self.reading_) return;
                       if (open) return self.WatchOutput();
                       self.StreamEnded("output");
                     }));
}

void LineProcess::WatchErrors() {
  loop_.WhenReadable(process_->errors().get(), Weakly([](LineProcess& self) {
                       if (self.ReadErrors(kReadBytesPerTurn)) self.WatchErrors();
                     }));
}

bool LineProcess::ReadOutput(int64_t bytes_max) {
  return ReadAvailable(process_->output().get(), bytes_max, [this](std::string_view bytes) {
    lines_.Feed(bytes);
    TakeLines();
    return !ended() && !reading_;
  });
}

void LineProcess::TakeLines() {
  while (!ended() && !reading_) {
    const auto line = lines_.Next();
    if (!line.ok()) {
      Kill(line.status());
    } else if (!line->has_value()) {
      break;
    } else if (!events_.read) {
      continue;
    } else if (work_.IsLong((*line)->size())) {
      ReadElsewhere(lines_.TakeLine());
    } else if (const Status status = events_.read(**line)(); !status.ok()) {
      Kill(status);
    }
  }
}

void LineProcess::ReadElsewhere(std::string line) {
  reading_ = true;
  auto text = std::make_shared<std::string>(std::move(line));
  work_.Post([weak = weak_from_this(), read = events_.read, text = std::move(text)] {
    return std::function<void()>([weak, take = read(*text)] {
      if (const auto self = weak.lock()) self->LineWasRead(take);
    });
  });
}

void LineProcess::LineWasRead(const std::function<Status()>& take) {
  reading_ = false;
  if (process_ == nullptr) return;
  if (!ended()) {
    if (const Status status = take(); !status.ok()) Kill(status);
  }
  TakeLines();
  if (reading_ || process_ == nullptr) return;
  if (std::exchange(exit_waits_, false)) {
    OnExit();
  } else if (!ended()) {
    WatchOutput();
  }
}

bool LineProcess::ReadErrors(int64_t bytes_max) {
  return ReadAvailable(process_->errors().get(), bytes_max, [this](std::string_view bytes) {
    tail_.Add(bytes);
    if (options_.log) options_.log->Append(bytes);
    return true;
  });
}

void LineProcess::Kill(const Status& reason) {
  if (ended()) return;
  ReadErrors(kDrainBytesMax);
  process_->KillGroup(SIGKILL);
  Break(reason);
  // Nobody needs the line any more that its end was waiting for.
  if (std::exchange(exit_waits_, false)) {
    loop_.Post(Weakly([](LineProcess& self) {
      if (self.process_) self.OnExit();
    }));
  }
}

void LineProcess::StreamEnded(std::string_view stream) {
  loop_.RunAt(
      loop_.Now() + kStreamGrace, Weakly([stream](LineProcess& late) {
        if (late.input_ended_) return;  // it was asked to end
        late.Kill(Unavailable(fmt::format("closed its standard {} but did not end", stream)));
      }));
}

std::string LineProcess::Describe(std::string_view did) {
  if (process_ == nullptr) return reason_.message();
  if (!ended()) ReadErrors(kReadBytesPerTurn);
  std::string message = options_.what + (options_.what.empty() ? "" : " ");
  message += fmt::format("`{}` (pid {}): {}", fmt::join(options_.process.command, " "),
                         process_->pid(), did);
  if (const std::string lines = tail_.Lines(); !lines.empty()) {
    message += "; its last lines on stderr:\n" + lines;
  } else {
    message += "; it wrote nothing to stderr";
  }
  return message;
}

void LineProcess::Break(const Status& reason) {
  reason_ = Status(reason.code(), Describe(reason.message()));
  if (const auto on_end = std::exchange(events_.on_end, nullptr)) on_end(reason_);
}

void LineProcess::OnExit() {
  if (!ended() && !reading_) ReadOutput(kDrainBytesMax);  // what it wrote before the end counts
  if (!ended() && reading_) {
    exit_waits_ = true;
    return;
  }
  ReadErrors(kDrainBytesMax);
  const std::optional<ExitStatus> status = process_->Poll();
  if (!status) {
    loop_.WhenReadable(process_->exit_fd(), Weakly([](LineProcess& self) { self.OnExit(); }));
    return;
  }
  reaped_.Set(true);
  if (!ended()) Break(Unavailable(status->ToString()));
  if (const auto on_reaped = std::exchange(events_.on_reaped, nullptr)) on_reaped();
}

void LineProcess::EndInput() {
  if (input_ended_ || process_ == nullptr) return;
  input_ended_ = true;
  if (!process_->input().valid()) return;
  Write();  // what still fits
  loop_.Forget(process_->input().get());
  process_->input().Close();
}

Task<void> LineProcess::End(std::shared_ptr<LineProcess> self, TimePoint deadline) {
  if (self->process_ == nullptr) co_return;
  self->EndInput();
  const uint64_t timer = self->loop_.RunAt(deadline, self->Weakly([](LineProcess& late) {
    late.Kill(DeadlineExceeded("did not end when its input did"));
  }));
  co_await self->reaped_.Wait();
  self->loop_.Cancel(timer);
}

std::function<void()> LineProcess::Weakly(std::function<void(LineProcess&)> fn) {
  return [weak = weak_from_this(), fn = std::move(fn)] {
    if (const auto self = weak.lock()) fn(*self);
  };
}

}  // namespace forebay::env
