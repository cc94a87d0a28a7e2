#include "forebay/weights/snapshot_receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/mutex.h"
#include "forebay/base/status.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

constexpr int64_t kNamesTold = 3;  // of many that are wrong

std::map<std::string, xla::Shape> ShapesOf(const Snapshot& snapshot) {
  std::map<std::string, xla::Shape> out;
  for (const auto& [name, tensor] : snapshot.tensors) out.emplace(name, tensor.shape());
  return out;
}

// The same bytes under another shape.
HostTensor As(const HostTensor& tensor, const xla::Shape& shape) {
  return {shape, tensor.bytes(), std::make_shared<HostTensor>(tensor)};
}

}  // namespace

SnapshotReceiver::SnapshotReceiver(const Snapshot& current, int64_t chunk_bytes)
    : model_(ShapesOf(current)), chunk_bytes_(chunk_bytes) {
  FB_CHECK(chunk_bytes > 0, "chunks have bytes");
  Adopt({.snapshot = std::make_shared<Snapshot>(current), .manifest = MakeManifest(current)});
}

Status SnapshotReceiver::CheckCoverage(const Manifest& manifest) const {
  std::string wrong;
  int64_t count = 0;
  const auto note = [&](const std::string& name, const std::string& what) {
    if (++count <= kNamesTold) {
      wrong += fmt::format("{}'{}' {}", wrong.empty() ? "" : ", ", name, what);
    }
  };
  std::set<std::string_view> given;
  for (const ManifestTensor& tensor : manifest.tensors) {
    given.insert(tensor.name);
    const auto at = model_.find(tensor.name);
    if (at == model_.end()) {
      note(tensor.name, "is not of the model");
    } else if (at->second.dims != tensor.shape.dims) {
      note(tensor.name, "is " + tensor.shape.ToString() + " instead of " + at->second.ToString());
    }
  }
  for (const auto& [name, shape] : model_) {
    if (!given.contains(name)) note(name, "is missing");
  }
  if (count == 0) return OkStatus();
  return InvalidArgument(
      fmt::format("the manifest of version {} does not cover the model's {} tensors: {}{}",
                  manifest.policy_version, model_.size(), wrong,
                  count > kNamesTold ? fmt::format(" and {} more", count - kNamesTold) : ""));
}

Result<std::shared_ptr<SnapshotReceiver::Sync>> SnapshotReceiver::Find(uint64_t id) const {
  if (sync_ == nullptr || sync_->id != id) {
    return NotFound(fmt::format("sync {} is not under way", id));
  }
  return sync_;
}

Result<SnapshotOffer> SnapshotReceiver::Begin(const Manifest& manifest) {
  FB_RETURN_IF_ERROR(CheckCoverage(manifest));
  auto sync = std::make_shared<Sync>();
  sync->manifest = manifest;
  SnapshotOffer& offer = sync->offer;
  offer.chunk_bytes = chunk_bytes_;
  const MutexLock lock(mutex_);
  std::set<Key> wanted;
  for (const ManifestTensor& tensor : manifest.tensors) wanted.insert(KeyOf(tensor));
  std::erase_if(arrived_, [&](const auto& held) { return !wanted.contains(held.first); });
  sync_ = nullptr;  // its memory goes before ours comes
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    const Key key = KeyOf(tensor);
    if (sync->contents.contains(key)) continue;  // one content under two names
    for (const Contents* held : {&adopted_, &arrived_}) {
      if (const auto at = held->find(key); at != held->end()) sync->contents.insert(*at);
    }
    if (sync->contents.contains(key)) continue;
    Incoming incoming{.entry = i, .offset = offer.bytes, .left = tensor.shape.bytes()};
    sync->contents.emplace(key, HostTensor::Allocate(tensor.shape, &incoming.memory));
    if (incoming.left == 0) continue;
    offer.missing.push_back(i);
    offer.bytes += incoming.left;
    sync->incoming.push_back(incoming);
  }
  offer.chunks = (offer.bytes + chunk_bytes_ - 1) / chunk_bytes_;
  sync->taken.resize(static_cast<size_t>(offer.chunks));
  sync->chunks_left = offer.chunks;
  sync->id = offer.sync = ++syncs_;
  sync_ = sync;
  return offer;
}

Status SnapshotReceiver::Take(uint64_t id, int64_t chunk, std::string_view bytes) {
  std::shared_ptr<Sync> sync;
  int64_t begin = 0;
  {
    const MutexLock lock(mutex_);
    FB_ASSIGN_OR_RETURN(sync, Find(id));
    if (chunk < 0 || chunk >= sync->offer.chunks) {
      return InvalidArgument(
          fmt::format("sync {} has {} chunks, none is {}", id, sync->offer.chunks, chunk));
    }
    begin = chunk * chunk_bytes_;
    const int64_t size = std::min(chunk_bytes_, sync->offer.bytes - begin);
    if (static_cast<int64_t>(bytes.size()) != size) {
      return InvalidArgument(
          fmt::format("chunk {} has {} bytes instead of {}", chunk, bytes.size(), size));
    }
    if (sync->taken[static_cast<size_t>(chunk)]) return OkStatus();
    sync->taken[static_cast<size_t>(chunk)] = true;
  }
  // Each chunk has memory of its own, and the tensors do not move.
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  auto first = std::ranges::upper_bound(sync->incoming, begin, {}, &Incoming::offset) - 1;
  std::vector<std::pair<Incoming*, int64_t>> filled;  // with how many bytes
  for (auto at = first; at != sync->incoming.end() && at->offset < end; ++at) {
    const int64_t from = std::max(begin, at->offset);
    const int64_t to = std::min(end, at->offset + static_cast<int64_t>(at->memory.size()));
    std::memcpy(at->memory.data() + (from - at->offset), bytes.data() + (from - begin),
                static_cast<size_t>(to - from));
    filled.emplace_back(&*at, to - from);
  }
  std::vector<const Incoming*> whole;
  {
    const MutexLock lock(mutex_);
    for (const auto& [incoming, count] : filled) {
      incoming->left -= count;
      if (incoming->left == 0) whole.push_back(incoming);
    }
  }
  for (const Incoming* incoming : whole) {
    const ManifestTensor& tensor = sync->manifest.tensors[incoming->entry];
    const bool right = ContentOf(incoming->memory) == tensor.content;
    const MutexLock lock(mutex_);
    if (!right) {
      if (sync_ == sync) sync_ = nullptr;
      return DataLoss(
          fmt::format("'{}' came with another content than its manifest says", tensor.name));
    }
    if (sync_ == sync) arrived_.insert(*sync->contents.find(KeyOf(tensor)));
  }
  const MutexLock lock(mutex_);
  --sync->chunks_left;
  return OkStatus();
}

Result<ReceivedSnapshot> SnapshotReceiver::Complete(uint64_t id) {
  const MutexLock lock(mutex_);
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<Sync> sync, Find(id));
  if (sync->chunks_left > 0) {
    return FailedPrecondition(fmt::format("{} of {} chunks of sync {} have not come",
                                          sync->chunks_left, sync->offer.chunks, id));
  }
  auto out = std::make_shared<Snapshot>();
  out->policy_version = sync->manifest.policy_version;
  for (const ManifestTensor& tensor : sync->manifest.tensors) {
    out->tensors.emplace(tensor.name, As(sync->contents.at(KeyOf(tensor)), tensor.shape));
  }
  return ReceivedSnapshot{.snapshot = std::move(out), .manifest = sync->manifest};
}

void SnapshotReceiver::Adopt(const ReceivedSnapshot& received) {
  Contents adopted;
  for (const ManifestTensor& tensor : received.manifest.tensors) {
    adopted.emplace(KeyOf(tensor), received.snapshot->tensors.at(tensor.name));
  }
  const MutexLock lock(mutex_);
  std::erase_if(arrived_, [&](const auto& held) { return adopted.contains(held.first); });
  adopted_.swap(adopted);  // the old ones go after the lock
}

}  // namespace forebay::weights
