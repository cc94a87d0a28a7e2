#include "forebay/env/sandbox/job.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/env/sandbox.h"
#include "forebay/env/sandbox/command.h"
#include "forebay/env/subprocess/process.h"

namespace forebay::env {
namespace {

constexpr Duration kKillGrace = std::chrono::seconds(2);  // for bwrap to reap what was killed in it

// Appends what there is, up to `bytes_max` in all. False: nothing more will come, or too much did.
bool ReadInto(int fd, std::string* text, size_t bytes_max) {
  std::array<char, 16 * 1024> buffer;
  while (true) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    text->append(buffer.data(), std::min(static_cast<size_t>(n), bytes_max - text->size()));
    if (text->size() >= bytes_max) return false;
  }
}

}  // namespace

ProcessOptions SandboxProcess(const SandboxOptions& options,
                              const std::vector<std::string>& command) {
  const char* path = std::getenv("PATH");
  return {.command = SandboxCommand(options, command),
          .folder = "/",
          // Nothing else of ours: it can be read in the sandbox's /proc/1/environ.
          .environment = {{"PATH", path == nullptr ? "/usr/bin:/bin" : path}},
          .only_environment = true,
          .drop_root = true,
          .confine = true};
}

Job::Job(Loop& loop, const SandboxOptions& options, std::function<void()> on_end)
    : loop_(loop), options_(options), on_end_(std::move(on_end)), done_(loop) {}

Job::~Job() {
  if (process_ == nullptr) return;
  for (const int fd : {process_->input().get(), process_->output().get(), process_->errors().get(),
                       process_->exit_fd()}) {
    if (fd >= 0) loop_.Forget(fd);
  }
  process_->KillChildren();
}

Status Job::Start(const SandboxRun& run) {
  began_ = loop_.Now();
  FB_ASSIGN_OR_RETURN(process_, ChildProcess::Start(SandboxProcess(options_, run.command)));
  input_ = run.input;
  loop_.WhenReadable(process_->exit_fd(), Weakly([](Job& self) { self.OnExit(); }));
  Watch(process_->output(), &result_.output);
  Watch(process_->errors(), &result_.errors);
  Write();
  return OkStatus();
}

void Job::Kill() {
  if (killed_ || ended() || process_ == nullptr) return;
  killed_ = true;
  if (process_->KillChildren() == 0) process_->KillGroup(SIGKILL);
  grace_timer_ = loop_.RunAt(loop_.Now() + kKillGrace,
                             Weakly([](Job& self) { self.process_->KillGroup(SIGKILL); }));
}

void Job::Expire() {
  if (killed_ || ended()) return;
  result_.timed_out = true;
  Kill();
}

void Job::Watch(const Fd& fd, std::string* text) {
  loop_.WhenReadable(fd.get(), Weakly([&fd, text](Job& self) {
                       if (self.ended()) return;
                       if (ReadInto(fd.get(), text, self.BytesMax(text))) {
                         self.Watch(fd, text);
                       } else if (text->size() >= self.BytesMax(text)) {
                         self.result_.output_full = true;
                         self.Kill();
                       }
                     }));
}

size_t Job::BytesMax(const std::string* text) const {
  return options_.output_bytes_max + (text == &result_.output ? kSandboxReady.size() : 0);
}

void Job::Write() {
  if (!process_->input().valid()) return;
  while (!input_.empty()) {
    const ssize_t n = send(process_->input().get(), input_.data(), input_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      loop_.WhenWritable(process_->input().get(), Weakly([](Job& self) { self.Write(); }));
      return;
    }
    if (n <= 0) break;  // nobody reads it any more
    input_.erase(0, static_cast<size_t>(n));
  }
  loop_.Forget(process_->input().get());
  process_->input().Close();
}

void Job::OnExit() {
  const std::optional<ExitStatus> status = process_->Poll();
  if (!status) {
    loop_.WhenReadable(process_->exit_fd(), Weakly([](Job& self) { self.OnExit(); }));
    return;
  }
  loop_.Cancel(grace_timer_);
  ReadInto(process_->output().get(), &result_.output, BytesMax(&result_.output));
  ReadInto(process_->errors().get(), &result_.errors, BytesMax(&result_.errors));
  begun_ = result_.output.starts_with(kSandboxReady);
  if (begun_) result_.output.erase(0, kSandboxReady.size());
  if (result_.output.size() >= options_.output_bytes_max ||
      result_.errors.size() >= options_.output_bytes_max) {
    result_.output_full = true;
  }
  result_.exit_code = status->signalled ? 128 + status->value : status->value;
  result_.took = loop_.Now() - began_;
  done_.Set(true);
  on_end_();
}

std::function<void()> Job::Weakly(std::function<void(Job&)> fn) {
  return [weak = weak_from_this(), fn = std::move(fn)] {
    if (const auto self = weak.lock()) fn(*self);
  };
}

}  // namespace forebay::env
