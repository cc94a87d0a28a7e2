// Bytes from a socket become the same frames however they are cut, and no payload crashes a parser
// or costs more memory than it has.
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/status.h"
#include "forebay/buffer/service/frame.h"
#include "forebay/buffer/service/frame_reader.h"
#include "forebay/buffer/service/messages.h"

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
  const auto batch = ParseBatch(bytes);
  FB_CHECK(!batch.ok() || batch->trajectories.size() <= size);
  return 0;
}
