#include "forebay/learner/checkpoint_writer.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/learner/checkpoint.h"

namespace forebay::learner {

struct CheckpointWriter::Impl {
  Impl(Options o, std::function<void(const CheckpointReport&)> w)
      : options(std::move(o)), written(std::move(w)), thread([this] { Loop(); }) {}

  void Loop() {
    MutexLock lock(mutex);
    while (true) {
      while (!job && !stopping) changed.WaitUntil(mutex, Now() + std::chrono::seconds(1));
      if (!job) return;
      const std::unique_ptr<const CheckpointData> data = std::move(job);
      mutex.Unlock();
      const Status status = Write(*data);
      mutex.Lock();
      last = status;
      in_flight = false;
      changed.NotifyAll();
    }
  }

  Status Write(const CheckpointData& data) {
    const TimePoint start = Now();
    CheckpointReport report{.step = data.state.step, .committed_batch = data.state.committed_batch};
    report.path = fmt::format("{}/step_{:06}", options.folder, data.state.step);
    report.status = WriteCheckpoint(options.folder, data, options.keep, &base_digest);
    if (report.status.ok()) {
      report.releasable_batch = ReleasableBatch(ListCheckpoints(options.folder), options.keep);
    }
    report.seconds = Seconds(Now() - start);
    if (written) written(report);
    return report.status;
  }

  const Options options;
  const std::function<void(const CheckpointReport&)> written;
  std::string base_digest;  // of the thread: a run has one base (checkpoint.h)
  Mutex mutex;
  CondVar changed;
  std::unique_ptr<CheckpointData> job FB_GUARDED_BY(mutex);
  bool in_flight FB_GUARDED_BY(mutex) = false;
  bool stopping FB_GUARDED_BY(mutex) = false;
  Status last FB_GUARDED_BY(mutex);
  std::thread thread;  // last: starts when the rest is there
};

CheckpointWriter::CheckpointWriter(Options options,
                                   std::function<void(const CheckpointReport&)> written)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(written))) {}

CheckpointWriter::~CheckpointWriter() {
  {
    MutexLock lock(impl_->mutex);
    impl_->stopping = true;
    impl_->changed.NotifyAll();
  }
  impl_->thread.join();
}

bool CheckpointWriter::busy() const {
  MutexLock lock(impl_->mutex);
  return impl_->in_flight;
}

bool CheckpointWriter::TryWrite(CheckpointData data) {
  MutexLock lock(impl_->mutex);
  if (impl_->in_flight) return false;
  impl_->in_flight = true;
  impl_->job = std::make_unique<CheckpointData>(std::move(data));
  impl_->changed.NotifyAll();
  return true;
}

Status CheckpointWriter::Wait(TimePoint deadline) {
  MutexLock lock(impl_->mutex);
  while (impl_->in_flight) {
    if (!impl_->changed.WaitUntil(impl_->mutex, deadline) && impl_->in_flight) {
      return DeadlineExceeded("a checkpoint is still being written");
    }
  }
  return impl_->last;
}

}  // namespace forebay::learner
