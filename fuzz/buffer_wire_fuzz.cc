// Bytes from a socket become the same frames however they are cut, and no payload crashes a parser
// or costs more memory than it has.
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/messages.h"
#include "forebay/buffer/service/shared_area.h"

namespace {

using namespace forebay::buffer;  // NOLINT(google-build-using-namespace)

struct Cut {
  std::vector<std::string> payloads;
  bool ok = true;
};

// Reads `bytes` through a scratch area of that size, at most `step` at once.
Cut Read(std::string_view bytes, size_t scratch_bytes, size_t step) {
  Cut cut;
  FrameReader reader(4096);
  std::vector<char> scratch(scratch_bytes);
  while (!bytes.empty() && cut.ok) {
    iovec areas[2];
    const int n = reader.Prepare(scratch, areas);
    size_t left = std::min(step, bytes.size());
    size_t moved = 0;
    for (int i = 0; i < n; ++i) {
      const size_t take = std::min(left, areas[i].iov_len);
      std::memcpy(areas[i].iov_base, bytes.data(), take);
      bytes.remove_prefix(take);
      left -= take;
      moved += take;
    }
    cut.ok = reader
                 .Commit(scratch, moved,
                         [&](const FrameHeader& header, std::string_view payload) {
                           FB_CHECK(payload.size() == header.length && header.length <= 4096);
                           cut.payloads.emplace_back(payload);
                           return forebay::OkStatus();
                         })
                 .ok();
  }
  return cut;
}

// What a client says of shared memory: sizes, pieces, and pieces that it takes and gives in any
// order. No two pieces that are out overlap, and all of them inside.
void FuzzShared(std::string_view bytes) {
  if (const auto sizes = ParseAreaSizes(bytes); sizes.ok()) {
    FB_CHECK(EncodeAreaSizes(*sizes) == bytes);
  }
  if (const auto piece = ParseSharedPiece(bytes); piece.ok()) {
    const auto again = EncodeSharedPiece(*piece);
    FB_CHECK(std::string_view(again.data(), again.size()) == bytes);
  }
  constexpr uint64_t kBytes = 4096;
  static const auto area = SharedArea::Create({.append_bytes = kBytes, .reply_bytes = kBytes});
  FB_CHECK(area.ok());
  AreaSpace space(kBytes);
  std::map<uint64_t, uint64_t> out;
  uint64_t bytes_out = 0;
  for (; bytes.size() >= 16; bytes.remove_prefix(16)) {
    const auto piece = ParseSharedPiece(bytes.substr(0, 16));
    if (!piece.ok()) continue;
    const char* const at = (*area)->Append(piece->offset, piece->bytes);
    FB_CHECK((at != nullptr) ==
             (piece->offset <= kBytes && piece->bytes <= kBytes - piece->offset));
    if (const auto given = out.find(piece->offset); given != out.end()) {
      space.Give(given->first, given->second);
      bytes_out -= given->second;
      out.erase(given);
    } else if (const auto taken = space.Take(piece->bytes % kBytes)) {
      const uint64_t size = piece->bytes % kBytes;
      FB_CHECK((*area)->Reply(*taken, size) != nullptr);
      const auto next = out.lower_bound(*taken);
      FB_CHECK(next == out.end() || *taken + size <= next->first);
      FB_CHECK(next == out.begin() || std::prev(next)->first + std::prev(next)->second <= *taken);
      out[*taken] = size;
      bytes_out += size;
    }
    FB_CHECK(bytes_out <= kBytes);
  }
  for (const auto& [offset, size] : out) space.Give(offset, size);
  FB_CHECK(space.Take(kBytes).has_value(), "what was given back does not come together");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Cut whole = Read(bytes, 1 << 16, 1 << 16);
  const Cut pieces = Read(bytes, 7, 13);
  FB_CHECK(whole.ok == pieces.ok && whole.payloads == pieces.payloads, "the cut shows");

  // The header's checksum keeps the fuzzer out: frames made of its bytes pass.
  std::string made;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t take = std::min<size_t>(rest.size(), 1 + static_cast<uint8_t>(rest.front()));
    const FrameHeaderBytes header = EncodeFrameHeader(
        {.length = static_cast<uint32_t>(take), .type = static_cast<FrameType>(rest.front())});
    made.append(header.data(), header.size()).append(rest.substr(0, take));
    rest.remove_prefix(take);
  }
  const Cut round = Read(made, 64, 61);
  FB_CHECK(round.ok);
  std::string joined;
  for (const std::string& payload : round.payloads) joined += payload;
  FB_CHECK(joined == bytes, "frames that are not what was sent");

  if (const auto taken = ParseTaken(bytes); taken.ok()) {
    size_t total = kTakenHeadBytes + taken->trajectories.size() * kTakenEntryBytes;
    for (const auto& view : taken->trajectories) total += view.encoded.size();
    FB_CHECK(total == size, "views that are not the message's");
  }
  if (const auto hello = ParseHello(bytes); hello.ok() && hello->version_min <= kProtocolVersion) {
    FB_CHECK(ParseHello(EncodeHello(*hello)).ok());
  }
  if (const auto welcome = ParseWelcome(bytes); welcome.ok()) {
    FB_CHECK(EncodeWelcome(*welcome).size() == size);
  }
  if (const auto groups = ParseGroups(bytes); groups.ok()) {
    FB_CHECK(EncodeGroups(*groups) == bytes);
  }
  if (const auto take = ParseTake(bytes); take.ok()) FB_CHECK(EncodeTake(*take) == bytes);
  if (const auto lease = ParseLeaseRequest(bytes); lease.ok()) {
    FB_CHECK(EncodeLease(*lease) == bytes);
  }
  if (const auto read = ParseReadBatch(bytes); read.ok()) FB_CHECK(EncodeReadBatch(*read) == bytes);
  if (const auto id = ParseId(bytes); id.ok()) FB_CHECK(EncodeId(*id) == bytes);
  if (const auto inspect = ParseInspect(bytes); inspect.ok()) {
    FB_CHECK(EncodeInspect(*inspect) == bytes);
  }
  FuzzShared(bytes);
  const auto batch = ParseBatch(bytes);
  FB_CHECK(!batch.ok() || batch->trajectories.size() <= size);
  return 0;
}
