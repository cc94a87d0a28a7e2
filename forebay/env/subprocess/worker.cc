#include "forebay/env/subprocess/worker.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
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
#include "forebay/env/subprocess/line_process.h"
#include "forebay/env/subprocess/process.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/subprocess/wire.h"

namespace forebay::env {

std::function<Status()> Worker::Read(std::weak_ptr<Worker> weak, std::string_view line) {
  auto reply = std::make_shared<Result<Reply>>(ParseReply(line));
  return [weak = std::move(weak), reply = std::move(reply)] {
    const auto self = weak.lock();
    return self ? self->Take(std::move(*reply)) : OkStatus();
  };
}

Worker::Worker(Loop& loop, std::shared_ptr<const SubprocessOptions> options,
               std::function<void()> on_change)
    : loop_(loop),
      options_(std::move(options)),
      work_(loop, options_->workers),
      on_change_(std::move(on_change)) {}

Result<std::shared_ptr<Worker>> Worker::Start(Loop& loop,
                                              std::shared_ptr<const SubprocessOptions> options,
                                              std::shared_ptr<RotatingLog> log,
                                              std::function<void()> on_change) {
  std::shared_ptr<Worker> worker(new Worker(loop, std::move(options), std::move(on_change)));
  FB_RETURN_IF_ERROR(worker->Begin(std::move(log)));
  return worker;
}

Status Worker::Begin(std::shared_ptr<RotatingLog> log) {
  LineProcessOptions options{
      .process = {.command = options_->command,
                  .folder = options_->folder,
                  .environment = options_->environment,
                  .limits = {.memory_bytes_max = options_->memory_bytes_max}},
      .what = "the environment process",
      .line_bytes_max = options_->line_bytes_max,
      // An episode has one request in flight, and may be closed.
      .outbox_bytes_max =
          2 * static_cast<size_t>(options_->episodes_per_process + 1) * options_->line_bytes_max,
      .stderr_tail_bytes = options_->stderr_tail_bytes,
      .log = std::move(log),
      .workers = options_->workers};
  options.process.environment["FOREBAY_ENV"] =
      "1";  // tells the SDK to keep stdout for the protocol
  const std::weak_ptr<Worker> weak = weak_from_this();
  FB_ASSIGN_OR_RETURN(
      process_,
      LineProcess::Start(loop_, std::move(options),
                         {.read = [weak](std::string_view line) { return Read(weak, line); },
                          .on_end =
                              [weak](const Status& reason) {
                                if (const auto self = weak.lock()) self->OnEnd(reason);
                              },
                          .on_reaped =
                              [weak] {
                                if (const auto self = weak.lock()) self->OnReaped();
                              }}));
  started_ = loop_.Now();
  start_timer_ = At(loop_.Now() + options_->start_deadline, [](Worker& self) {
    if (self.state_ != State::kStarting) return;
    self.Kill(DeadlineExceeded(fmt::format("did not say hello within {:.1f} s (start_deadline)",
                                           Seconds(self.options_->start_deadline))));
  });
  process_->Send(HelloLine(options_->episodes_per_process, options_->line_bytes_max));
  return OkStatus();
}

Worker::~Worker() {
  if (process_) process_->Abandon();
}

std::string Worker::Starting() {
  return process_->Describe(fmt::format("is still starting: it has not said hello in {:.1f} s",
                                        Seconds(loop_.Now() - started_)));
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
  if (!ended()) process_->Send(CloseLine(episode));
}

Task<Result<StepResult>> Worker::Call(std::shared_ptr<Worker> self, uint64_t episode,
                                      TimePoint deadline, size_t bytes,
                                      std::function<std::string(uint64_t, Duration)> line) {
  const auto known = self->episodes_.find(episode);
  if (known == self->episodes_.end() || self->input_ended_) co_return self->reason_;
  const uint64_t id = ++self->last_request_;
  const TimePoint now = self->loop_.Now();
  const Duration left = std::max(Duration::zero(), Duration(deadline - now));
  const OneShot<Result<StepResult>> waiting(self->loop_);
  const uint64_t timer = self->At(deadline, [waiting, left](Worker& worker) {
    waiting.Set(
        DeadlineExceeded(fmt::format("the environment `{}` did not answer within {:.1f} s",
                                     fmt::join(worker.options_->command, " "), Seconds(left))));
  });
  known->second.waiting = waiting;
  known->second.timer = timer;

  Task<Result<std::string>> writing = self->work_.Run(
      bytes, deadline,
      [line = std::move(line), id, left] { return Result<std::string>(line(id, left)); });
  const Result<std::string> text = co_await std::move(writing);
  const size_t line_bytes_max = self->options_->line_bytes_max;
  if (waiting.is_set()) {
    // The deadline came first, or the end of the process: there is nobody to send it to.
  } else if (!text.ok()) {
    waiting.Set(text.status());
  } else if (text->size() > line_bytes_max) {
    waiting.Set(InvalidArgument(fmt::format(
        "a request of {} bytes is longer than line_bytes_max = {}", text->size(), line_bytes_max)));
  } else {
    const auto it = self->episodes_.find(episode);
    FB_CHECK(it != self->episodes_.end(), "an episode ended and its request was not told");
    it->second.request = id;
    self->requests_.emplace(id, episode);
    self->process_->Send(*text);
  }
  auto answered = waiting.Wait();
  Result<StepResult> result = co_await answered;
  self->loop_.Cancel(timer);
  co_return result;
}

void Worker::EndInput(const Status& reason) {
  if (ended()) return;
  reason_ = reason;
  Fail(reason);
  if (state_ == State::kReady) state_ = State::kRetiring;
  input_ended_ = true;
  process_->EndInput();
}

void Worker::Kill(const Status& reason) {
  if (!ended()) process_->Kill(reason);
}

void Worker::OnEnd(const Status& reason) {
  reason_ = reason;
  state_ = State::kEnding;
  loop_.Cancel(start_timer_);
  Fail(reason_);
  episodes_.clear();
  requests_.clear();
  on_change_();
}

void Worker::OnReaped() {
  state_ = State::kDead;
  process_.reset();
  on_change_();
}

Status Worker::Take(Result<Reply> read) {
  FB_ASSIGN_OR_RETURN(Reply reply, std::move(read));
  if (std::holds_alternative<HelloReply>(reply)) {
    if (said_hello_) return DataLoss("the environment said hello twice");
    said_hello_ = true;
    loop_.Cancel(start_timer_);
    if (state_ == State::kStarting) state_ = State::kReady;
    on_change_();
    return OkStatus();
  }
  if (!said_hello_) return DataLoss("the environment wrote something before its hello");
  if (auto* answer = std::get_if<AnswerReply>(&reply))
    return TakeAnswer(answer->id, std::move(answer->result));
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

uint64_t Worker::At(TimePoint when, std::function<void(Worker&)> fn) {
  return loop_.RunAt(when, [weak = weak_from_this(), fn = std::move(fn)] {
    if (const auto self = weak.lock()) fn(*self);
  });
}

}  // namespace forebay::env
