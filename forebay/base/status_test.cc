// Goal: a Status carries its code and message through context, macros and Result.
#include "forebay/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace forebay {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  FB_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

Status Even(int x) {
  FB_RETURN_IF_ERROR(Half(x).status());
  return OkStatus();
}

TEST(StatusTest, ContextKeepsTheCode) {
  const Status status = NotFound("no file").WithContext("model");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.ToString(), "not_found: model: no file");
  EXPECT_TRUE(OkStatus().WithContext("x").ok());
}

TEST(StatusTest, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), InvalidArgument("odd"));
  EXPECT_EQ(Even(3).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Even(4).ok());
}

TEST(StatusTest, ResultMovesItsValue) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(StatusDeathTest, ReadingAnErrorIsABug) {
  Result<int> result(DataLoss("torn"));
  EXPECT_DEATH((void)result.value(), "data_loss: torn");
}

}  // namespace
}  // namespace forebay
