// The parsers of what a checksum protects, which keeps a fuzzer out: they get the bytes themselves.
// Errors, or what was written.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "forebay/base/check.h"
#include "forebay/buffer/log/record.h"
#include "forebay/buffer/log/state_file.h"
#include "forebay/buffer/table/table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace buffer = forebay::buffer;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto lease = buffer::ParseLease(bytes);
  FB_CHECK(!lease.ok() || buffer::EncodeLease(*lease) == bytes, "a lease has two encodings");
  (void)buffer::ParseState(bytes);
  auto table = buffer::Table::DecodeSnapshot(bytes);
  if (table.ok()) {
    table->FinishRestore();
    FB_CHECK(table->ledger().balanced(), "a snapshot that does not balance");
    (void)table->EncodeSnapshot();
  }
  return 0;
}
