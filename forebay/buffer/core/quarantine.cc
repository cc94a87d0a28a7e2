#include "forebay/buffer/core/quarantine.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "fmt/core.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/segment.h"

namespace forebay::buffer {

void Quarantine::Put(uint32_t segment, const DamagedRange& range, std::string_view bytes) {
  const auto size = static_cast<int64_t>(range.bytes);
  std::string path;
  for (int copy = 1;; ++copy) {  // the same place may be damaged twice
    path =
        fmt::format("{}/segment-{:010}-at-{}{}{}", folder_, segment, range.offset,
                    range.torn_tail ? ".torn" : ".damaged", copy == 1 ? "" : std::to_string(copy));
    const Result<std::string> known = files_.Read(path);
    if (!known.ok()) break;
    if (*known == bytes) return;  // an earlier recovery reported it
  }
  if (range.torn_tail) {
    report_->torn_tail_bytes += size;
    report_->notes.push_back(
        fmt::format("segment {}: {} bytes at {} were being written when the process ended", segment,
                    range.bytes, range.offset));
  } else {
    report_->quarantined_records += range.records;
    report_->quarantined_bytes += size;
    report_->notes.push_back(
        fmt::format("segment {}: {} bytes at {} are damaged and were put in quarantine", segment,
                    range.bytes, range.offset));
  }
  const Status kept = Keep(path, bytes);
  if (!kept.ok()) {
    report_->notes.push_back(
        fmt::format("the damaged bytes could not be copied: {}", kept.message()));
  }
}

Status Quarantine::Keep(const std::string& path, std::string_view bytes) {
  FB_RETURN_IF_ERROR(files_.MakeFolder(folder_));
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<LogFile> file,
                      files_.Create(path, static_cast<int64_t>(bytes.size()), false));
  FB_RETURN_IF_ERROR(file->Write(0, bytes));
  FB_RETURN_IF_ERROR(file->Sync());
  return files_.SyncFolder(folder_);
}

}  // namespace forebay::buffer
