// Group commit: who writes, when, and what happens when the disk says no.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/adaptive_mutex.h"
#include "forebay/base/clock.h"
#include "forebay/base/futex.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/log.h"
#include "forebay/buffer/log/record.h"

namespace forebay::buffer {
namespace {

constexpr auto kIdle = std::chrono::hours(1);

}  // namespace

// No more records join; a pad fills its last block, so that no later write touches it again.
void Log::CloseGroup(FlushGroup& group) {
  Segment& segment = *group.segment;
  const int64_t end = WholeBlocks(group.end);
  if (end > group.end) {
    const RecordHeader pad = PadHeader(end - group.end, next_sequence_++, segment.number);
    std::memcpy(segment.memory.get() + group.end, &pad, sizeof(pad));
    segment.used = end;
    ++segment.records;
    group.end = end;
    group.last_sequence = pad.sequence;
  }
  group.open = false;
  group.copying.fetch_sub(1, std::memory_order_acq_rel);
}

// Writes the oldest group; `all`: and group after group as long as there are any. Another flusher
// acknowledges all but the last then: the disk waits neither for a thread to wake up nor for the
// owner. The caller has set flushing_.
void Log::WriteGroups(bool all) {
  while (true) {
    const std::shared_ptr<FlushGroup> group = NextGroup();
    if (group == nullptr) return;
    const Status status = WriteGroup(*group).WithContext(
        "a write failed, so its segment is sealed and never retried");
    bool failed = false;
    {
      AdaptiveLock lock(mutex_);
      // Before anybody can write the next group: all up to the last that is written are durable.
      failed = !status.ok() && FailLocked(status);
      if (failed_.ok()) durable_sequence_ = group->last_sequence;
      written_.push_back(group);
      ++flushes_;
      in_flight_.reset();
      if (all && status.ok() && !groups_.empty()) {
        unacknowledged_.push_back(group);
        flusher_wake_.NotifyOne();
        continue;
      }
      flushing_ = false;
      if (!groups_.empty()) flusher_wake_.NotifyOne();
    }
    if (failed) callbacks_.on_failure();
    Acknowledge(*group, status.ok());
    return;
  }
}

// The oldest group, closed; null, and nobody flushes any more, when the log failed meanwhile.
std::shared_ptr<FlushGroup> Log::NextGroup() {
  AdaptiveLock lock(mutex_);
  if (groups_.empty()) {
    flushing_ = false;
    return nullptr;
  }
  std::shared_ptr<FlushGroup> group = std::move(groups_.front());
  groups_.pop_front();
  if (group->open) CloseGroup(*group);
  in_flight_ = group;
  return group;
}

Status Log::WriteGroup(const FlushGroup& group) {
  // Its writers are copying: microseconds.
  for (uint32_t n = group.copying.load(std::memory_order_acquire); n != 0;
       n = group.copying.load(std::memory_order_acquire)) {
    FutexWait(group.copying, n, Now() + kIdle);
  }
  if (group.end == group.begin) return OkStatus();
  return group.segment->file->WriteDurable(
      group.begin, std::string_view(group.segment->memory.get() + group.begin,
                                    static_cast<size_t>(group.end - group.begin)));
}

// Tells the owner of everything that is written. After a failure, too: what is lost must not be
// waited for.
void Log::Acknowledge(const FlushGroup& group, bool written) {
  callbacks_.on_acknowledged();
  if (written && group.last_of_segment) Seal(group.segment);
}

// Whether this is the first failure: call on_failure then, without the lock.
bool Log::FailLocked(const Status& why) {
  if (!failed_.ok()) return false;
  failed_ = Unavailable("the buffer's log takes no more records: " + why.message());
  for (auto& group : groups_) written_.push_back(std::move(group));
  groups_.clear();
  flusher_wake_.NotifyAll();
  return true;
}

void Log::Fail(const Status& why) {
  {
    AdaptiveLock lock(mutex_);
    if (!FailLocked(why)) return;
  }
  callbacks_.on_failure();
}

void Log::Kick() {
  if (!sync()) return;
  AdaptiveLock lock(mutex_);
  if (!flushing_ && !groups_.empty()) flusher_wake_.NotifyOne();
}

bool Log::Await(const std::shared_ptr<FlushGroup>& group, TimePoint deadline) {
  while (group->done.load(std::memory_order_acquire) == 0) {
    bool lead = false;
    {
      AdaptiveLock lock(mutex_);
      lead = !flushing_ && !groups_.empty();
      if (lead) flushing_ = true;
    }
    if (lead) {
      WriteGroups(false);
      continue;
    }
    if (!FutexWait(group->done, 0, deadline)) return group->done.load() != 0;
  }
  return true;
}

Status Log::Flush() {
  if (!sync()) return failed();
  while (true) {
    std::shared_ptr<FlushGroup> last;
    {
      AdaptiveLock lock(mutex_);
      if (!failed_.ok()) return failed_;
      last = groups_.empty() ? in_flight_ : groups_.back();
    }
    if (last == nullptr) return OkStatus();
    Await(last, Now() + kIdle);
  }
}

void Log::Pump() {
  while (true) {
    {
      AdaptiveLock lock(mutex_);
      if (groups_.empty()) return;
      flushing_ = true;
    }
    WriteGroups(false);
  }
}

void Log::RunFlusher() {
  while (true) {
    std::vector<std::shared_ptr<FlushGroup>> written;
    {
      AdaptiveLock lock(mutex_);
      while (!stopping_ && unacknowledged_.empty() && (flushing_ || groups_.empty())) {
        flusher_wake_.WaitUntil(mutex_, Now() + kIdle);
      }
      written.swap(unacknowledged_);
      if (written.empty()) {
        if (flushing_ || groups_.empty()) return;
        flushing_ = true;
      }
    }
    for (const auto& group : written) Acknowledge(*group, true);
    if (written.empty()) WriteGroups(true);
  }
}

}  // namespace forebay::buffer
