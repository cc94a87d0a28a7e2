// The call wrapper against function tables made here: short ones, empty ones, ones that fail.
#include "forebay/xla/pjrt/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/status.h"
#include "forebay/xla/pjrt/compile_options.h"
#include "forebay/xla/pjrt/plugin.h"

// What a plugin keeps behind the opaque type.
struct PJRT_Error {
  std::string message;
  PJRT_Error_Code code;
  int* destroyed;
};

namespace forebay::xla::pjrt {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// A plugin whose Plugin_Initialize fails with what the test puts in `next_error`.
PJRT_Error* next_error = nullptr;
size_t seen_struct_size = 0;

PJRT_Api FakeTable() {
  PJRT_Api table = {};
  table.struct_size = PJRT_Api_STRUCT_SIZE;
  table.pjrt_api_version.major_version = PJRT_API_MAJOR;
  table.pjrt_api_version.minor_version = 7;
  table.PJRT_Error_Message = [](PJRT_Error_Message_Args* args) {
    args->message = args->error->message.data();
    args->message_size = args->error->message.size();
  };
  table.PJRT_Error_Destroy = [](PJRT_Error_Destroy_Args* args) { ++*args->error->destroyed; };
  table.PJRT_Error_GetCode = [](PJRT_Error_GetCode_Args* args) -> PJRT_Error* {
    args->code = args->error->code;
    return nullptr;
  };
  table.PJRT_Plugin_Initialize = [](PJRT_Plugin_Initialize_Args* args) {
    seen_struct_size = args->struct_size;
    return next_error;
  };
  return table;
}

Status Initialize(const PJRT_Api& table, PJRT_Error* error) {
  next_error = error;
  PJRT_Plugin_Initialize_Args args = {};
  return FB_PJRT(Api(&table), PJRT_Plugin_Initialize, args);
}

TEST(ApiTest, FillsTheStructSize) {
  const PJRT_Api table = FakeTable();
  EXPECT_TRUE(Initialize(table, nullptr).ok());
  EXPECT_EQ(seen_struct_size, static_cast<size_t>(PJRT_Plugin_Initialize_Args_STRUCT_SIZE));
}

TEST(ApiTest, AnErrorBecomesAStatusAndIsFreed) {
  const PJRT_Api table = FakeTable();
  int destroyed = 0;
  PJRT_Error error{"no memory left\n", PJRT_Error_Code_RESOURCE_EXHAUSTED, &destroyed};
  const Status status = Initialize(table, &error);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "PJRT_Plugin_Initialize: no memory left");
  EXPECT_EQ(destroyed, 1);
}

TEST(ApiTest, AnEndlessMessageIsShortened) {
  const PJRT_Api table = FakeTable();
  int destroyed = 0;
  PJRT_Error error{std::string(1 << 20, 'x'), PJRT_Error_Code_INTERNAL, &destroyed};
  const Status status = Initialize(table, &error);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_LT(status.message().size(), 5000u);
  EXPECT_THAT(status.message(), HasSubstr("(shortened)"));
}

TEST(ApiTest, ACodeThatNobodyKnowsIsInternal) {
  const PJRT_Api table = FakeTable();
  int destroyed = 0;
  PJRT_Error error{"?", static_cast<PJRT_Error_Code>(31), &destroyed};
  EXPECT_EQ(Initialize(table, &error).code(), StatusCode::kInternal);
}

TEST(ApiTest, AFunctionBeyondTheTableIsUnimplemented) {
  PJRT_Api table = FakeTable();
  table.struct_size = offsetof(PJRT_Api, PJRT_Plugin_Initialize);
  Status status = Initialize(table, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("(API 0.7) has no PJRT_Plugin_Initialize"));
  // Half a pointer is no function.
  table.struct_size += 4;
  EXPECT_EQ(Initialize(table, nullptr).code(), StatusCode::kUnimplemented);
  table.struct_size += 4;
  EXPECT_TRUE(Initialize(table, nullptr).ok());
  table.PJRT_Plugin_Initialize = nullptr;
  EXPECT_EQ(Initialize(table, nullptr).code(), StatusCode::kUnimplemented);
}

TEST(ApiTest, AnotherMajorVersionIsRefused) {
  PJRT_Api table = FakeTable();
  EXPECT_TRUE(CheckTable(&table, "p.so").ok());
  table.pjrt_api_version.major_version = PJRT_API_MAJOR + 1;
  const Status status = CheckTable(&table, "p.so");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'p.so' speaks PJRT API 1.7"));
  EXPECT_EQ(CheckTable(nullptr, "p.so").code(), StatusCode::kInvalidArgument);
  table = FakeTable();
  table.struct_size = offsetof(PJRT_Api, PJRT_Error_Destroy);
  EXPECT_THAT(CheckTable(&table, "p.so").message(), HasSubstr("cannot report errors"));
}

TEST(CompileOptionsTest, EncodesTheProto) {
  // 3 { 4: 1, 5: 1 }
  const std::string plain = SerializeCompileOptions({});
  EXPECT_EQ(plain, std::string("\x1a\x04\x20\x01\x28\x01", 6));
  // 7 { 1: "n", 2 { 1: "v" } }, and { 2: true } for a bool.
  EXPECT_EQ(SerializeCompileOptions({{"n", "v"}}), plain + "\x3a\x08\x0a\x01n\x12\x03\x0a\x01v");
  EXPECT_EQ(SerializeCompileOptions({{"n", "true"}}), plain + "\x3a\x07\x0a\x01n\x12\x02\x10\x01");
  // 3 { 4: 1, 5: 2, 6: 1, 9 { 1: 1, 2: 2, 3 { 1: 0 }, 3 { 1: 5 } }, 19: 1 }
  const std::vector<int64_t> devices = {0, 5};
  EXPECT_EQ(SerializeCompileOptions({}, devices),
            std::string("\x1a\x17\x20\x01\x28\x02\x30\x01\x4a\x0c\x08\x01\x10\x02\x1a\x02\x08\x00"
                        "\x1a\x02\x08\x05\x98\x01\x01",
                        25));
  // A value of more than 127 bytes takes two bytes of length.
  const std::string longer = SerializeCompileOptions({{"n", std::string(300, 'v')}});
  EXPECT_THAT(longer, StartsWith(plain + "\x3a\xb5\x02\x0a\x01n\x12\xaf\x02\x0a\xac\x02vvv"));
  EXPECT_THAT(longer, SizeIs(plain.size() + 3 + 309));
}

}  // namespace
}  // namespace forebay::xla::pjrt
