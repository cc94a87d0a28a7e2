// forebay buffer tail: the newest records, one a line.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "apps/buffer_command.h"
#include "apps/buffer_command_text.h"
#include "forebay/base/status.h"
#include "forebay/buffer/buffer.h"
#include "forebay/buffer/log_reader.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::apps {
namespace {

using buffer::LogEvent;
using buffer::LogReader;
using buffer::LogRecord;

constexpr auto kPoll = std::chrono::milliseconds(200);

std::string Line(const LogRecord& record) {
  std::string line = fmt::format("{:>10}  {:<11}  ", record.sequence, LogEventName(record.event));
  switch (record.event) {
    case LogEvent::kDispatch:
      return line + fmt::format("{}, attempt {}, task {}", IdText(record.id), record.id.attempt,
                                record.id.task_id);
    case LogEvent::kTrajectory: {
      line += fmt::format("{}, attempt {}, {}", IdText(record.id), record.id.attempt,
                          BytesText(record.payload_bytes));
      if (const auto summary = PeekSummary(record.encoded)) {
        line +=
            fmt::format(", {}, {} tokens ({} sampled), version {}", OutcomeName(summary->outcome),
                        summary->tokens, summary->loss_tokens, summary->min_version);
      }
      return line;
    }
    case LogEvent::kReject:
      return line + fmt::format("{}: {}", IdText(record.id), RejectReasonName(record.reason));
    case LogEvent::kCloseGroup:
      return line + fmt::format("group {}", record.id.group_id);
    case LogEvent::kLease:
      return line + fmt::format("batch {} at version {}: {} trajectories", record.batch,
                                record.learner_version, record.trajectory_ids.size());
    case LogEvent::kCommit:
      return line + fmt::format("batches up to {}: {} trajectories are trained", record.batch,
                                record.trajectory_ids.size());
    case LogEvent::kRelease:
      return line + fmt::format("batches up to {}", record.batch);
    case LogEvent::kConsume:
      return line + fmt::format("{} trajectories", record.trajectory_ids.size());
  }
  return line;
}

std::string JsonLine(const LogRecord& record) {
  nlohmann::json out = {{"sequence", record.sequence},
                        {"type", LogEventName(record.event)},
                        {"segment", record.segment},
                        {"offset", record.offset},
                        {"bytes", record.bytes}};
  switch (record.event) {
    case LogEvent::kDispatch:
      out.update(IdJson(record.id));
      break;
    case LogEvent::kReject:
      out.update(IdJson(record.id));
      out["reason"] = RejectReasonName(record.reason);
      break;
    case LogEvent::kTrajectory:
      out.update(IdJson(record.id));
      out["min_version"] = record.min_version;
      out["priority"] = record.priority;
      out["moved"] = record.moved;
      if (const auto summary = PeekSummary(record.encoded)) {
        out["outcome"] = OutcomeName(summary->outcome);
        out["tokens"] = summary->tokens;
        out["loss_tokens"] = summary->loss_tokens;
      }
      break;
    case LogEvent::kCloseGroup:
      out["group_id"] = record.id.group_id;
      break;
    case LogEvent::kLease:
      out["learner_version"] = record.learner_version;
      [[fallthrough]];
    case LogEvent::kCommit:
      out["batch"] = record.batch;
      [[fallthrough]];
    case LogEvent::kConsume:
      out["trajectory_ids"] = record.trajectory_ids;
      break;
    case LogEvent::kRelease:
      out["batch"] = record.batch;
      break;
  }
  return JsonText(out);
}

Result<buffer::LogFilter> FilterOf(const BufferTailCommand& command) {
  buffer::LogFilter filter;
  if (command.types.empty()) return filter;
  filter.events = {};
  for (const std::string& type : command.types) {
    std::string known;
    bool found = false;
    for (size_t i = 0; i < filter.events.size(); ++i) {
      const std::string_view name = LogEventName(static_cast<LogEvent>(i));
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
      if (name != type) continue;
      filter.events[i] = true;
      found = true;
    }
    if (!found) {
      return InvalidArgument(
          fmt::format("--type {}: there is no such record; there are {}", type, known));
    }
  }
  return filter;
}

}  // namespace

Status BufferTail(const BufferTailCommand& command) {
  FB_ASSIGN_OR_RETURN(buffer::LogFilter filter, FilterOf(command));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, LogReader::Open(command.folder));
  FB_ASSIGN_OR_RETURN(const int64_t first, reader->NthNewest(command.lines, filter));
  int64_t last = 0;
  const auto print = [&](const LogRecord& record) {
    last = std::max(last, record.sequence);
    std::puts(command.json ? JsonLine(record).c_str() : Line(record).c_str());
    return std::ferror(stdout) == 0;
  };
  if (first > 0) {
    filter.from_sequence = first;
    FB_RETURN_IF_ERROR(reader->ForEach(filter, print));
  } else if (command.follow) {
    // Nothing was asked for or found: what comes from now on.
    FB_ASSIGN_OR_RETURN(last, reader->NthNewest(1, {}));
  }
  PrintNotes(*reader);
  filter.from_sequence = 0;
  while (command.follow && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    std::this_thread::sleep_for(kPoll);
    FB_RETURN_IF_ERROR(reader->Follow(last, filter, print));
    PrintNotes(*reader);
  }
  return OkStatus();
}

}  // namespace forebay::apps
