// SnapshotReceiver: puts a new snapshot together from what it has and what it lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {

// What a sender must send: the bytes of the tensors at these places of its manifest, one behind the
// other, in pieces of chunk_bytes (the last one is what is left), in any order.
struct SnapshotOffer {
  uint64_t sync = 0;
  std::vector<size_t> missing;
  int64_t bytes = 0, chunk_bytes = 0, chunks = 0;
};

// A snapshot that came whole, and what it is made of.
struct ReceivedSnapshot {
  std::shared_ptr<const Snapshot> snapshot;
  Manifest manifest;
};

// Holds the tensors of the newest adopted snapshot, and while a newer one comes those of it that
// have come whole; what arrived before a connection broke is not asked for again. One snapshot
// comes at a time: to begin another one gives up the one before. Memory: two snapshots at most.
// Thread-safe; Take and Begin copy or hash megabytes.
class SnapshotReceiver {
 public:
  // `current` has the names and shapes that every snapshot must have.
  explicit SnapshotReceiver(const Snapshot& current, int64_t chunk_bytes = int64_t{8} << 20);

  // kInvalidArgument: the manifest does not cover the model exactly (what is missing, extra, or of
  // another shape). No memory is taken before that is known.
  Result<SnapshotOffer> Begin(const Manifest& manifest);
  // A piece that has come already is ignored. kNotFound: not the sync that is under way;
  // kInvalidArgument: not such a piece; kDataLoss: with it a tensor is whole and has not the
  // content that the manifest says; the sync is given up.
  Status Take(uint64_t sync, int64_t chunk, std::string_view bytes);
  // The snapshot, once all of it is there: kFailedPrecondition before. kNotFound as above.
  Result<ReceivedSnapshot> Complete(uint64_t sync);
  // It is used now: what only the one before had is forgotten.
  void Adopt(const ReceivedSnapshot& received);

 private:
  // With its size: whatever a manifest says, what is found under it fits.
  using Key = std::pair<ContentId, int64_t>;
  using Contents = std::map<Key, HostTensor>;
  struct Incoming {
    size_t entry = 0;  // of the manifest
    int64_t offset = 0;
    int64_t left = 0;             // bytes
    std::span<std::byte> memory;  // of its tensor in `contents`
  };
  struct Sync {
    uint64_t id = 0;
    Manifest manifest;
    SnapshotOffer offer;
    Contents contents;               // all of the manifest, there already or to come
    std::vector<Incoming> incoming;  // ascending offsets, none empty
    std::vector<bool> taken;         // by chunk, also while it is being copied
    int64_t chunks_left = 0;
  };

  static Key KeyOf(const ManifestTensor& tensor) { return {tensor.content, tensor.shape.bytes()}; }
  Status CheckCoverage(const Manifest& manifest) const;
  Result<std::shared_ptr<Sync>> Find(uint64_t sync) const FB_REQUIRES(mutex_);

  const std::map<std::string, xla::Shape> model_;
  const int64_t chunk_bytes_;
  mutable Mutex mutex_;
  uint64_t syncs_ FB_GUARDED_BY(mutex_) = 0;
  Contents adopted_ FB_GUARDED_BY(mutex_);
  Contents arrived_ FB_GUARDED_BY(mutex_);  // whole and checked
  std::shared_ptr<Sync> sync_ FB_GUARDED_BY(mutex_);
};

}  // namespace forebay::weights
