// Which logits are edited, and by how much, as a sequence grows.
#include "forebay/rollout/engine/logit_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "forebay/rollout/engine.h"

namespace forebay::rollout {
namespace {

using ::testing::ElementsAre;

TEST(LogitEditsTest, ListsTokensOnceAndCountsWhatWasSampled) {
  LogitEdits edits(2, 100, 10);
  EXPECT_EQ(edits.capacity(), 100) << "never more than the vocabulary";
  EXPECT_FALSE(edits.any());
  edits.Begin(1, {.prompt = {5, 6, 5},
                  .repetition_penalty = 2,
                  .presence_penalty = 0.5,
                  .frequency_penalty = 0.25,
                  .logit_bias = {{6, 3.0F}}});
  EXPECT_TRUE(edits.any());
  edits.Sampled(1, 7);
  edits.Sampled(1, 5);
  edits.Sampled(1, 7);
  EXPECT_EQ(edits.longest(), 3);
  const auto arrays = edits.Pack(4);
  EXPECT_THAT(arrays.tokens, ElementsAre(-1, -1, -1, -1, 6, 5, 7, -1));
  EXPECT_THAT(arrays.biases, ElementsAre(0, 0, 0, 0, 3, 0, 0, 0));
  EXPECT_THAT(arrays.factors, ElementsAre(1, 1, 1, 1, 2, 2, 2, 1));
  EXPECT_THAT(arrays.subtract, ElementsAre(0, 0, 0, 0, 0, 0.75, 1, 0));
}

TEST(LogitEditsTest, ABiasAloneListsNothingElse) {
  LogitEdits edits(1, 100, 10);
  edits.Begin(0, {.prompt = {1, 2, 3}, .logit_bias = {{9, -1.0F}}});
  edits.Sampled(0, 4);
  EXPECT_EQ(edits.longest(), 1);
}

TEST(LogitEditsTest, WhatASlotDidDoesNotOutliveItsRequest) {
  LogitEdits edits(1, 100, 10);
  edits.Begin(0, {.prompt = {1}, .presence_penalty = 1});
  edits.Sampled(0, 4);
  edits.End(0);
  EXPECT_FALSE(edits.any());
  EXPECT_EQ(edits.longest(), 0);
  edits.Begin(0, {.prompt = {1}});  // plain: no row
  edits.Sampled(0, 4);
  edits.End(0);
  EXPECT_FALSE(edits.any());
  EXPECT_EQ(edits.longest(), 0);
}

TEST(LogitEditsTest, OnlyRequestsThatEditNeedARow) {
  EXPECT_FALSE(LogitEdits::Needs({.temperature = 0.5, .top_k = 3, .top_p = 0.5, .min_p = 0.1}));
  EXPECT_TRUE(LogitEdits::Needs({.repetition_penalty = 1.1}));
  EXPECT_TRUE(LogitEdits::Needs({.presence_penalty = -1}));
  EXPECT_TRUE(LogitEdits::Needs({.frequency_penalty = 0.1}));
  EXPECT_TRUE(LogitEdits::Needs({.logit_bias = {{1, 0.0F}}}));
}

}  // namespace
}  // namespace forebay::rollout
