#include "forebay/buffer/log/state_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/bytes.h"
#include "forebay/base/status.h"
#include "forebay/buffer/log/crc32c.h"
#include "forebay/buffer/log/file.h"

namespace forebay::buffer {
namespace {

constexpr uint32_t kMagic = 0x54534246;  // "FBST"
constexpr uint32_t kFormat = 3;
constexpr size_t kHeaderBytes = 64;
// A slot has room from the start, because a full disk must not keep segments from being recycled.
constexpr int64_t kSlotBytes = int64_t{256} << 10;

}  // namespace

std::string EncodeState(const State& state) {
  ByteWriter checked;
  checked.Put(kFormat);
  checked.Put(Crc32c(state.table));
  checked.Put(static_cast<uint64_t>(state.table.size()));
  checked.Put(state.sequence);
  checked.Put(state.replay_from);
  checked.Put(state.starts);
  const std::string rest = std::move(checked).Take();
  ByteWriter out;
  out.Reserve(kHeaderBytes + state.table.size());
  out.Put(kMagic);
  out.Put(Crc32c(rest));
  std::string bytes = std::move(out).Take() + rest;
  bytes.resize(kHeaderBytes, '\0');
  return bytes + state.table;
}

Result<State> ParseState(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return DataLoss("state file: cut short");
  ByteReader in(bytes.substr(0, kHeaderBytes));
  const auto magic = in.Get<uint32_t>();
  const auto crc = in.Get<uint32_t>();
  constexpr size_t kCheckedBytes = 4 + 4 + 8 + 8 + 8 + 8;
  if (magic != kMagic || crc != Crc32c(bytes.substr(8, kCheckedBytes))) {
    return DataLoss("state file: its header is damaged");
  }
  const auto format = in.Get<uint32_t>();
  const auto table_crc = in.Get<uint32_t>();
  const auto table_bytes = in.Get<uint64_t>();
  State state;
  state.sequence = in.Get<int64_t>();
  state.replay_from = in.Get<int64_t>();
  state.starts = in.Get<int64_t>();
  if (format != kFormat) return DataLoss("state file: another format");
  if (table_bytes > bytes.size() - kHeaderBytes) return DataLoss("state file: cut short");
  state.table = bytes.substr(kHeaderBytes, table_bytes);
  if (Crc32c(state.table) != table_crc) return DataLoss("state file: its table is damaged");
  return state;
}

Result<State> StateFiles::Read() {
  Result<State> newest = NotFound("no state was written");
  bool damaged = false;
  for (size_t slot = 0; slot < kStateNames.size(); ++slot) {
    const Result<std::string> bytes = files_->Read(folder_ + "/" + kStateNames[slot]);
    if (!bytes.ok()) {
      // That says nothing of the file.
      if (bytes.status().code() == StatusCode::kResourceExhausted) return bytes.status();
      damaged = damaged || bytes.status().code() != StatusCode::kNotFound;
      continue;
    }
    // All zeros: its first write did not happen.
    if (bytes->find_first_not_of('\0') == std::string::npos) continue;
    Result<State> state = ParseState(*bytes);
    if (!state.ok()) {
      damaged = true;
      continue;
    }
    if (newest.ok() && newest->sequence >= state->sequence) continue;
    newest = std::move(state);
    next_slot_ = (slot + 1) % kStateNames.size();
    starts_ = newest->starts + 1;
  }
  if (!newest.ok() && damaged) return DataLoss("the state files are damaged");
  return newest;
}

Status StateFiles::Write(State state) {
  state.starts = starts_;
  std::string bytes = EncodeState(state);
  const std::string path = folder_ + "/" + kStateNames[next_slot_];
  Result<std::unique_ptr<LogFile>> file = files_->Open(path);
  if (file.ok() && (*file)->bytes() < static_cast<int64_t>(bytes.size())) {
    FB_RETURN_IF_ERROR(files_->Remove(path));
    file = NotFound("too small");
  }
  if (!file.ok()) {
    // To create what cannot be opened would only say that it is there.
    if (file.status().code() != StatusCode::kNotFound) return file.status();
    // A larger one, so that it does not have to grow each time.
    const int64_t size = std::max(kSlotBytes, WholeBlocks(2 * static_cast<int64_t>(bytes.size())));
    file = files_->Create(path, size, false);
    FB_RETURN_IF_ERROR(file.status());
    if (sync_) FB_RETURN_IF_ERROR(files_->SyncFolder(folder_));
  }
  FB_RETURN_IF_ERROR((*file)->Write(0, bytes));
  if (sync_) FB_RETURN_IF_ERROR((*file)->Sync());
  next_slot_ = (next_slot_ + 1) % kStateNames.size();
  return OkStatus();
}

}  // namespace forebay::buffer
