// Job: one command in its sandbox.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "forebay/base/clock.h"
#include "forebay/base/file.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/env/sandbox.h"
#include "forebay/env/subprocess/process.h"

namespace forebay::env {

// Lives on the loop; kill it and let the loop run until it has ended, so that it leaves no zombie
// to strangers. Its destructor kills what still runs.
class Job : public std::enable_shared_from_this<Job> {
 public:
  // `on_end` runs once, when its processes are gone.
  Job(Loop& loop, const SandboxOptions& options, std::function<void()> on_end);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Status Start(const SandboxRun& run);
  void Kill();
  // The same, and the result says that it took too long.
  void Expire();

  auto Done() const { return done_.Wait(); }
  bool ended() const { return done_.is_set(); }
  SandboxResult& result() { return result_; }
  // The sandbox stood; else result().errors says what bwrap had against it.
  bool begun() const { return begun_; }

 private:
  void Watch(const Fd& fd, std::string* text);
  size_t BytesMax(const std::string* text) const;
  void Write();
  void OnExit();
  std::function<void()> Weakly(std::function<void(Job&)> fn);

  Loop& loop_;
  const SandboxOptions& options_;
  std::function<void()> on_end_;
  const OneShot<bool> done_;
  std::unique_ptr<ChildProcess> process_;
  TimePoint began_;
  std::string input_;
  SandboxResult result_;
  bool begun_ = false;
  bool killed_ = false;
  uint64_t grace_timer_ = 0;
};

// The process that is a sandbox.
ProcessOptions SandboxProcess(const SandboxOptions& options,
                              const std::vector<std::string>& command);

}  // namespace forebay::env
