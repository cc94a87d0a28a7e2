// A snapshot arrives whole and checked or not at all, and only what is missing travels.
#include "forebay/weights/snapshot_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/rng.h"
#include "forebay/base/status.h"
#include "forebay/weights/manifest.h"
#include "forebay/weights/snapshot.h"
#include "forebay/xla/shape.h"

namespace forebay::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kChunk = 64;

HostTensor Random(xla::Shape shape, uint64_t seed) {
  std::span<std::byte> bytes;
  HostTensor out = HostTensor::Allocate(std::move(shape), &bytes);
  Rng rng(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next());
  return out;
}

// Tensors of 100, 8 and 300 bytes.
Snapshot Weights(int64_t version, uint64_t a, uint64_t b, uint64_t c) {
  return {.policy_version = version,
          .tensors = {{"a", Random({xla::DType::kF32, {5, 5}}, a)},
                      {"b", Random({xla::DType::kF32, {2}}, b)},
                      {"c", Random({xla::DType::kF32, {75}}, c)}}};
}

std::string Chunk(const Snapshot& snapshot, const SnapshotOffer& offer, int64_t chunk) {
  std::string all;
  const Manifest manifest = MakeManifest(snapshot);
  for (const size_t entry : offer.missing) {
    const auto bytes = snapshot.tensors.at(manifest.tensors[entry].name).bytes();
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(static_cast<int64_t>(all.size()), offer.bytes);
  return all.substr(static_cast<size_t>(chunk * kChunk), kChunk);
}

Status SendAll(SnapshotReceiver& receiver, const Snapshot& snapshot, const SnapshotOffer& offer) {
  for (int64_t i = offer.chunks; i-- > 0;) {
    FB_RETURN_IF_ERROR(receiver.Take(offer.sync, i, Chunk(snapshot, offer, i)));
  }
  return OkStatus();
}

TEST(SnapshotReceiverTest, OnlyWhatChangedIsAskedFor) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot next = Weights(1, 1, 20, 30);
  const auto offer = receiver.Begin(MakeManifest(next));
  ASSERT_TRUE(offer.ok()) << offer.status().ToString();
  EXPECT_THAT(offer->missing, ElementsAre(1, 2));
  EXPECT_EQ(offer->bytes, 308);
  EXPECT_EQ(offer->chunks, 5);
  EXPECT_EQ(receiver.Complete(offer->sync).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(SendAll(receiver, next, *offer).ok());
  const auto whole = receiver.Complete(offer->sync);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_EQ(whole->snapshot->policy_version, 1);
  EXPECT_EQ(Digest(whole->snapshot->tensors), Digest(next.tensors));
}

TEST(SnapshotReceiverTest, WhatWasAdoptedIsKnownAndTheOneBeforeForgotten) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot next = Weights(1, 1, 20, 3);
  const auto offer = receiver.Begin(MakeManifest(next));
  ASSERT_TRUE(SendAll(receiver, next, *offer).ok());
  const auto whole = receiver.Complete(offer->sync);
  receiver.Adopt(*whole);
  EXPECT_THAT(receiver.Begin(MakeManifest(next))->missing, IsEmpty());
  EXPECT_THAT(receiver.Begin(MakeManifest(Weights(2, 1, 2, 3)))->missing, ElementsAre(1));
}

TEST(SnapshotReceiverTest, W1_NamesAndShapesMustCoverTheModel) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  Snapshot lacks = Weights(1, 4, 5, 6), more = lacks, other = lacks;
  lacks.tensors.erase("b");
  more.tensors.emplace("lm_head", Random({xla::DType::kF32, {1}}, 1));
  other.tensors["c"] = Random({xla::DType::kF32, {76}}, 1);
  const auto refused = [&](const Snapshot& snapshot) {
    const Status status = receiver.Begin(MakeManifest(snapshot)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refused(lacks), HasSubstr("'b' is missing"));
  EXPECT_THAT(refused(more), HasSubstr("'lm_head' is not of the model"));
  EXPECT_THAT(refused(other), HasSubstr("'c' is f32[76] instead of f32[75]"));
}

TEST(SnapshotReceiverTest, W1_AShapeThatOverflowsIsRefusedBeforeMemoryIsTaken) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  Manifest manifest = MakeManifest(Weights(1, 4, 5, 6));
  manifest.tensors[0].shape.dims = {INT64_MAX, INT64_MAX};
  EXPECT_EQ(receiver.Begin(manifest).status().code(), StatusCode::kInvalidArgument);
}

TEST(SnapshotReceiverTest, OneContentUnderTwoNamesTravelsOnce) {
  SnapshotReceiver receiver({.tensors = {{"a", Random({xla::DType::kF32, {8}}, 1)},
                                         {"b", Random({xla::DType::kF32, {2, 4}}, 2)}}},
                            kChunk);
  const Snapshot tied{.policy_version = 1,
                      .tensors = {{"a", Random({xla::DType::kF32, {8}}, 5)},
                                  {"b", Random({xla::DType::kF32, {2, 4}}, 5)}}};
  const auto offer = receiver.Begin(MakeManifest(tied));
  EXPECT_THAT(offer->missing, ElementsAre(0));
  ASSERT_TRUE(SendAll(receiver, tied, *offer).ok());
  EXPECT_EQ(Digest(receiver.Complete(offer->sync)->snapshot->tensors), Digest(tied.tensors));
}

TEST(SnapshotReceiverTest, OneContentOfTwoSizesIsTwoTensors) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot next = Weights(1, 4, 5, 6);
  Manifest lies = MakeManifest(next);
  lies.tensors[1].content = lies.tensors[0].content;
  const auto offer = receiver.Begin(lies);
  ASSERT_TRUE(offer.ok());
  EXPECT_THAT(offer->missing, ElementsAre(0, 1, 2));
  EXPECT_EQ(SendAll(receiver, next, *offer).code(), StatusCode::kDataLoss);
}

TEST(SnapshotReceiverTest, AChangedByteEndsTheSyncAndNamesTheTensor) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot next = Weights(1, 4, 5, 6);
  const auto offer = receiver.Begin(MakeManifest(next));
  std::string chunk = Chunk(next, *offer, 0);
  chunk[40] = static_cast<char>(chunk[40] ^ 4);
  ASSERT_TRUE(receiver.Take(offer->sync, 0, chunk).ok());  // the tensor goes on in the next one
  const Status status = receiver.Take(offer->sync, 1, Chunk(next, *offer, 1));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("'a'"));
  EXPECT_EQ(receiver.Complete(offer->sync).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(receiver.Take(offer->sync, 2, Chunk(next, *offer, 2)).code(), StatusCode::kNotFound);
  // Another one begins as ever.
  const auto again = receiver.Begin(MakeManifest(next));
  ASSERT_TRUE(SendAll(receiver, next, *again).ok());
  EXPECT_TRUE(receiver.Complete(again->sync).ok());
}

TEST(SnapshotReceiverTest, WhatArrivedBeforeABrokenConnectionIsNotAskedForAgain) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot next = Weights(1, 4, 5, 6);
  const auto torn = receiver.Begin(MakeManifest(next));
  ASSERT_TRUE(receiver.Take(torn->sync, 0, Chunk(next, *torn, 0)).ok());
  ASSERT_TRUE(receiver.Take(torn->sync, 1, Chunk(next, *torn, 1)).ok());  // a and b are whole
  const auto again = receiver.Begin(MakeManifest(next));
  EXPECT_THAT(again->missing, ElementsAre(2));
  EXPECT_EQ(receiver.Take(torn->sync, 2, Chunk(next, *torn, 2)).code(), StatusCode::kNotFound);
  ASSERT_TRUE(SendAll(receiver, next, *again).ok());
  EXPECT_EQ(Digest(receiver.Complete(again->sync)->snapshot->tensors), Digest(next.tensors));
}

TEST(SnapshotReceiverTest, ChunksThatAreNoneAreRefused) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot next = Weights(1, 4, 5, 6);
  const auto offer = receiver.Begin(MakeManifest(next));
  const std::string chunk = Chunk(next, *offer, 0);
  for (const int64_t index : {INT64_MIN, int64_t{-1}, offer->chunks, INT64_MAX}) {
    EXPECT_EQ(receiver.Take(offer->sync, index, chunk).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(receiver.Take(offer->sync, 0, chunk.substr(1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(receiver.Take(offer->sync, 0, chunk + "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(receiver.Take(offer->sync, offer->chunks - 1, chunk).code(),
            StatusCode::kInvalidArgument);  // the last one is shorter
  EXPECT_EQ(receiver.Take(offer->sync + 1, 0, chunk).code(), StatusCode::kNotFound);
  // A piece that comes twice changes nothing.
  ASSERT_TRUE(receiver.Take(offer->sync, 0, chunk).ok());
  EXPECT_TRUE(receiver.Take(offer->sync, 0, std::string(chunk.size(), 'x')).ok());
  ASSERT_TRUE(SendAll(receiver, next, *offer).ok());
  EXPECT_EQ(Digest(receiver.Complete(offer->sync)->snapshot->tensors), Digest(next.tensors));
}

TEST(SnapshotReceiverTest, ANewerSyncDoesNotLoseWhatAnAdoptionForgets) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), kChunk);
  const Snapshot first = Weights(1, 4, 5, 6), second = Weights(2, 1, 5, 7);
  const auto one = receiver.Begin(MakeManifest(first));
  ASSERT_TRUE(SendAll(receiver, first, *one).ok());
  const auto whole = receiver.Complete(one->sync);
  const auto two = receiver.Begin(MakeManifest(second));
  EXPECT_THAT(two->missing, ElementsAre(2));  // a is of version 0, b of version 1
  receiver.Adopt(*whole);
  ASSERT_TRUE(SendAll(receiver, second, *two).ok());
  EXPECT_EQ(Digest(receiver.Complete(two->sync)->snapshot->tensors), Digest(second.tensors));
}

TEST(SnapshotReceiverTest, ThreadsMaySendSideBySide) {
  SnapshotReceiver receiver(Weights(0, 1, 2, 3), /*chunk_bytes=*/16);
  const Snapshot next = Weights(1, 4, 5, 6);
  for (int round = 0; round < 20; ++round) {
    const auto offer = receiver.Begin(MakeManifest(Weights(0, 1, 2, 3)));
    ASSERT_THAT(offer->missing, IsEmpty());
    const auto sync = receiver.Begin(MakeManifest(next));
    std::string all;
    for (const size_t entry : sync->missing) {
      const auto bytes =
          std::next(next.tensors.begin(), static_cast<int64_t>(entry))->second.bytes();
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = t; i < sync->chunks; i += 2) {  // some come twice
          EXPECT_TRUE(
              receiver.Take(sync->sync, i, all.substr(static_cast<size_t>(16 * i), 16)).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto whole = receiver.Complete(sync->sync);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    EXPECT_EQ(Digest(whole->snapshot->tensors), Digest(next.tensors));
  }
}

}  // namespace
}  // namespace forebay::weights
