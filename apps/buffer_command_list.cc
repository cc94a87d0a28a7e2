// forebay buffer ls: the segments of a log.
#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/buffer_command.h"
#include "apps/buffer_command_text.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log_reader.h"

namespace forebay::apps {
namespace {

using buffer::LogEvent;
using buffer::SegmentInfo;

std::string EventName(size_t event) {
  return std::string(LogEventName(static_cast<LogEvent>(event)));
}

std::string RecordsText(const SegmentInfo& info) {
  std::string text;
  for (size_t i = 0; i < info.records.size(); ++i) {
    if (info.records[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", EventName(i), info.records[i]);
  }
  return text;
}

nlohmann::json ToJson(const SegmentInfo& info) {
  nlohmann::json records = nlohmann::json::object();
  for (size_t i = 0; i < info.records.size(); ++i) records[EventName(i)] = info.records[i];
  return {{"file", info.file},
          {"state", SegmentStateName(info.state)},
          {"number", info.number},
          {"bytes", info.bytes},
          {"data_bytes", info.data_bytes},
          {"first_sequence", info.first_sequence},
          {"last_sequence", info.last_sequence},
          {"records", records},
          {"problem", info.problem}};
}

}  // namespace

Status BufferLs(const BufferLsCommand& command) {
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<buffer::LogReader> reader,
                      buffer::LogReader::Open(command.folder));
  nlohmann::json segments = nlohmann::json::array();
  int64_t bytes = 0, records = 0;
  for (const SegmentInfo& info : reader->segments()) {
    bytes += info.bytes;
    records += info.records_total();
    if (command.json) {
      segments.push_back(ToJson(info));
      continue;
    }
    if (info.number == 0) {
      std::printf("      -  %-7s  %s  %10s  %s\n",
                  std::string(SegmentStateName(info.state)).c_str(), info.file.c_str(),
                  BytesText(info.bytes).c_str(), info.problem.c_str());
      continue;
    }
    std::printf("%7u  %-7s  %s  %10s  %10s used  sequences %lld-%lld  %s%s%s\n", info.number,
                std::string(SegmentStateName(info.state)).c_str(), info.file.c_str(),
                BytesText(info.bytes).c_str(), BytesText(info.data_bytes).c_str(),
                static_cast<long long>(info.first_sequence),
                static_cast<long long>(info.last_sequence), RecordsText(info).c_str(),
                info.problem.empty() ? "" : "; ", info.problem.c_str());
  }
  if (command.json) {
    std::puts(JsonText({{"folder", reader->folder()}, {"segments", segments}}).c_str());
  } else {
    std::printf("%zu segments, %s, %lld records\n", reader->segments().size(),
                BytesText(bytes).c_str(), static_cast<long long>(records));
  }
  PrintNotes(*reader);
  return OkStatus();
}

}  // namespace forebay::apps
