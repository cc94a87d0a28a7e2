#include "forebay/buffer/log/segment.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fmt/core.h"
#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/file.h"
#include "forebay/buffer/log/record.h"
#include "forebay/trajectory/trajectory.h"

namespace forebay::buffer {
namespace {

constexpr std::string_view kPrefix = "segment-";
constexpr std::string_view kSuffix = ".log";
constexpr uint32_t kHeaderMagic = 0x47534246;   // "FBSG"
constexpr uint32_t kTrailerMagic = 0x58494246;  // "FBIX"
constexpr size_t kFramed = 8;                   // magic and crc

template <typename T>
std::string_view Checked(const T& framed) {
  return std::string_view(reinterpret_cast<const char*>(&framed), sizeof(framed)).substr(kFramed);
}

// Collects what is damaged, one range for what lies together.
class Damage {
 public:
  // `record`: something was a record of this life of the segment.
  void Add(size_t offset, size_t bytes, const std::optional<TrajectoryId>& lost, bool record) {
    if (!range_) range_ = DamagedRange{.offset = offset, .records = 0};
    range_->bytes = offset + bytes - range_->offset;
    if (lost) range_->lost.push_back(*lost);
    if (!record) return;
    if (range_->records++ == 0) first_record_ = offset;
    last_record_end_ = offset + bytes;
  }
  // A valid record follows.
  void Flush(SegmentScan& scan) {
    if (!range_) return;
    range_->records = std::max<int64_t>(1, range_->records);
    scan.damaged.push_back(*std::exchange(range_, std::nullopt));
  }
  // Nothing valid follows: of the rest only what is known to have been a record counts. All else
  // was never written, or belongs to an earlier life.
  void FlushTail(SegmentScan& scan) {
    if (!range_ || range_->records == 0) return;
    range_->offset = first_record_;
    range_->bytes = last_record_end_ - first_record_;
    range_->torn_tail = true;
    Flush(scan);
  }

 private:
  std::optional<DamagedRange> range_;
  size_t first_record_ = 0, last_record_end_ = 0;
};

// Whether these are the header of a record of an earlier life of a recycled segment.
bool IsStale(std::string_view bytes, uint32_t number) {
  if (bytes.size() < kRecordAlign) return false;
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header.segment < number && header.segment != 0 &&
         ParseHeader(bytes, header.segment).has_value();
}

// nullopt: the segment is not sealed, or its trailer is damaged.
std::optional<SegmentTrailer> ReadTrailer(LogFile& file, uint32_t number) {
  SegmentTrailer trailer;
  const int64_t size = file.bytes();
  constexpr auto kTrailerBytes = static_cast<int64_t>(sizeof(trailer));
  if (size < static_cast<int64_t>(kDataBegin) + kTrailerBytes) return std::nullopt;
  if (!file.ReadAt(size - kTrailerBytes, reinterpret_cast<char*>(&trailer), sizeof(trailer)).ok() ||
      trailer.magic != kTrailerMagic || trailer.crc != Crc32c(Checked(trailer)) ||
      trailer.number != number || trailer.records < 0 ||
      trailer.records > size / static_cast<int64_t>(sizeof(RecordHeader)) ||
      trailer.index_offset != size - IndexBytes(trailer.records) ||
      trailer.data_end > trailer.index_offset) {
    return std::nullopt;
  }
  return trailer;
}

}  // namespace

std::string SegmentName(uint32_t file_id) {
  return fmt::format("{}{:010}{}", kPrefix, file_id, kSuffix);
}

std::optional<uint32_t> ParseSegmentName(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

std::string EncodeSegmentHeader(SegmentHeader header) {
  header.magic = kHeaderMagic;
  header.crc = Crc32c(Checked(header));
  std::string block(kBlockBytes, '\0');
  std::memcpy(block.data(), &header, sizeof(header));
  return block;
}

Result<SegmentHeader> ParseSegmentHeader(std::string_view block) {
  SegmentHeader header;
  if (block.size() < sizeof(header)) return DataLoss("a segment without a header");
  std::memcpy(&header, block.data(), sizeof(header));
  if (header.magic != kHeaderMagic || header.crc != Crc32c(Checked(header))) {
    return DataLoss("its header is damaged");
  }
  if (header.format != kLogFormat) {
    return FailedPrecondition(fmt::format("the buffer's log has format {}, this build reads {}",
                                          header.format, kLogFormat));
  }
  return header;
}

int64_t IndexBytes(int64_t records) {
  return WholeBlocks(records * static_cast<int64_t>(sizeof(RecordHeader)) +
                     static_cast<int64_t>(sizeof(SegmentTrailer)));
}

std::string EncodeIndex(uint32_t number, const std::vector<RecordHeader>& headers,
                        int64_t capacity) {
  const auto count = static_cast<int64_t>(headers.size());
  std::string bytes(static_cast<size_t>(IndexBytes(count)), '\0');
  const std::string_view index(reinterpret_cast<const char*>(headers.data()),
                               headers.size() * sizeof(RecordHeader));
  index.copy(bytes.data(), index.size());  // null when empty: no memcpy
  SegmentTrailer trailer{.magic = kTrailerMagic,
                         .number = number,
                         .index_crc = Crc32c(index),
                         .records = count,
                         .index_offset = capacity - static_cast<int64_t>(bytes.size()),
                         .data_end = static_cast<int64_t>(kDataBegin),
                         .last_sequence = headers.empty() ? 0 : headers.back().sequence};
  for (const RecordHeader& header : headers) trailer.data_end += RecordBytes(header.payload_bytes);
  FB_CHECK(trailer.data_end <= trailer.index_offset, "a segment without room for its index");
  trailer.crc = Crc32c(Checked(trailer));
  std::memcpy(bytes.data() + bytes.size() - sizeof(trailer), &trailer, sizeof(trailer));
  return bytes;
}

std::optional<RecordHeader> NewestHeader(std::string_view bytes) {
  std::optional<RecordHeader> newest;
  for (size_t at = kDataBegin; at + kRecordAlign <= bytes.size(); at += kRecordAlign) {
    RecordHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof(header));
    if (header.segment == 0 || (newest && header.segment <= newest->segment)) continue;
    if (auto found = ParseHeader(bytes.substr(at), header.segment)) newest = found;
  }
  return newest;
}

SegmentScan ScanSegment(std::string_view bytes, uint32_t number) {
  SegmentScan scan;
  // The index is no damaged record.
  SegmentTrailer trailer;
  if (bytes.size() >= sizeof(trailer)) {
    std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof(trailer), sizeof(trailer));
    if (trailer.magic == kTrailerMagic && trailer.crc == Crc32c(Checked(trailer)) &&
        trailer.number == number && trailer.data_end >= 0 &&
        trailer.data_end <= static_cast<int64_t>(bytes.size())) {
      bytes = bytes.substr(0, static_cast<size_t>(trailer.data_end));
    }
  }
  Damage damage;
  size_t at = kDataBegin;
  int64_t last_sequence = -1;
  while (at + kRecordAlign <= bytes.size()) {
    const std::string_view rest = bytes.substr(at);
    const std::optional<RecordHeader> header = ParseHeader(rest, number);
    if (!header || header->sequence <= last_sequence ||
        header->payload_bytes > rest.size() - kRecordAlign) {
      // Its header is lost, or this is the middle of something: the payload may tell whose.
      std::optional<TrajectoryId> lost;
      if (!IsStale(rest, number)) lost = PeekId(rest.substr(kRecordAlign));
      const size_t step = std::min(kRecordAlign, rest.size());
      damage.Add(at, step, lost, lost.has_value());
      at += step;
      continue;
    }
    if (header->type == RecordType::kUnfinished) {
      // Never acknowledged, so nothing is lost.
      damage.Flush(scan);
      ++scan.unfinished;
      last_sequence = header->sequence;
      at += static_cast<size_t>(RecordBytes(header->payload_bytes));
      scan.data_end = std::min(at, bytes.size());
      continue;
    }
    const std::string_view payload = rest.substr(kRecordAlign, header->payload_bytes);
    const auto size =
        std::min(static_cast<size_t>(RecordBytes(header->payload_bytes)), rest.size());
    if (header->type != RecordType::kPad && Crc32c(payload) != header->payload_crc) {
      std::optional<TrajectoryId> lost;
      if (header->type == RecordType::kTrajectory) lost = header->id();
      damage.Add(at, size, lost, true);
    } else {
      damage.Flush(scan);
      if (header->type != RecordType::kPad) {
        scan.records.push_back({.header = *header, .offset = at, .payload = payload});
      }
      scan.data_end = at + size;
      last_sequence = header->sequence;
    }
    at += size;
  }
  damage.FlushTail(scan);
  return scan;
}

void WillReadTrailer(LogFile& file) {
  constexpr auto kBlock = static_cast<int64_t>(kBlockBytes);
  if (file.bytes() >= kBlock) file.WillRead(file.bytes() - kBlock, kBlock);
}

void WillReadIndex(LogFile& file, uint32_t number) {
  const std::optional<SegmentTrailer> trailer = ReadTrailer(file, number);
  if (trailer) file.WillRead(trailer->index_offset, file.bytes() - trailer->index_offset);
}

std::optional<SegmentScan> ReadIndex(LogFile& file, uint32_t number) {
  const std::optional<SegmentTrailer> read = ReadTrailer(file, number);
  if (!read) return std::nullopt;
  const SegmentTrailer& trailer = *read;
  std::vector<RecordHeader> headers(static_cast<size_t>(trailer.records));
  const size_t bytes = headers.size() * sizeof(RecordHeader);
  if (!file.ReadAt(trailer.index_offset, reinterpret_cast<char*>(headers.data()), bytes).ok() ||
      Crc32c({reinterpret_cast<const char*>(headers.data()), bytes}) != trailer.index_crc) {
    return std::nullopt;
  }
  SegmentScan scan{.sealed = true};
  size_t at = kDataBegin;
  scan.records.reserve(headers.size());
  for (const RecordHeader& header : headers) {
    if (header.type != RecordType::kPad) scan.records.push_back({.header = header, .offset = at});
    at += static_cast<size_t>(RecordBytes(header.payload_bytes));
  }
  if (at != static_cast<size_t>(trailer.data_end)) return std::nullopt;
  scan.data_end = at;
  return scan;
}

Status ReadPayload(LogFile& file, const RecordHeader& header, int64_t offset,
                   std::string* payload) {
  payload->clear();
  if (RecordBytes(header.payload_bytes) > file.bytes() - offset) {
    return DataLoss("its record is cut short");
  }
  payload->resize(header.payload_bytes);
  FB_RETURN_IF_ERROR(
      file.ReadAt(offset + static_cast<int64_t>(kRecordAlign), payload->data(), payload->size()));
  if (Crc32c(*payload) != header.payload_crc) return DataLoss("its record is damaged");
  return OkStatus();
}

Result<std::string_view> ReadTrajectory(LogFile& file, uint32_t number, uint32_t offset_64,
                                        uint32_t payload_bytes, int64_t trajectory_id,
                                        std::unique_ptr<char[]>* buffer) {
  const auto offset = static_cast<int64_t>(offset_64 * kRecordAlign);
  const size_t bytes = kRecordAlign + payload_bytes;
  if (offset + static_cast<int64_t>(bytes) > file.bytes()) {
    return DataLoss(fmt::format("segment {} ends before trajectory {}", number, trajectory_id));
  }
  *buffer = std::make_unique_for_overwrite<char[]>(bytes);
  FB_RETURN_IF_ERROR(file.ReadAt(offset, buffer->get(), bytes));
  const auto header = ParseHeader({buffer->get(), kRecordAlign}, number);
  const std::string_view payload(buffer->get() + kRecordAlign, payload_bytes);
  if (!header || header->trajectory_id != trajectory_id || header->payload_bytes != payload_bytes ||
      header->payload_crc != Crc32c(payload)) {
    return DataLoss(fmt::format("segment {}, byte {}: the record of trajectory {} is damaged",
                                number, offset, trajectory_id));
  }
  return payload;
}

}  // namespace forebay::buffer
