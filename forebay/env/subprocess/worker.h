// Worker: one environment process and the episodes in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "forebay/base/clock.h"
#include "forebay/base/loop.h"
#include "forebay/base/one_shot.h"
#include "forebay/base/status.h"
#include "forebay/base/task.h"
#include "forebay/env/environment.h"
#include "forebay/env/json_work.h"
#include "forebay/env/subprocess.h"
#include "forebay/env/subprocess/line_process.h"
#include "forebay/env/subprocess/stderr_log.h"
#include "forebay/env/subprocess/wire.h"

namespace forebay::env {

// Lives on the loop, which must outlive it. `on_change` is called whenever state or free places
// change, also from inside the owner's calls: it may only take note.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  enum class State {
    kStarting,  // no hello yet
    kReady,
    kRetiring,  // too many episodes hang: no new ones, killed when the others have ended
    kEnding,    // killed or broken, not yet reaped; reason() says why
    kDead,
  };

  static Result<std::shared_ptr<Worker>> Start(Loop& loop,
                                               std::shared_ptr<const SubprocessOptions> options,
                                               std::shared_ptr<RotatingLog> log,
                                               std::function<void()> on_change);
  ~Worker();

  State state() const { return state_; }
  bool ended() const { return state_ == State::kEnding || state_ == State::kDead; }
  const Status& reason() const { return reason_; }
  bool said_hello() const { return said_hello_; }
  // Of one that has not: how long it has been starting, and what it wrote to stderr.
  std::string Starting();
  bool proven() const { return proven_; }  // it has answered a request
  int64_t late_answers() const { return late_answers_; }
  int64_t episodes() const { return static_cast<int64_t>(episodes_.size()); }
  int64_t free_places() const {
    return state_ == State::kReady ? options_->episodes_per_process - episodes() : 0;
  }

  // Takes a place (free_places() > 0).
  uint64_t Open();
  // Gives it back as soon as the process has let go of the episode.
  void Close(uint64_t episode);
  // One request of an open episode, one at a time. `line(id, left)` is what to send, and is made of
  // about `bytes` bytes: a long one is written on a worker, so it owns what it refers to.
  static Task<Result<StepResult>> Call(std::shared_ptr<Worker> self, uint64_t episode,
                                       TimePoint deadline, size_t bytes,
                                       std::function<std::string(uint64_t, Duration)> line);

  // Fails what is in flight and asks the process to end, by the end of its input.
  void EndInput(const Status& reason);
  // Fails what is in flight with `reason` (and the last lines of stderr), and kills the process.
  void Kill(const Status& reason);

 private:
  struct Episode {
    uint64_t request = 0;  // the last one sent; 0: the process does not know this episode
    std::optional<OneShot<Result<StepResult>>> waiting;
    uint64_t timer = 0;  // of the request's deadline, or of close_grace
    bool closing = false;
    bool hung = false;
  };

  Worker(Loop& loop, std::shared_ptr<const SubprocessOptions> options,
         std::function<void()> on_change);
  Status Begin(std::shared_ptr<RotatingLog> log);

  // On any thread: only what it returns looks at the worker.
  static std::function<Status()> Read(std::weak_ptr<Worker> weak, std::string_view line);

  Status Take(Result<Reply> reply);
  Status TakeAnswer(uint64_t id, Result<StepResult> result);
  Status TakeClosed(uint64_t episode);
  void OnEnd(const Status& reason);
  void OnReaped();

  void MarkHung(uint64_t episode);
  void RetireIfHung();
  void Fail(const Status& reason);
  // `fn` at `when`, unless the worker is gone by then.
  uint64_t At(TimePoint when, std::function<void(Worker&)> fn);

  Loop& loop_;
  std::shared_ptr<const SubprocessOptions> options_;
  const JsonWork work_;
  std::function<void()> on_change_;
  std::shared_ptr<LineProcess> process_;
  State state_ = State::kStarting;
  Status reason_;
  bool said_hello_ = false;
  bool proven_ = false;
  bool input_ended_ = false;
  int64_t late_answers_ = 0;
  int64_t hung_ = 0;
  TimePoint started_;
  uint64_t start_timer_ = 0;

  uint64_t last_request_ = 0;
  uint64_t last_episode_ = 0;
  std::unordered_map<uint64_t, Episode> episodes_;
  std::unordered_map<uint64_t, uint64_t> requests_;  // in flight or late: its episode
};

}  // namespace forebay::env
