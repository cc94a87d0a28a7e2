#include "forebay/env/subprocess/worker.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
#include <variant>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/subprocess.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/subprocess/wire.h"

namespace forebay::env {
namespace {

constexpr int64_t kReadBytesPerTurn = 256 * 1024;  // then the loop's other work comes first
constexpr int64_t kDrainBytesMax = 64 << 20;       // of a process that has ended
// A process that ends closes its streams a moment before; only one that lives on after that is
// killed for it.
constexpr Duration kStreamGrace = std::chrono::seconds(1);

// Reads what is there and feeds it to `sink`. False at the end of the stream.
template <typename Sink>
bool ReadAvailable(int fd, int64_t bytes_max, Sink sink) {
  std::array<char, 64 * 1024> buffer;
  while (bytes_max > 0) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    bytes_max -= n;
    if (!sink(std::string_view(buffer.data(), static_cast<size_t>(n)))) return true;
  }
  return true;
}

}  // namespace

Worker::Worker(Loop& loop, std::shared_ptr<const SubprocessOptions> options,
               std::shared_ptr<RotatingLog> log, std::function<void()> on_change)
    : loop_(loop),
      options_(std::move(options)),
      log_(std::move(log)),
      on_change_(std::move(on_change)),
      lines_(options_->line_bytes_max),
      tail_(options_->stderr_tail_bytes) {}

Result<std::shared_ptr<Worker>> Worker::Start(Loop& loop,
                                              std::shared_ptr<const SubprocessOptions> options,
                                              std::shared_ptr<RotatingLog> log,
                                              std::function<void()> on_change) {
  std::shared_ptr<Worker> worker(
      new Worker(loop, std::move(options), std::move(log), std::move(on_change)));
  ProcessOptions process{.command = worker->options_->command,
                         .folder = worker->options_->folder,
                         .environment = worker->options_->environment,
                         .limits = {.memory_bytes_max = worker->options_->memory_bytes_max}};
  process.environment["FOREBAY_ENV"] = "1";  // tells the SDK to keep stdout for the protocol
  FB_ASSIGN_OR_RETURN(worker->process_, ChildProcess::Start(process));
  worker->Begin();
  return worker;
}

void Worker::Begin() {
  start_timer_ = At(loop_.Now() + options_->start_deadline, [](Worker& self) {
    if (self.state_ != State::kStarting) return;
    self.Kill(DeadlineExceeded(fmt::format("did not say hello within {:.0f} s (start_deadline)",
                                           Seconds(self.options_->start_deadline))));
  });
  loop_.WhenReadable(process_->exit_fd(), Weakly([](Worker& self) { self.OnExit(); }));
  WatchOutput();
  WatchErrors();
  Send(HelloLine(options_->episodes_per_process, options_->line_bytes_max));
}

Worker::~Worker() {
  if (state_ == State::kDead || process_ == nullptr) return;
  for (const int fd : {process_->input().get(), process_->output().get(), process_->errors().get(),
                       process_->exit_fd()}) {
    if (fd >= 0) loop_.Forget(fd);
  }
}

uint64_t Worker::Open() {
  FB_CHECK(free_places() > 0, "an episode was placed on a full process");
  episodes_.emplace(++last_episode_, Episode{});
  return last_episode_;
}

void Worker::Close(uint64_t episode) {
  const auto it = episodes_.find(episode);
  if (it == episodes_.end()) return;  // the process has ended
  if (it->second.request == 0) {
    episodes_.erase(it);
    RetireIfHung();
    on_change_();
    return;
  }
  loop_.Cancel(it->second.timer);
  it->second.closing = true;
  it->second.timer =
      At(loop_.Now() + options_->close_grace, [episode](Worker& self) { self.MarkHung(episode); });
  Send(CloseLine(episode));
}

Task<Result<StepResult>> Worker::Call(std::shared_ptr<Worker> self, uint64_t episode,
                                      TimePoint deadline,
                                      std::function<std::string(uint64_t, Duration)> line) {
  const auto it = self->episodes_.find(episode);
  if (it == self->episodes_.end() || self->input_ended_) co_return self->reason_;
  const uint64_t id = ++self->last_request_;
  const TimePoint now = self->loop_.Now();
  const std::string text = line(id, std::max(Duration::zero(), Duration(deadline - now)));
  if (text.size() > self->options_->line_bytes_max) {
    co_return InvalidArgument(
        fmt::format("a request of {} bytes is longer than line_bytes_max = {}", text.size(),
                    self->options_->line_bytes_max));
  }
  const OneShot<Result<StepResult>> waiting(self->loop_);
  const uint64_t timer = self->At(deadline, [waiting,
                                             seconds = Seconds(deadline - now)](Worker& worker) {
    waiting.Set(DeadlineExceeded(fmt::format("the environment `{}` did not answer within {:.1f} s",
                                             fmt::join(worker.options_->command, " "), seconds)));
  });
  it->second.request = id;
  it->second.waiting = waiting;
  it->second.timer = timer;
  self->requests_.emplace(id, episode);
  self->Send(text);
  Result<StepResult> result = co_await waiting.Wait();
  self->loop_.Cancel(timer);
  co_return result;
}

void Worker::EndInput(const Status& reason) {
  if (ended()) return;
  reason_ = reason;
  Fail(reason);
  if (state_ == State::kReady) state_ = State::kRetiring;
  input_ended_ = true;
  if (process_->input().valid()) {
    Write();  // what still fits
    loop_.Forget(process_->input().get());
    process_->input().Close();
  }
}

void Worker::Kill(const Status& reason) {
  if (ended()) return;
  ReadErrors(kDrainBytesMax);
  reason_ = Explain(reason);
  state_ = State::kEnding;
  loop_.Cancel(start_timer_);
  process_->KillGroup(SIGKILL);
  Fail(reason_);
  episodes_.clear();
  requests_.clear();
  on_change_();
}

void Worker::Send(std::string_view line) {
  if (ended() || input_ended_) return;
  outbox_.append(line);
  Write();
}

void Worker::Write() {
  while (!outbox_.empty() && !write_watched_) {
    const ssize_t n =
        send(process_->input().get(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      outbox_.erase(0, static_cast<size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      write_watched_ = true;
      loop_.WhenWritable(process_->input().get(), Weakly([](Worker& self) {
                           self.write_watched_ = false;
                           if (self.process_->input().valid()) self.Write();
                         }));
    } else if (n < 0 && errno != EINTR) {
      outbox_.clear();
      StreamEnded("input");
    }
  }
}

void Worker::WatchOutput() {
  loop_.WhenReadable(process_->output().get(), Weakly([](Worker& self) {
                       if (self.ended()) return;
                       self.ReadOutput(kReadBytesPerTurn);
                     }));
}

void Worker::WatchErrors() {
  loop_.WhenReadable(process_->errors().get(), Weakly([](Worker& self) {
                       if (self.state_ == State::kDead) return;
                       self.ReadErrors(kReadBytesPerTurn);
                       if (self.process_->errors().valid()) self.WatchErrors();
                     }));
}

void Worker::ReadOutput(int64_t bytes_max) {
  const bool open =
      ReadAvailable(process_->output().get(), bytes_max, [this](std::string_view bytes) {
        lines_.Feed(bytes);
        TakeLines();
        return !ended();
      });
  if (ended()) return;
  if (open) {
    WatchOutput();
  } else {
    StreamEnded("output");
  }
}

void Worker::ReadErrors(int64_t bytes_max) {
  if (!process_->errors().valid()) return;
  const bool open =
      ReadAvailable(process_->errors().get(), bytes_max, [this](std::string_view bytes) {
        tail_.Add(bytes);
        log_->Append(bytes);
        return true;
      });
  if (open) return;
  loop_.Forget(process_->errors().get());
  process_->errors().Close();
}

void Worker::TakeLines() {
  while (!ended()) {
    const auto line = lines_.Next();
    if (!line.ok()) return Kill(line.status());
    if (!line->has_value()) return;
    const Result<Reply> reply = ParseReply(**line);
    const Status status = reply.ok() ? Take(*reply) : reply.status();
    if (!status.ok()) return Kill(status);
  }
}

Status Worker::Take(const Reply& reply) {
  if (std::holds_alternative<HelloReply>(reply)) {
    if (said_hello_) return DataLoss("the environment said hello twice");
    said_hello_ = true;
    loop_.Cancel(start_timer_);
    if (state_ == State::kStarting) state_ = State::kReady;
    on_change_();
    return OkStatus();
  }
  if (!said_hello_) return DataLoss("the environment wrote something before its hello");
  if (const auto* answer = std::get_if<AnswerReply>(&reply))
    return TakeAnswer(answer->id, answer->result);
  if (const auto* error = std::get_if<ErrorReply>(&reply))
    return TakeAnswer(error->id, error->status);
  return TakeClosed(std::get<ClosedReply>(reply).episode);
}

Status Worker::TakeAnswer(uint64_t id, Result<StepResult> result) {
  const auto request = requests_.find(id);
  if (request == requests_.end()) {
    return DataLoss(fmt::format("the environment answered request {}, which is not open", id));
  }
  const auto it = episodes_.find(request->second);
  requests_.erase(request);
  if (it == episodes_.end() || it->second.closing || it->second.waiting->is_set()) {
    ++late_answers_;
    return OkStatus();
  }
  proven_ = true;
  it->second.waiting->Set(std::move(result));
  return OkStatus();
}

Status Worker::TakeClosed(uint64_t episode) {
  const auto it = episodes_.find(episode);
  if (it == episodes_.end() || !it->second.closing) {
    if (input_ended_) return OkStatus();  // it tidies up
    return DataLoss(
        fmt::format("the environment closed episode {}, which was not to be closed", episode));
  }
  loop_.Cancel(it->second.timer);
  requests_.erase(it->second.request);
  if (it->second.hung) --hung_;
  episodes_.erase(it);
  RetireIfHung();
  on_change_();
  return OkStatus();
}

void Worker::StreamEnded(std::string_view stream) {
  if (input_ended_) return;  // asked for
  At(loop_.Now() + kStreamGrace, [stream](Worker& self) {
    self.Kill(Unavailable(fmt::format("closed its standard {} but did not end", stream)));
  });
}

void Worker::OnExit() {
  if (!ended()) {
    // Answers that were written before the end count.
    ReadAvailable(process_->output().get(), kDrainBytesMax, [this](std::string_view bytes) {
      lines_.Feed(bytes);
      TakeLines();
      return !ended();
    });
  }
  ReadErrors(kDrainBytesMax);
  const auto status = process_->Poll();
  FB_CHECK(status.has_value(), "the kernel said that the process has ended");
  if (!ended()) Kill(Unavailable(status->ToString()));
  state_ = State::kDead;
  for (Fd* fd : {&process_->input(), &process_->output(), &process_->errors()}) {
    if (!fd->valid()) continue;
    loop_.Forget(fd->get());
    fd->Close();
  }
  loop_.Forget(process_->exit_fd());
  process_.reset();
  on_change_();
}

void Worker::MarkHung(uint64_t episode) {
  const auto it = episodes_.find(episode);
  if (it == episodes_.end() || it->second.hung) return;
  it->second.hung = true;
  ++hung_;
  RetireIfHung();
}

void Worker::RetireIfHung() {
  constexpr std::string_view kWhy = "it was replaced because too many of its episodes do not end";
  const int64_t limit = std::min(options_->hung_episodes_max, options_->episodes_per_process);
  if (state_ == State::kReady && hung_ >= limit) {
    state_ = State::kRetiring;
    At(loop_.Now() + options_->recycle_deadline,
       [kWhy](Worker& self) { self.Kill(Unavailable(std::string(kWhy))); });
    on_change_();
  }
  if (state_ == State::kRetiring && !input_ended_ && hung_ == episodes()) {
    Kill(Unavailable(std::string(kWhy)));
  }
}

void Worker::Fail(const Status& reason) {
  for (auto& [id, episode] : episodes_) {
    loop_.Cancel(episode.timer);
    if (episode.waiting) episode.waiting->Set(reason);
  }
}

Status Worker::Explain(const Status& reason) {
  std::string text =
      fmt::format("the environment process `{}` (pid {}): {}", fmt::join(options_->command, " "),
                  process_->pid(), reason.message());
  if (const std::string lines = tail_.Lines(); !lines.empty()) {
    text += fmt::format("; its last lines on stderr:\n{}", lines);
  } else {
    text += "; it wrote nothing to stderr";
  }
  return {reason.code(), std::move(text)};
}

uint64_t Worker::At(TimePoint when, std::function<void(Worker&)> fn) {
  return loop_.RunAt(when, Weakly(std::move(fn)));
}

std::function<void()> Worker::Weakly(std::function<void(Worker&)> fn) {
  return [weak = weak_from_this(), fn = std::move(fn)] {
    if (const auto self = weak.lock()) fn(*self);
  };
}

}  // namespace forebay::env
