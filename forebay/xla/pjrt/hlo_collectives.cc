#include "forebay/xla/pjrt/hlo_collectives.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/xla/topology.h"

namespace forebay::xla::pjrt {
namespace {

// Field numbers of xla/service/hlo.proto.
constexpr uint64_t kHloModule = 1;            // of HloModuleProtoWithConfig
constexpr uint64_t kComputations = 3;         // of HloModuleProto
constexpr uint64_t kInstructions = 2;         // of HloComputationProto
constexpr uint64_t kComputationId = 5;        // of HloComputationProto
constexpr uint64_t kOpcode = 2;               // of HloInstructionProto
constexpr uint64_t kCalledComputations = 38;  // of HloInstructionProto, packed or not

struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of a message, string or packed list
};

// Walks the fields of one message; protobuf's wire format is self-describing, so the few fields
// that matter need no generated code.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  std::optional<Field> Next() {
    if (rest_.empty()) return std::nullopt;
    Field field;
    const uint64_t key = Varint();
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        field.bytes = Take(8);
        break;
      case 2:
        field.bytes = Take(Varint());
        break;
      case 5:
        field.bytes = Take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_ ? std::optional(field) : std::nullopt;
  }
  bool ok() const { return ok_; }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

bool IsCollective(std::string_view opcode) {
  constexpr std::array<std::string_view, 6> kOpcodes = {"all-gather",         "all-reduce",
                                                        "reduce-scatter",     "all-to-all",
                                                        "collective-permute", "ragged-all-to-all"};
  return std::ranges::find(kOpcodes, opcode) != kOpcodes.end();
}

struct Computation {
  int64_t blocking = 0;      // collectives
  int64_t starts = 0;        // all-gather-start and the like
  std::set<uint64_t> calls;  // computations
  std::set<uint64_t> async;  // those of them that it starts asynchronously
};

bool ReadInstruction(std::string_view message, Computation& computation) {
  Fields fields(message);
  std::string_view opcode;
  std::set<uint64_t> called;
  while (const std::optional<Field> field = fields.Next()) {
    if (field->number == kOpcode) opcode = field->bytes;
    if (field->number != kCalledComputations) continue;
    if (field->bytes.empty()) called.insert(field->value);
    for (Fields list(field->bytes); !list.empty() && list.ok();) called.insert(list.Varint());
  }
  constexpr std::string_view kStart = "-start";
  computation.calls.insert(called.begin(), called.end());
  if (IsCollective(opcode)) ++computation.blocking;
  if (opcode.ends_with(kStart)) {
    if (IsCollective(opcode.substr(0, opcode.size() - kStart.size()))) ++computation.starts;
    if (opcode == "async-start") computation.async.insert(called.begin(), called.end());
  }
  return fields.ok();
}

}  // namespace

std::optional<CollectiveSites> CountCollectives(std::string_view module) {
  std::map<uint64_t, Computation> computations;
  bool found = false;
  Fields outer(module);
  while (const std::optional<Field> hlo = outer.Next()) {
    if (hlo->number != kHloModule) continue;
    Fields fields(hlo->bytes);
    while (const std::optional<Field> field = fields.Next()) {
      if (field->number != kComputations) continue;
      found = true;
      Computation computation;
      uint64_t id = 0;
      Fields parts(field->bytes);
      while (const std::optional<Field> part = parts.Next()) {
        if (part->number == kComputationId) id = part->value;
        if (part->number == kInstructions && !ReadInstruction(part->bytes, computation)) {
          return std::nullopt;
        }
      }
      if (!parts.ok()) return std::nullopt;
      computations.insert_or_assign(id, std::move(computation));
    }
    if (!fields.ok()) return std::nullopt;
  }
  if (!outer.ok() || !found) return std::nullopt;
  // What is started asynchronously may call further computations.
  std::vector<uint64_t> pending;
  for (const auto& [id, computation] : computations) {
    pending.insert(pending.end(), computation.async.begin(), computation.async.end());
  }
  std::set<uint64_t> async;
  while (!pending.empty()) {
    const uint64_t id = pending.back();
    pending.pop_back();
    if (!async.insert(id).second) continue;
    const std::set<uint64_t>& calls = computations[id].calls;
    pending.insert(pending.end(), calls.begin(), calls.end());
  }
  CollectiveSites sites;
  for (const auto& [id, computation] : computations) {
    sites.overlapped += computation.starts;
    (async.contains(id) ? sites.overlapped : sites.blocking) += computation.blocking;
  }
  return sites;
}

}  // namespace forebay::xla::pjrt
