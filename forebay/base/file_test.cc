// Goal: files are read whole or refused with a reason, and replaced atomically.
#include "forebay/base/file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace forebay {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(fs::path(testing::TempDir()) / "forebay_file_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST_F(FileTest, ReplacesAndReadsBack) {
  const std::string content("a\0b", 3);
  ASSERT_TRUE(WriteFileAtomic(Path("x"), "old").ok());
  ASSERT_TRUE(WriteFileAtomic(Path("x"), content).ok());
  EXPECT_EQ(*ReadFile(Path("x")), content);
  EXPECT_FALSE(fs::exists(Path("x.tmp")));
}

TEST_F(FileTest, RefusesWithTheReason) {
  EXPECT_EQ(ReadFile(Path("none")).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomic(Path("big"), std::string(100000, 'x')).ok());
  EXPECT_EQ(ReadFile(Path("big"), 99999).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(Path("big"), 100000)->size(), 100000u);
  EXPECT_EQ(ReadFile(folder_.string()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(WriteFileAtomic(Path("none/x"), "y").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace forebay
