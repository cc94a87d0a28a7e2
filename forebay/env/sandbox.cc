#include "forebay/env/sandbox.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/places.h"
#include "forebay/env/sandbox/command.h"
#include "forebay/env/sandbox/job.h"
#include "forebay/env/subprocess/process.h"

namespace forebay::env {
namespace {

constexpr int kProbeMsMax = 20'000;

std::string ReadSome(int fd) {
  std::array<char, 2048> buffer;
  const ssize_t n = read(fd, buffer.data(), buffer.size());
  return n > 0 ? std::string(buffer.data(), static_cast<size_t>(n)) : "";
}

// A run of `true`, without the loop.
Status Probe(const SandboxOptions& options) {
  Status started = [&options]() -> Status {
    FB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> process,
                        ChildProcess::Start(SandboxProcess(options, {"true"})));
    process->input().Close();
    pollfd end{.fd = process->exit_fd(), .events = POLLIN, .revents = 0};
    // may wait: once, when the pool is made
    while (poll(&end, 1, kProbeMsMax) < 0 && errno == EINTR) {
    }
    const std::optional<ExitStatus> status = process->Poll();
    if (!status) return DeadlineExceeded("it did not end a run of `true` in 20 s");
    const bool begun = std::string_view(ReadSome(process->output().get())) == kSandboxReady;
    if (begun && *status == ExitStatus{}) return OkStatus();
    return Internal(
        fmt::format("it {}: {}", status->ToString(), ReadSome(process->errors().get())));
  }();
  if (started.ok()) return started;
  if (started.code() == StatusCode::kNotFound) {
    return FailedPrecondition(fmt::format(
        "there is no program '{}', which makes the sandbox: install bubblewrap (the Debian package "
        "is called that)",
        options.bwrap));
  }
  return FailedPrecondition(fmt::format(
      "'{}' cannot make a sandbox here: {}. It needs bubblewrap 0.8 or newer, /usr/bin/prlimit, "
      "and "
      "user namespaces for users that are not root: see the settings "
      "kernel.unprivileged_userns_clone, user.max_user_namespaces and "
      "kernel.apparmor_restrict_unprivileged_userns, or the privileges of this container",
      options.bwrap, started.message()));
}

}  // namespace

class Sandbox::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Loop& loop, SandboxOptions options)
      : loop_(loop),
        options_(std::move(options)),
        places_(
            std::make_shared<Places>(loop, options_.parallel_max, "the sandbox's parallel_max")) {}

  static Task<Result<SandboxResult>> Run(std::shared_ptr<Core> self, SandboxRun run,
                                         TimePoint deadline) {
    const Status valid = CheckSandboxCommand(run.command);
    if (!valid.ok()) co_return valid;
    Task<Result<Places::Place>> taking = Places::Take(self->places_, deadline);
    const Result<Places::Place> place = co_await std::move(taking);
    if (!place.ok()) co_return place.status();

    const uint64_t key = ++self->last_job_;
    const auto job =
        std::make_shared<Job>(self->loop_, self->options_, [weak = self->weak_from_this(), key] {
          if (const auto core = weak.lock()) core->jobs_.erase(key);
        });
    const Status started = job->Start(run);
    if (!started.ok()) co_return started.WithContext("the sandbox does not start");
    self->jobs_.emplace(key, job);
    const KillWhenDropped guard(job);
    const TimePoint wall = self->loop_.Now() + self->options_.wall_max;
    const uint64_t timer =
        self->loop_.RunAt(std::min(wall, deadline), [weak = std::weak_ptr<Job>(job)] {
          if (const auto late = weak.lock()) late->Expire();
        });
    co_await job->Done();
    self->loop_.Cancel(timer);
    SandboxResult& result = job->result();
    if (self->stopped_) co_return Cancelled("the sandbox is gone");
    if (result.timed_out && deadline < wall) {
      co_return DeadlineExceeded(
          fmt::format("`{}` had not ended in its sandbox at the deadline", run.command[0]));
    }
    if (!job->begun()) {
      co_return Internal(fmt::format("the sandbox failed: {}", result.errors.substr(0, 1000)));
    }
    co_return std::move(result);
  }

  void Stop() {
    stopped_ = true;
    places_->Stop(Cancelled("the sandbox is gone"));
    for (const auto& [key, job] : jobs_) job->Kill();
  }

  int64_t running() const { return static_cast<int64_t>(jobs_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(places_->waiting()); }

 private:
  struct KillWhenDropped {
    explicit KillWhenDropped(std::shared_ptr<Job> j) : job(std::move(j)) {}
    KillWhenDropped(const KillWhenDropped&) = delete;
    KillWhenDropped& operator=(const KillWhenDropped&) = delete;
    ~KillWhenDropped() { job->Kill(); }
    std::shared_ptr<Job> job;
  };

  Loop& loop_;
  const SandboxOptions options_;
  const std::shared_ptr<Places> places_;
  bool stopped_ = false;
  uint64_t last_job_ = 0;
  std::map<uint64_t, std::shared_ptr<Job>> jobs_;  // until their processes are gone
};

Sandbox::Sandbox(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Sandbox::~Sandbox() { core_->Stop(); }

Result<std::unique_ptr<Sandbox>> Sandbox::Create(Loop& loop, SandboxOptions options) {
  FB_RETURN_IF_ERROR(CheckSandboxOptions(options));
  if (options.parallel_max == 0) {
    options.parallel_max = std::max<int64_t>(1, std::thread::hardware_concurrency());
  }
  FB_RETURN_IF_ERROR(Probe(options));
  return std::unique_ptr<Sandbox>(new Sandbox(std::make_shared<Core>(loop, std::move(options))));
}

Task<Result<SandboxResult>> Sandbox::Run(SandboxRun run, TimePoint deadline) {
  return Core::Run(core_, std::move(run), deadline);
}

int64_t Sandbox::running() const { return core_->running(); }
int64_t Sandbox::waiting() const { return core_->waiting(); }

}  // namespace forebay::env
