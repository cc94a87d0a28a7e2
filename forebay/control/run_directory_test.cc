// Goal: what a run leaves on disk stays readable, whatever the disk did meanwhile.
#include "forebay/control/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/status.h"

namespace forebay::control {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() { fs::remove_all(path_); }
  ~RunDirectoryTest() override { fs::remove_all(path_); }
  std::unique_ptr<RunDirectory> Open(OpenMode mode) {
    auto run = RunDirectory::Open(path_, mode);
    FB_CHECK(run.ok(), run.status().ToString());
    std::ofstream(path_ + "/config.toml") << "";
    return std::move(*run);
  }
  std::vector<std::string> Lines(const std::string& name) const {
    std::vector<std::string> lines;
    std::ifstream file(path_ + "/" + name);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  const std::string path_ = (fs::path(testing::TempDir()) / "forebay_run_directory").string();
};

// Writes of this process end at a file size while it lives, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    FB_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0, "getrlimit");
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    FB_CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit");
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
  void (*const handler_)(int);
};

TEST_F(RunDirectoryTest, ALineThatAFullDiskToreTakesNoOtherWithIt) {
  const auto run = Open(OpenMode::kNew);
  run->WriteMetrics("first");
  {
    const SmallFiles small(10);
    run->WriteMetrics("second, of which only half is written");
    EXPECT_EQ(run->status().code(), StatusCode::kResourceExhausted);
  }
  run->WriteMetrics("third");
  run->WriteMetrics("fourth");
  EXPECT_THAT(Lines("metrics.jsonl"), Contains("first"));
  EXPECT_THAT(Lines("metrics.jsonl"), Contains("third"));
  EXPECT_THAT(Lines("metrics.jsonl"), Contains("fourth"));
  EXPECT_EQ(run->status().code(), StatusCode::kResourceExhausted);  // something is missing there
}

// A stream of the standard library that is used again after a failure writes past its buffer.
TEST_F(RunDirectoryTest, ManyWritesOnAFullDiskLoseOnlyThemselves) {
  const auto run = Open(OpenMode::kNew);
  run->WriteMetrics("first");
  {
    const SmallFiles small(10);
    for (int i = 0; i < 2000; ++i) run->WriteMetrics("lost " + std::to_string(i));
  }
  run->WriteMetrics("last");
  const std::vector<std::string> lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 3U);  // one is torn
  EXPECT_EQ(lines[0], "first");
  EXPECT_EQ(lines[1], "lost");
  EXPECT_EQ(lines[2], "last");
  EXPECT_THAT(run->status().message(), HasSubstr("metrics.jsonl' failed"));
}

TEST_F(RunDirectoryTest, KnowsWhenItsFolderHasGone) {
  const auto run = Open(OpenMode::kNew);
  EXPECT_TRUE(run->StillThere().ok());
  const std::string moved = run->path() + "_moved";
  std::filesystem::rename(run->path(), moved);
  EXPECT_EQ(run->StillThere().code(), StatusCode::kNotFound);
  const auto another = Open(OpenMode::kNew);  // in its place
  EXPECT_EQ(run->StillThere().code(), StatusCode::kNotFound);
  EXPECT_TRUE(another->StillThere().ok());
  std::filesystem::remove_all(moved);
}

TEST_F(RunDirectoryTest, StartsAreKeptOverAResumeAndGoWithAnOverwrite) {
  Open(OpenMode::kNew)->WriteStart("one");
  std::ofstream(path_ + "/starts.jsonl", std::ios::app) << "torn";
  Open(OpenMode::kResume)->WriteStart("two");
  EXPECT_THAT(Lines("starts.jsonl"), ElementsAre("one", "torn", "two"));
  EXPECT_EQ(RunDirectory::Open(path_, OpenMode::kNew).status().code(), StatusCode::kAlreadyExists);
  Open(OpenMode::kOverwrite)->WriteStart("three");
  EXPECT_THAT(Lines("starts.jsonl"), ElementsAre("three"));
  EXPECT_THAT(Lines("starts.jsonl"), Not(Contains("one")));
}

TEST_F(RunDirectoryTest, OneProgramHoldsIt) {
  const auto run = Open(OpenMode::kNew);
  EXPECT_EQ(RunDirectory::Open(path_, OpenMode::kResume).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace forebay::control
